"""The plan's prediction beside what was measured, metric by metric.

The prediction is of the requests that were replayed: the same arrivals, lengths and shared prompts, warm-up in
front, turns open or held, simulated on the plan's configuration and step times, and those step times moved by
their known error. Measures nothing and reads no file; where nothing can be predicted it says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from pydantic import Field

from advisor.advice.plan import Plan
from advisor.advice.steps import Calibrations
from advisor.advice.target import Stack
from advisor.simulation.slo import Slo
from advisor.validation.metrics import Latency, Score, latencies, score
from advisor.validation.planned import OURS, planned
from advisor.validation.record import COMPLETE, Record
from advisor.validation.simulated import simulated
from advisor.validation.window import Window
from advisor.workload.model import Report
from engine.config import EngineConfig

MOST_ERROR = 0.10  # beyond it something is proposed
LEAST_FACTOR = 0.05  # the most that step times are made shorter (ours)
ATTAINMENT, GOOD_RATE, HIT_RATE = "attainment", "good_rate_rps", "hit_rate_tokens"
SHARES = (ATTAINMENT, HIT_RATE)
# What tells of step times: a P99 is of a handful of requests, and says little of one run.
TELLING = (
    ATTAINMENT,
    GOOD_RATE,
    *(f"{name}_{p}_s" for name in ("ttft", "tpot", "e2e") for p in ("p50", "p90")),
)


class Compared(Report):
    """One metric, predicted and measured."""

    metric: str = Field(
        description="attainment, good_rate_rps, hit_rate_tokens; ttft, tpot, e2e with _p50_s, _p90_s, _p99_s"
    )
    predicted: float | None
    measured: float | None
    error: float | None = Field(
        description="(predicted - measured) / measured; of shares (attainment, hit rate) predicted - measured"
    )


class Predicted(Report):
    """The simulation of exactly the replayed requests, on the plan's step times, beside the measurement."""

    source: str = Field(description="the step times: calibrated, published or roofline, with their key")
    step_error_p90: float | None = Field(description="known P90 error of the step times")
    rows: tuple[Compared, ...]
    low_attainment: float | None = Field(description="predicted with step times longer by their P90 error")
    high_attainment: float | None = Field(description="... shorter by it")
    advice: str | None = Field(description="what to do about an error over 10 %; null where there is none")


@dataclass(frozen=True, slots=True)
class Served:
    """What is said to serve, and how its requests are judged.

    `stack`: the engine that answers, by the plan's names for them, or any other word where it does not tell.
    `url`: of an endpoint that was not launched from the plan's folder. `targets`: of classes that have their
    own.
    """

    plan: Plan
    config: EngineConfig
    calibrations: Calibrations
    edited: bool = False
    fault: str | None = None
    stack: str = OURS
    url: str | None = None
    emulates: str | None = None
    causal: bool = False
    targets: Mapping[str, Slo] = field(default_factory=dict)


def predict(window: Window, records: Sequence[Record], served: Served) -> Predicted | str:
    """Simulate the window as it was replayed, and compare; or one clause that says why that cannot be done.

    `records`: one for each judged request of the window, in order, on the clock of what was emulated.
    """
    plan = served.plan
    why = _why_not(served)
    if why is not None:
        return why
    found = planned(plan, served.config, served.calibrations)
    if isinstance(found, str):
        return found

    def figures_of(some: Sequence[Record]) -> dict[str, float | None]:
        return _figures(some, score(some, plan.target.slo, window.length_s, served.targets))

    def at(factor: float) -> dict[str, float | None]:
        deployment = found.times(max(factor, LEAST_FACTOR))
        return figures_of(simulated(window, records, deployment, causal=served.causal))

    use = found.use
    rows = compare(at(1.0), figures_of(records))
    return Predicted(
        source=f"{use.source}: {use.key}" + (f"; router and client: {use.shared}" if use.shared else ""),
        step_error_p90=use.error_p90,
        rows=rows,
        low_attainment=None if use.error_p90 is None else at(1 + use.error_p90)[ATTAINMENT],
        high_attainment=None if use.error_p90 is None else at(1 - use.error_p90)[ATTAINMENT],
        advice=_advice(rows, served),
    )


def _why_not(served: Served) -> str | None:
    stack = served.plan.target.stack
    if served.plan.choice is None:
        return "the plan has no configuration"
    if served.edited:
        return "engine.yaml was edited: the plan is about another configuration"
    if served.fault is not None:
        return f"the plan is of a fleet without faults, and this one had {served.fault}"
    if served.stack != stack and (stack == OURS or served.stack in get_args(Stack)):
        return f"the plan is for another engine ({stack}) than the one that answers ({served.stack})"
    return None


def _figures(records: Sequence[Record], scored: Score) -> dict[str, float | None]:
    """Every figure that is compared, of one run."""
    of_run = latencies(records)
    figures = {ATTAINMENT: scored.attainment, GOOD_RATE: scored.good_rate_rps, HIT_RATE: _hit_rate(records)}
    for name in ("ttft", "tpot", "e2e"):
        latency: Latency | None = getattr(of_run, name)
        for p in ("p50", "p90", "p99"):
            figures[f"{name}_{p}_s"] = None if latency is None else getattr(latency, p)
    return figures


def _hit_rate(records: Sequence[Record]) -> float | None:
    """Prompt tokens from the cache, of complete requests that tell; None where none does."""
    known = [record for record in records if record.status in COMPLETE and record.n_cached is not None]
    prompt = sum(record.n_in or record.want_in for record in known)
    return sum(record.n_cached or 0 for record in known) / prompt if prompt else None


def compare(
    predicted: Mapping[str, float | None], measured: Mapping[str, float | None]
) -> tuple[Compared, ...]:
    """A row for each figure, in the order of `predicted`."""
    return tuple(
        Compared(metric=name, predicted=one, measured=measured[name], error=_error(name, one, measured[name]))
        for name, one in predicted.items()
    )


def _error(name: str, predicted: float | None, measured: float | None) -> float | None:
    if predicted is None or measured is None:
        return None
    if name in SHARES:
        return predicted - measured
    return (predicted - measured) / measured if measured else None


def _advice(rows: Sequence[Compared], served: Served) -> str | None:
    """What to do where a figure is off by more than `MOST_ERROR`; None where none is."""
    errors = {row.metric: row.error for row in rows if row.error is not None}
    worst = max((name for name in TELLING if name in errors), key=lambda name: abs(errors[name]), default=None)
    if worst is None or abs(errors[worst]) <= MOST_ERROR:
        return None
    size = f"{errors[worst] * 100:+.0f} " + ("points" if worst in SHARES else "%")
    said = f"the prediction of {worst} is off by {size}"
    hits = errors.get(HIT_RATE, 0.0)
    if abs(hits) > MOST_ERROR:
        said += f", that of the cache hit rate by {hits * 100:+.0f} points, which no step time explains"
    if served.emulates is not None:
        slower = f"advise launch --emulate {served.emulates} --time-scale K, with a larger K"
        return f"{said}; the fleet sleeps these very step times, so its clock is late: {slower}"
    return f"{said}: advise calibrate" + ("" if served.url is None else f" --url {served.url}")
