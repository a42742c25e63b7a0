"""`advise`: a Workload and a Target in, findings and a Plan out.

Findings that need no device come always; those that need step times come with a target. With the trace the plan
is simulated. Without it the rules make one: one candidate, its simulated fields null, and the verdict
`undecided`, or `infeasible` by rule 0a; where nothing is known of prefix reuse it counts on none, and its flip
points say what would change with some.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.advice.explained import NOT_MODELLED, unknown_of
from advisor.advice.finding import Finding
from advisor.advice.flips import ASSUMED_HITS, flip_points
from advisor.advice.links import links_of
from advisor.advice.money import hosted_offer, priced
from advisor.advice.plan import Plan
from advisor.advice.planner import make_plan
from advisor.advice.resolve import NoTarget
from advisor.advice.rules import budget, capacity, data_quality, hosted, prefix, prompts, risks, split
from advisor.advice.rules.formulas import remote_reuse_bandwidth
from advisor.advice.situation import Situation, draw, longest_prompt
from advisor.advice.sizing import BLOCK_SIZE
from advisor.advice.steps import Calibrations
from advisor.advice.target import Target
from advisor.logs.trace import Trace
from advisor.simulation.from_trace import load_of
from advisor.workload.arrivals import spread_trace
from advisor.workload.model import Distribution, UnknownField, Workload
from engine.errors import MachineError
from engine.step_time.model import StepShape

if TYPE_CHECKING:
    from advisor.advice.current import Current
    from advisor.advice.simulated import SimulationOptions

HOSTED = hosted.MOSTLY_IDLE.code


@dataclass(frozen=True, slots=True)
class Advice:
    """What `advise` gives; `plan_reason` says why `plan` is None."""

    findings: tuple[Finding, ...]
    plan: Plan | None
    plan_reason: str | None
    unknown: tuple[UnknownField, ...]
    not_modelled: tuple[str, ...] = NOT_MODELLED


def advise(
    workload: Workload,
    target: Target | NoTarget,
    calibrations: Calibrations | None = None,
    *,
    trace: Trace | None = None,
    simulation: SimulationOptions | None = None,
    current: Current | None = None,
    no_operations: bool = False,
) -> Advice:
    """Apply every rule that the workload and the target allow, and plan where both are known.

    `calibrations` are step times measured on the target's own engine. With the `trace` that was measured the
    plan is found by simulation, as `simulation` says, against `current`, what runs now (None: the stack's
    defaults); without it the rules make one that is `undecided`. `no_operations`: nobody would run a
    deployment. Raises InputError where the target names a model or GPU that is not known, MachineError where
    simulating needs more than this machine has.
    """
    always = _hardware_free(workload)
    if isinstance(target, NoTarget):
        return _no_plan([*always, _caching_alone(workload)], f"{target.reason} (add {target.hint})")
    reason = _why_no_plan(workload)
    if reason is not None:
        return _no_plan([*always, _caching_alone(workload)], reason)
    try:
        situation = draw(workload, target, calibrations or {})
    except MachineError as error:
        return _no_plan([*always, _caching_alone(workload)], f"{error.message}: {error.why}")
    ruled = plan = _plan(situation)
    load = None if trace is None else load_of(spread_trace(trace)[0], BLOCK_SIZE)
    if trace is not None and load is not None and len(load) and load.span_s > 0:
        # Imported for a plan only, here and in _concluded: it takes as long as measuring a small log.
        from advisor.advice.by_simulation import simulated_plan
        from advisor.advice.simulated import SimulationOptions

        options = simulation or SimulationOptions()
        situation, plan = simulated_plan(workload, target, trace, load, calibrations or {}, options, current)
        ruled = _plan(situation)
    elif situation.hit is None:
        assumed = [(hit, _plan(draw(workload, target, calibrations or {}, hit))) for hit in ASSUMED_HITS]
        plan = plan.model_copy(update={"flips": flip_points("hit_rate_tokens", plan, assumed)})
    plan = priced(plan, workload)
    # Rule 0a looks at one instance of the fewest GPUs: a simulated layout of more may do what that cannot.
    impossible = _infeasible(situation) if plan.simulation is None or plan.chosen is None else None
    found = [*_with_device(situation, plan, no_operations), *_budget_findings(situation, impossible)]
    findings = _sorted([*always, *found, impossible, _queue_order(situation)])
    return Advice(findings, _concluded(plan, ruled, findings), None, unknown_of(plan))


def _concluded(plan: Plan, ruled: Plan, findings: tuple[Finding, ...]) -> Plan:
    """The plan beside what the rules say; `hosted` where they advise to rent an API."""
    if plan.simulation is not None:
        from advisor.advice.by_simulation import beside_rules

        reasons = {**plan.reasons, "rules": beside_rules(plan, ruled, findings)}
        plan = plan.model_copy(update={"reasons": reasons})
    if plan.chosen is not None and any((f.code, f.verdict) == (HOSTED, "do") for f in findings):
        plan = plan.model_copy(update={"verdict": "hosted"})
    return plan


def _plan(s: Situation) -> Plan:
    """The rule-made plan for a situation."""
    offline = s.target.slo.ttft_s is None and s.target.slo.gap_s is None
    prefix_first = offline or _queue_order(s) is not None
    return make_plan(s, feasible=_infeasible(s) is None, prefix_first=prefix_first)


def _no_plan(findings: Iterable[Finding | None], reason: str) -> Advice:
    return Advice(_sorted(findings), None, reason, ())


def _sorted(findings: Iterable[Finding | None]) -> tuple[Finding, ...]:
    return tuple(sorted((f for f in findings if f is not None), key=lambda f: f.code))


def _why_no_plan(workload: Workload) -> str | None:
    lengths: dict[str, Distribution | None] = {
        "prompt": workload.lengths.prompt,
        "output": workload.lengths.output,
    }
    for name, measured in lengths.items():
        if measured is None:
            return f"the log has no {name} lengths"
        if measured.max is None:
            return f"the log has {name} lengths in sum only: nothing can be sized from a mean"
    if workload.arrivals.rate_rps is None:
        return "the log has no arrival times, so no rate to plan for"
    return None


def _hardware_free(workload: Workload) -> list[Finding | None]:
    """Rules that need nothing but the measurement."""
    arrivals, sharing = workload.arrivals, workload.sharing
    hit = sharing.hit_rate_tokens
    return [
        data_quality.short_log(workload.requests, workload.span_s),
        data_quality.coarse_clock(arrivals.tick_s, arrivals.cv, arrivals.cv_spread),
        data_quality.no_sharing(hit is not None, sharing.cached_share),
        data_quality.incomplete(sharing.unexplained_share, sharing.cached_share, hit),
        data_quality.no_outputs(workload.lengths.output is not None),
        *_about_traffic(workload),
        *_about_prompts(workload),
        capacity.bursty(
            arrivals.dispersion.get("10"), arrivals.cv, arrivals.tick_s is not None, arrivals.peak_rps.get("10")
        ),
    ]


def _about_prompts(workload: Workload) -> list[Finding | None]:
    """What prompts share elsewhere than at their start."""
    layout, anywhere = workload.layout, workload.sharing.any_position_share
    hit = workload.sharing.hit_rate_tokens if layout is None else layout.hit_rate
    return [
        None if hit is None or anywhere is None else prompts.stable_first(anywhere, hit),
        None if layout is None else prompts.fixed_behind(layout),
    ]


def _about_traffic(workload: Workload) -> list[Finding | None]:
    """Who sends it, and whether it is the same all through the log."""
    prompt, clients, drift = workload.lengths.prompt, workload.clients, workload.drift
    found = [] if prompt is None else [data_quality.capped(workload.lengths.caps, prompt.max, prompt.p50)]
    if clients is not None:
        found += [capacity.dominant_client(clients.clients, clients.top1_share, clients.top1_token_share)]
    if drift is not None:
        per_window = sum(window.requests for window in drift.windows) / len(drift.windows)
        found += [
            data_quality.changing_rate(drift.regimes, workload.arrivals.rate_rps),
            data_quality.idle_time(drift.idle_share, per_window),
        ]
    return found


def _caching_alone(workload: Workload) -> Finding:
    """Rule 1 without a device: the hit rates, no share of time."""
    sharing = workload.sharing
    logged = sharing.cached_share if sharing.hit_rate_tokens is None else None
    basis = None if logged is None else "cached tokens of the log"
    return prefix.prefix_caching(logged, sharing.hit_rate_tokens, sharing.hit_rate_optimal, None, basis)


def _with_device(s: Situation, plan: Plan, no_operations: bool) -> list[Finding | None]:
    """Rules that need step times or memory."""
    sharing, hit = s.workload.sharing, s.hit
    found: list[Finding | None] = [
        prefix.prefix_caching(
            hit, sharing.hit_rate_tokens, sharing.hit_rate_optimal, s.prefill_share, s.hit_basis
        ),
        capacity.overloaded(s.sizing.load, s.instances),
        capacity.too_long(longest_prompt(s.workload), s.target.max_len or s.shape.max_len),
        risks.replan_when(s.mean.uncached, s.mean.output, s.mean.rate_rps * s.instances, hit),
        *_split_findings(s),
    ]
    if hit is not None:
        found += [
            prefix.sharing_matters(s.prefill_share, hit, s.instances),
            prefix.no_speedup(s.prefill_share, hit),
            prefix.capacity_limited(
                hit,
                s.hit_unlimited,
                s.sizing.kv_tokens * s.instances,
                _tokens_to_close(s.workload),
                _reuse_link(s),
            ),
        ]
    if not s.target.on_cpu:
        idle = s.sizing.load * s.instances * s.mean.rate_rps * s.instances / s.sizing_rps
        found.append(_hosted(s, plan, idle, no_operations))
    return found


def _hosted(s: Situation, plan: Plan, idle: float, no_operations: bool) -> Finding | None:
    """Rule 11, with both prices where they are known."""
    offer = hosted_offer(s.workload, s.target.model)
    if offer is None:
        return hosted.mostly_idle(idle, no_operations, own_usd=plan.usd_per_month)
    name = f"{offer.model} ({offer.source})"
    return hosted.mostly_idle(
        idle, no_operations, own_usd=plan.usd_per_month, hosted_usd=offer.usd_per_month, hosted=name
    )


def _reuse_link(s: Situation) -> float:
    """Bytes/s a link must have for remote KV of a typical shared prefix to be worth fetching."""
    prefix_tokens = s.hit_unlimited * s.mean.prompt
    gqa = s.shape.heads / s.shape.kv_heads
    return remote_reuse_bandwidth(s.shape.hidden, prefix_tokens, gqa, s.flops)


def _tokens_to_close(workload: Workload) -> int | None:
    """The smallest measured cache within the gap of an unlimited one."""
    enough = (workload.sharing.hit_rate_tokens or 0.0) - prefix.CAPACITY_GAP
    return next((p.tokens for p in workload.sharing.capacity_curve if p.hit_rate_tokens >= enough), None)


def _infeasible(s: Situation) -> Finding | None:
    return capacity.infeasible(s.target.slo.gap_s, s.decode_floor_s, s.target.slo.ttft_s, s.prefill_floor_s)


def _queue_order(s: Situation) -> Finding | None:
    """Rule 1d; the queue is the wait of the sizing window times its rate."""
    optimal = s.workload.sharing.hit_rate_optimal or s.workload.sharing.hit_rate_tokens
    if s.hit is None or optimal is None:
        return None
    queue = s.sizing.wait_s * s.sizing_rps / s.instances
    ttft_target = s.target.slo.ttft_s is not None
    return prefix.queue_order(s.hit, optimal, queue, s.sizing.kv_tokens, s.longest, ttft_target)


def _budget_findings(s: Situation, impossible: Finding | None) -> list[Finding | None]:
    """Rules 2, 4 and 4a; 4a says nothing new where the targets or the load are out of reach anyway."""
    slo, sizing = s.target.slo, s.sizing
    if slo.gap_s is None:
        return [budget.offline()] if slo.ttft_s is None else []
    kind = "tbt" if slo.tbt_s is not None else "tpot"
    found: list[Finding | None] = [
        budget.budget_found(sizing.budget, slo.gap_s, sizing.rows, kind, s.steps.use.source)
    ]
    if slo.ttft_s is not None and sizing.load < capacity.FULL and impossible is None:
        found.append(
            budget.targets_conflict(
                sizing.ttft_s, slo.ttft_s, sizing.budget.tokens, s.uncached_tail, sizing.wait_s
            )
        )
    return found


def _split_findings(s: Situation) -> list[Finding]:
    """Rules 3 and 5 to 7, and 10 where a split stays a candidate."""
    slo, model = s.target.slo, s.steps.model
    if slo.ttft_s is None and slo.gap_s is None:
        return []
    t1 = s.reference_decode_s
    prefill_p90 = model.seconds(StepShape(((max(1, round(s.uncached_p90)), 0),)))
    within, across = links_of(s.target, s.gpus)
    found = split.consider_split(
        split.SplitInputs(
            prefill_share=s.prefill_share,
            uncached_mean=s.mean.uncached,
            uncached_p50=s.uncached_p50,
            uncached_p90=s.uncached_p90,
            output_mean=s.mean.output,
            gpus=s.gpus,
            gpus_per_copy=s.tp * s.pp,
            parameters=s.shape.parameters,
            ttft_tightness=None if slo.ttft_s is None else slo.ttft_s / prefill_p90,
            tbt_tightness=None if slo.gap_s is None else slo.gap_s / t1,
            ttft_target_s=slo.ttft_s,
            decode_step_s=t1,
            kv_bytes_token=s.shape.kv_bytes_per_token(),
            rate_rps=s.mean.rate_rps * s.instances,
            link_bytes_per_s=within,
            cross_node_bits_per_s=across,
        )
    )
    if any(f.verdict == "check" for f in found):
        lone = risks.lone_side(s.gpus // (s.tp * s.pp))
        found += [lone] if lone else []
    return found
