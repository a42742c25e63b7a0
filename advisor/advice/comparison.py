"""Two plans side by side: only for the same target, as goodput for one promise says nothing of another.

Figures only; what they look like is the report's.
"""

from __future__ import annotations

from dataclasses import dataclass

from advisor.advice.analysis import Analysis
from advisor.advice.plan import Plan
from advisor.advice.target import Target
from engine.errors import InputError

# Not among them: how many GPUs and links there are, and what they cost. That is what plans may differ in.
COMPARED = (
    "stack", "model", "dtype", "kv_dtype", "max_len", "gpu", "slo", "objective", "deadline_s", "isolation",
)  # fmt: skip
AUTO = "auto"  # a number format that step times decide


@dataclass(frozen=True, slots=True)
class Figures:
    """One plan in a column; None where it has no such figure. Rates in requests/s, times in seconds."""

    verdict: str
    layout: str | None
    gpus: int | None
    per_gpu_rps: float | None
    rate_rps: float | None
    attainment: float | None
    ttft_p90_s: float | None
    tpot_p90_s: float | None
    batch_s: float | None
    gpus_needed: int | None
    usd_per_month: float | None
    requests: int | None


def differing(one: Target, other: Target) -> list[str]:
    """The fields in which two targets ask for something else: `slo: ... and ...`."""
    found = []
    for name in COMPARED:
        a, b = getattr(one, name), getattr(other, name)
        if a != b and not (name.endswith("dtype") and AUTO in (a, b)):
            found.append(f"{name}: {a} and {b}")
    return found


def refuse_other_target(earlier: Plan, target: Target) -> None:
    """Raise InputError where a plan is for another target."""
    found = differing(earlier.target, target)
    if found:
        raise InputError(
            "plans for different targets cannot be ranked", why="; ".join(found),
            hint="leave --compare-to out: each plan says what it costs",
        )  # fmt: skip


def figures(analysis: Analysis) -> Figures:
    """The column of an analysis. Raises InputError where it has no plan."""
    plan = analysis.plan
    if plan is None:
        raise InputError(
            "there is no plan to compare with",
            why=analysis.plan_reason,
            hint="advise analyze LOG --gpu h100-sxm --model llama-3.1-8b",
        )
    choice, simulation = plan.choice, plan.simulation
    at = (simulation.at_needed if simulation is not None else None) or {}
    goodput = None if choice is None else choice.goodput_rps_per_gpu
    return Figures(
        plan.verdict,
        plan.chosen,
        None if choice is None else choice.gpus,
        None if goodput is None else goodput.low,
        None if simulation is None else simulation.needed_rps,
        at.get("attainment"),
        at.get("ttft_p90_s"),
        at.get("tpot_p90_s"),
        None if simulation is None else simulation.batch_s,
        plan.gpus_needed,
        plan.usd_per_month,
        None if simulation is None else simulation.requests,
    )
