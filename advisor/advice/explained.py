"""What a plan does not say, and why: its nulls, and what no figure of it contains."""

from __future__ import annotations

from advisor.advice.plan import Candidate, Plan
from advisor.workload.model import UnknownField

NOT_MODELLED = (
    "tokenizing, HTTP, and the network between client and server",
    "the start of an engine: loading weights, capturing CUDA graphs, compiling kernels",
    "speculative decoding, LoRA adapters, host or disk tiers of the KV cache",
    "what the host does for pipeline stages, and stages of other sizes than an even division of the layers",
    "experts beyond their active parameters: imbalance, all-to-all traffic",
    "autoscaling, and failures but the one of `simulation.loss`",
)
NOT_SIMULATED = "not simulated yet: the plan was made by rules"
RUN_IT = "advise launch, then advise validate, measures it"
ANALYZE = "advise analyze LOG simulates it: a trace with arrival times and both lengths of each request"

# Of a plan that was simulated: why a field is null all the same, and how to get it.
_WHY = {
    "chosen": ("no layout keeps the latency targets", "loosen --ttft or --tpot, or name a faster GPU"),
    "runner_up": ("no other layout was simulated to its goodput", "name more GPUs: --gpus"),
    "margin": (
        "what runs now keeps the targets at no rate, or the log is too short for paired blocks of it",
        "a longer log, or what runs now with --current",
    ),
    "gpus_needed": ("no number of GPUs was found that keeps the targets", "loosen --ttft or --tpot"),
    "mean_trap": (
        "a planner of means has no answer for a split, a batch, CPU cores, nor where no layout keeps targets",
        "nothing to get",
    ),
    "backtest": (
        "it needs latencies in the log and the configuration that served it",
        "advise analyze LOG --current FILE, with a log that has TTFT or durations",
    ),
}
_NO_PRICE = ("no price is known for this device, or no number of GPUs to pay for", "--gpu-price 2.50")
_NO_RATE = "a candidate that keeps the targets at no rate, or that its bounds left out, has none"
_NOT_GRADED = "no rate to be at: no layout keeps the targets"
# Of a batch with a deadline: what is another matter there.
_WHY_OF_BATCH = {
    "chosen": ("no layout ends the batch by the deadline", "a longer --deadline, or more GPUs: --gpus"),
    "gpus_needed": ("no number of GPUs was found that ends the batch by the deadline", "a longer --deadline"),
}
_BATCH_HAS_NO_RATE = "a batch is there at once: it has no rate to be at"
_NO_BATCH = ("with latency targets requests come as logged, not as one batch", "--objective throughput")


def unknown_of(plan: Plan) -> tuple[UnknownField, ...]:
    """An entry for every null of the plan and, once each, of its candidates."""
    found = [(name, *_why(plan, name)) for name, value in plan if value is None]
    fields = (name for name in Candidate.model_fields if name != "rejected")
    found += [
        (f"candidates.{name}", *(_candidate_why(plan)))
        for name in fields
        if any(getattr(candidate, name) is None for candidate in plan.candidates)
    ]
    if plan.simulation is not None:
        found += [
            (f"simulation.{name}", *_simulation_why(plan, name))
            for name, value in plan.simulation
            if value is None
        ]
    return tuple(UnknownField(path=f"plan.{name}", why=why, how_to_get=how) for name, why, how in found)


def _why(plan: Plan, name: str) -> tuple[str, str]:
    if name.startswith("usd"):
        return _NO_PRICE
    if plan.target.deadline_s is not None and name in _WHY_OF_BATCH:
        return _WHY_OF_BATCH[name]
    if name == "chosen" or plan.simulation is not None:
        return _WHY.get(name, ("it does not apply", "nothing to get"))
    return NOT_SIMULATED, ANALYZE


def _simulation_why(plan: Plan, name: str) -> tuple[str, str]:
    slo = plan.target.slo
    if name == "batch_s" and not (slo.ttft_s is None and slo.gap_s is None):
        return _NO_BATCH
    if plan.target.deadline_s is None:
        return _NOT_GRADED, "loosen --ttft or --tpot"
    return _WHY_OF_BATCH["chosen"] if name == "random" else (_BATCH_HAS_NO_RATE, "leave --deadline out")


def _candidate_why(plan: Plan) -> tuple[str, str]:
    return (NOT_SIMULATED, ANALYZE) if plan.simulation is None else (_NO_RATE, RUN_IT)
