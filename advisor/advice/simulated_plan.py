"""From what was simulated to the Plan: candidates, attribution, choice, margin, the reason of every setting.

Puts into the plan's words what `simulated` found; decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from advisor.advice.backtest import Backtest, Compared
from advisor.advice.plan import Candidate, Interval, Plan, Simulation, Waiting, served_model
from advisor.advice.planner import FILES, GRAPHS_REASON, runs_here, with_dtype
from advisor.advice.search.deadline import why_late
from advisor.advice.search.decide import Decision
from advisor.advice.search.judge import Judged
from advisor.advice.search.layout import Layout
from advisor.advice.simulated import Simulated
from advisor.advice.situation import Situation
from advisor.simulation.bootstrap import Interval as Bootstrap
from engine.config import EngineConfig

SHOWN = 12  # candidates in the plan, finalists first (ours)


def plan_of(s: Situation, found: Simulated) -> Plan:
    """The plan."""
    decision, target = found.decision, with_dtype(s)
    chosen = None if decision.chosen is None else decision.chosen.layout
    config = None
    if chosen is not None:
        config = EngineConfig(pools=chosen.pools, router=chosen.router, model=served_model(target))
    rival, closer = found.random, found.closer
    return Plan(
        target=target,
        step_time=s.steps.use,
        candidates=tuple(_candidates(found)),
        attribution=tuple(_row(name, one) for name, one in found.attribution),
        chosen=None if chosen is None else chosen.name,
        runner_up=None if decision.runner_up is None else decision.runner_up.layout.name,
        margin=None if decision.ratio is None else _margin(decision.ratio),
        verdict=decision.verdict,
        gpus_needed=found.gpus_needed,
        flips=found.flips,
        mean_trap=found.mean_trap,
        backtest=None if found.backtest is None else _backtest(found.backtest),
        simulation=Simulation(
            requests=found.requests,
            simulated=found.found.simulated,
            needed_rps=found.needed_rps,
            why=decision.why,
            random=None if rival is None else {"name": rival.layout.name, "goodput_rps_per_gpu": rival.per_gpu},
            at_needed=None if found.at_log_rate is None else asdict(found.at_log_rate),
            batch_s=found.batch_s,
            waiting=None if found.waiting is None else _waiting(found.waiting),
            regimes=None if closer is None else closer.regimes,
            classes=None if closer is None else closer.classes,
            loss=None if closer is None else closer.loss,
        ),
        runs_on={} if config is None else {"advise": runs_here(s, config)},
        files=FILES if chosen is not None else tuple(name for name in FILES if name != "engine.yaml"),
        reasons={} if chosen is None else _reasons(s, found, chosen),
    )


def _waiting(decision: Decision) -> Waiting:
    chosen = None if decision.chosen is None else decision.chosen.layout.name
    return Waiting(verdict=decision.verdict, chosen=chosen)


def _candidates(found: Simulated) -> list[Candidate]:
    """Finalists, then what fell out on the way, then what was never simulated."""
    finalists, deadline_s = found.found.finalists, found.goal.deadline_s
    judged = [
        _candidate(one, None if deadline_s is None else why_late(one, finalists, deadline_s))
        for one in finalists
    ]
    judged += [
        _candidate(one, "worse on a part of the log")
        for one in sorted(found.found.others, key=lambda one: -one.per_gpu)
    ]
    never = [
        Candidate(name=layout.name, pools=layout.pools, router=layout.router, gpus=layout.gpus,
                  kv_tokens=layout.pools[-1].kv_tokens, rejected=why)
        for layout, why in found.found.rejected
    ]  # fmt: skip
    kept = judged + never
    return kept[: max(SHOWN, len(found.found.finalists))]


def _candidate(one: Judged, rejected: str | None) -> Candidate:
    layout, at = one.layout, one.at
    if one.low_rps <= 0:
        rejected = "misses the targets at every rate"
    return Candidate(
        name=layout.name,
        pools=layout.pools,
        router=layout.router,
        gpus=layout.gpus,
        goodput_rps_per_gpu=_interval(one),
        attainment=None if at is None else at.attainment,
        ttft_p90_s=None if at is None else at.ttft_p90_s,
        tpot_p90_s=None if at is None else at.tpot_p90_s,
        tbt_p99_s=None if at is None else at.tbt_p99_s,
        hit_rate_tokens=None if at is None else at.hit_rate_tokens,
        kv_tokens=layout.pools[-1].kv_tokens,
        rejected=rejected,
    )


def _interval(one: Judged) -> Interval:
    """Goodput per GPU: between the highest rate that kept the targets and the lowest that did not."""
    gpus = one.layout.gpus
    high = one.low_rps if one.high_rps is None else one.high_rps
    return Interval(low=one.low_rps / gpus, mid=math.sqrt(one.low_rps * high) / gpus, high=high / gpus)


def _row(name: str, one: Judged) -> dict[str, Any]:
    return {
        "name": name,
        "layout": one.layout.name,
        "goodput_rps_per_gpu": _interval(one).model_dump(),
        "attainment": None if one.at is None else one.at.attainment,
    }


def _backtest(tested: Backtest) -> dict[str, Any]:
    """What was predicted beside what was logged, seconds or a share of prompt tokens, and the two factors."""

    def rows(compared: Sequence[Compared]) -> list[dict[str, Any]]:
        return [{**asdict(one), "error": one.error} for one in compared]

    return {
        "requests": tested.requests,
        "off": tested.off,
        "whole": rows(tested.whole),
        "second_half": rows(tested.before),
        "second_half_fitted": rows(tested.after),
        "prefill_factor": tested.prefill_factor,
        "decode_factor": tested.decode_factor,
        "planned_with": tested.helps,
    }


def _devices_reason(s: Situation, layout: Layout) -> str:
    if not s.target.on_cpu:
        return "tp x pp"
    alone = sum(pool.count for pool in layout.pools) == 1
    return "every core of this machine" if alone else "cores of its own, one thread each"


def _margin(ratio: Bootstrap) -> dict[str, float | None]:
    return {"ratio": ratio.middle, "low": ratio.low, "high": ratio.high}


def _reasons(s: Situation, found: Simulated, layout: Layout) -> dict[str, str]:
    """Why each field is what it is, by path in engine.yaml; one line each."""
    kept = found.decision.verdict == "keep_defaults"
    goodput = f"{found.decision.chosen.per_gpu:.3g} requests/s per GPU" if found.decision.chosen else ""
    tried = len(found.found.finalists) + len(found.found.others)
    why = "as it runs now" if kept else f"of {tried} layouts simulated the best: {goodput}"
    reasons: dict[str, str] = {}
    for i, pool in enumerate(layout.pools):
        reasons |= {
            f"pools.{i}.role": why,
            f"pools.{i}.count": why,
            f"pools.{i}.tp": why,
            **({} if pool.pp == 1 else {f"pools.{i}.pp": why}),
            f"pools.{i}.devices_per_instance": _devices_reason(s, layout),
            f"pools.{i}.batching": "chunked prefill keeps decodes running beside long prompts (Sarathi-Serve)",
            f"pools.{i}.token_budget": why if pool.role == "colocated" else "prompts batch to it (Splitwise)",
            f"pools.{i}.max_seqs": why,
            f"pools.{i}.block_size": "16 to 128 tokens serve equally well (PagedAttention, section 7.2)",
            f"pools.{i}.prefix_cache": "costs at most 0.3 % (SGLang), so it is on",
            f"pools.{i}.queue_policy": why,
            f"pools.{i}.kv_tokens": "a quarter of this host's memory, divided among its cores"
            if s.target.on_cpu
            else "0.9 of the GPU's memory less weights and activations",
            f"pools.{i}.cuda_graphs": GRAPHS_REASON,
        }
    gap = None if found.decision.chosen is None else found.decision.chosen.below_rps
    if gap is not None:
        reasons["goodput"] = f"the targets are missed at {gap:.3g} requests/s too: no rate alone is the goodput"
    alone = sum(pool.count for pool in layout.pools) == len(layout.pools)
    reasons["router.policy"] = "nothing to choose from" if alone else why
    reasons["model.dtype"] = (
        f"as the step times were measured ({s.steps.use.source})"
        if s.steps.use.source == "calibrated"
        else f"from the target ({s.target.origins.get('dtype', 'default')})"
    )
    return reasons
