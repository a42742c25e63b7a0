"""The rule-made plan: one candidate, with the reason of every field.

Nothing is simulated here, so nothing is compared: the verdict is `undecided`, or `infeasible` by rule 0a.
"""

from __future__ import annotations

import math
from typing import Literal

from advisor.advice.plan import Candidate, Plan, served_model
from advisor.advice.rules.capacity import SIZING_LOAD
from advisor.advice.rules.prefix import MATTERS
from advisor.advice.situation import Situation
from advisor.advice.sizing import BLOCK_SIZE, parallel
from advisor.advice.target import Target
from engine.config import EngineConfig, PoolConfig, RouterConfig
from engine.launchable import why_not_launchable

GRAPHS_REASON = "a decode step is one launch on a GPU; a CPU has no graphs"
FILES = ("target.yaml", "engine.yaml", "plan.json", "trace.jsonl")


def make_plan(situation: Situation, *, feasible: bool, prefix_first: bool) -> Plan:
    """The plan; `prefix_first` is rule 1d's verdict, `feasible` rule 0a's."""
    s = situation
    pool = PoolConfig(
        count=s.instances,
        tp=s.tp,
        pp=s.pp,
        devices_per_instance=s.gpus if s.target.on_cpu else s.tp * s.pp,
        batching="chunked",
        token_budget=s.sizing.budget.tokens,
        max_seqs=s.sizing.max_seqs,
        block_size=BLOCK_SIZE,
        prefix_cache=True,
        queue_policy="prefix_first" if prefix_first else "fcfs",
        kv_tokens=s.sizing.kv_tokens,
    )
    router = RouterConfig(policy=_router(s))
    candidate = Candidate(
        name=f"colocated, chunked {pool.token_budget}",
        pools=(pool,),
        router=router,
        gpus=s.gpus,
        kv_tokens=s.sizing.kv_tokens,
        rejected=None if feasible else "a latency target is below what the device can do alone (ADV401)",
    )
    target = with_dtype(s)
    return Plan(
        target=target,
        step_time=s.steps.use,
        candidates=(candidate,),
        chosen=candidate.name if feasible else None,
        verdict="undecided" if feasible else "infeasible",
        gpus_needed=_gpus_needed(s) if feasible else None,
        runs_on={
            "advise": runs_here(s, EngineConfig(pools=(pool,), router=router, model=served_model(target)))
        },
        files=FILES if feasible else tuple(name for name in FILES if name != "engine.yaml"),
        reasons=_reasons(s, pool, router),
    )


def _router(s: Situation) -> Literal["round_robin", "least_loaded", "prefix_affinity"]:
    """Rule 1a: affinity where sharing carries work and there is a choice of instance."""
    if s.instances == 1:
        return "round_robin"
    return "prefix_affinity" if (s.hit or 0.0) * s.prefill_share >= MATTERS else "least_loaded"


def _gpus_needed(s: Situation) -> int:
    """Devices at which the sizing window loads them to 0.8."""
    return math.ceil(s.sizing.load * s.instances / SIZING_LOAD) * (s.gpus // s.instances)


def with_dtype(s: Situation) -> Target:
    """The target with the numbers that its step times were measured in, where it says `auto`."""
    target = s.target
    if s.steps.dtype == target.dtype:
        return target
    origins = {**target.origins, "dtype": "this machine"}
    return target.model_copy(update={"dtype": s.steps.dtype, "origins": origins})


def runs_here(s: Situation, config: EngineConfig) -> str:
    """Whether the bundled engine can launch it: `yes`, or why not."""
    if s.target.stack != "advise":
        return f"no: the plan is for {s.target.stack}"
    if s.target.kv_dtype not in ("auto", config.model.dtype):
        return f"no: this version keeps KV in the weights' numbers, not in {s.target.kv_dtype}"
    why = why_not_launchable(config)
    return "yes" if why is None else f"no: {why}"


def _reasons(s: Situation, pool: PoolConfig, router: RouterConfig) -> dict[str, str]:
    """Why each field is what it is, by path in engine.yaml; one line each."""
    staged = {} if pool.pp == 1 else {"pools.0.pp": "no TP alone holds the model and the longest request"}
    return staged | {
        "pools.0.role": "one pool for both phases: a split must first show its gain in a simulation",
        "pools.0.count": _count_reason(s),
        "pools.0.tp": "one core group is one device"
        if s.target.on_cpu
        else f"the fewest GPUs that hold {s.target.model}, the longest request and a batch of typical ones",
        "pools.0.devices_per_instance": "every core of this machine" if s.target.on_cpu else "tp x pp",
        "pools.0.batching": "chunked prefill keeps decodes running beside long prompts (Sarathi-Serve)",
        "pools.0.token_budget": _budget_reason(s),
        "pools.0.max_seqs": f"bounded by {s.sizing.max_seqs_by}; about {s.sizing.rows} decode at once",
        "pools.0.block_size": "16 to 128 tokens serve equally well (PagedAttention, section 7.2)",
        "pools.0.prefix_cache": _cache_reason(s),
        "pools.0.queue_policy": "arrival order: nothing to gain from another (ADV105 did not fire)"
        if pool.queue_policy == "fcfs"
        else "longest cached prefix first, with aging (ADV105, or ADV204 offline)",
        "pools.0.kv_tokens": "a quarter of this host's memory, divided among its cores"
        if s.target.on_cpu
        else "0.9 of the GPU's memory less weights and activations",
        "pools.0.cuda_graphs": GRAPHS_REASON,
        "router.policy": "one instance, nothing to choose"
        if s.instances == 1
        else f"{router.policy}: prefix hits save {(s.hit or 0.0) * s.prefill_share:.1%} of device time",
        "model.dtype": f"as the step times were measured ({s.steps.use.source})"
        if s.steps.use.source == "calibrated"
        else f"from the target ({s.target.origins.get('dtype', 'default')})",
    }


def _count_reason(s: Situation) -> str:
    if s.target.on_cpu:
        return "one instance over all cores"
    load = f"loads each to {s.sizing.load:.2f} at {s.sizing_rps:.3g} requests/s"
    return f"{s.instances} x {parallel(s.tp, s.pp)} on {s.gpus} GPUs {load}"


def _budget_reason(s: Situation) -> str:
    """Which target, which step times, and that a mean held as a limit is conservative."""
    slo, budget = s.target.slo, s.sizing.budget
    if slo.gap_s is None:
        return "no per-token target: a budget for throughput (ADV204)"
    full = f"a full step takes {budget.step_s * 1e3:.0f} ms ({s.steps.use.source})"
    if not budget.feasible:
        return f"{full}, over the target of {slo.gap_s * 1e3:.0f} ms: the smallest candidate (ADV202)"
    kind = (
        f"TBT target of {slo.gap_s * 1e3:.0f} ms"
        if slo.tbt_s is not None
        else f"mean TPOT target of {slo.gap_s * 1e3:.0f} ms as if it bound every gap: conservative"
    )
    return f"{full}; x 1.2 it keeps the {kind} (ADV201)"


def _cache_reason(s: Situation) -> str:
    cost = "costs at most 0.3 % (SGLang)"
    if s.hit is None:
        return f"{cost}; its value is unknown, the log shows no sharing: planned as if nothing hit"
    if s.hit_basis == "cached tokens of the log":
        return f"{cost}; the engine behind the log had {s.hit:.1%} of prompt tokens cached, taken to hold here"
    return f"{cost}; {s.hit:.1%} of prompt tokens hit at this KV size"
