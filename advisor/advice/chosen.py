"""A closer look at the chosen layout, at the rate to plan for: whom it fails, what losing an instance costs.

Steady and burst arrivals, and length classes, are parts of one Outcome and cost nothing; the loss of an
instance is one more simulation. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.advice.plan import Group, LengthGroup, Loss
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.judge import Goal, percentile, simulate_layout
from advisor.advice.search.layout import Layout
from advisor.logs.trace import BoolColumn, FloatColumn
from advisor.simulation.deployment import Fault
from advisor.simulation.load import Load
from advisor.simulation.outcome import Outcome
from advisor.simulation.scaling import busiest
from advisor.simulation.slo import Slo
from advisor.workload.classes import class_of

# A burst is a window with more requests than the mean by so many Poisson standard deviations (ours).
BURST_WINDOW_S, BURST_DEVIATIONS = 10.0, 3.0
FEWEST_IN_WINDOW = 10  # requests in the mean: in a slower log the windows are longer (ours)
RESTART_S = 60.0  # until an instance is back: an engine starts, its weights on disk (ours)


@dataclass(frozen=True, slots=True)
class Closer:
    """What the plan says of its chosen layout beyond the figures of all requests."""

    regimes: tuple[Group, ...]
    classes: tuple[LengthGroup, ...]
    loss: Loss


def look_closer(
    load: Load, layout: Layout, hardware: Hardware, goal: Goal, outcome: Outcome, busy_s: float
) -> Closer:
    """All of it, for a layout and its `outcome` on the load, in whose busiest `busy_s` an instance dies."""
    return Closer(
        regimes=by_regime(outcome, goal.slo),
        classes=by_class(outcome, goal.slo, goal.seed),
        loss=lose_one(load, layout, hardware, goal, outcome, busy_s),
    )


def by_regime(outcome: Outcome, slo: Slo) -> tuple[Group, ...]:
    """The requests of steady stretches, and those of bursts where there are any."""
    burst = in_bursts(outcome.arrival_s)
    kept = outcome.kept(slo)
    steady = _group("steady", ~burst, outcome, kept)
    return (steady, _group("bursts", burst, outcome, kept)) if burst.any() else (steady,)


def in_bursts(arrival_s: FloatColumn) -> BoolColumn:
    """Which requests came in a window with more of them than Poisson arrivals at the mean rate explain.

    One-sided; windows follow each other from the first arrival, seconds. [requests] -> [requests]
    """
    since_s = arrival_s - arrival_s.min(initial=np.inf)
    span_s = float(since_s.max(initial=0.0))
    window_s = max(BURST_WINDOW_S, FEWEST_IN_WINDOW * span_s / max(1, len(since_s)))
    _, window, counts = np.unique(since_s // window_s, return_inverse=True, return_counts=True)
    mean = len(since_s) * window_s / max(span_s, window_s)
    return np.asarray(counts[window] > mean + BURST_DEVIATIONS * np.sqrt(mean))


def by_class(outcome: Outcome, slo: Slo, seed: int) -> tuple[LengthGroup, ...]:
    """The requests of each length class of the workload, the largest first; empty where all are one."""
    label = class_of(outcome.prompt_tokens, outcome.output_tokens, np.random.default_rng(seed))
    kept = outcome.kept(slo)
    found = []
    for number in range(int(label.max(initial=0)) + 1):
        rows = label == number
        group = _group(f"class {number + 1}", rows, outcome, kept)
        prompt_p50, output_p50 = np.median(outcome.prompt_tokens[rows]), np.median(outcome.output_tokens[rows])
        found.append(LengthGroup(**dict(group), prompt_p50=float(prompt_p50), output_p50=float(output_p50)))
    return tuple(found) if len(found) > 1 else ()


def lose_one(
    load: Load, layout: Layout, hardware: Hardware, goal: Goal, outcome: Outcome, busy_s: float
) -> Loss:
    """What the loss of one instance costs, a decode instance where the layout is split: one more simulation.

    It dies with all its KV as half of the requests of the busiest `busy_s` seconds have come, and is back,
    empty, after `RESTART_S`. `outcome` is that of the same load without the loss.
    """
    pool = layout.pools[-1]
    first = sum(one.count for one in layout.pools[:-1])
    busy = busiest(load, busy_s)
    at_s = float(busy.arrival_s[len(busy) // 2])
    fault = Fault(at_s, first, at_s + RESTART_S)
    lossy = simulate_layout(load, layout, hardware, goal.turns, faults=[fault])
    caught_up_s = _caught_up_s(lossy, outcome, fault.back_s)
    hit = (lossy.arrival_s >= at_s) & (lossy.arrival_s < (np.inf if caught_up_s is None else caught_up_s))
    return Loss(
        role=pool.role,
        left=pool.count - 1,
        at_s=at_s - float(load.arrival_s[0]),
        down_s=RESTART_S,
        caught_up_s=None if caught_up_s is None else caught_up_s - at_s,
        requests=int(hit.sum()),
        attainment=_share(lossy.kept(goal.slo)[hit]),
        attainment_without=_share(outcome.kept(goal.slo)[hit]),
        rerun=lossy.rerun,
        dropped=int((outcome.served & ~lossy.served).sum()),
        attainment_of_all=lossy.attainment(goal.slo),
    )


def _caught_up_s(lossy: Outcome, outcome: Outcome, back_s: float) -> float | None:
    """When no more requests are in the fleet than without the loss; None: not before the last arrival."""
    times = np.sort(lossy.arrival_s[lossy.arrival_s > back_s])
    times = np.concatenate(([back_s], times))
    level = np.flatnonzero(_in_fleet(lossy, times) <= _in_fleet(outcome, times))
    return float(times[level[0]]) if len(level) else None


def _in_fleet(outcome: Outcome, times: FloatColumn) -> FloatColumn:
    """Requests that have come and not ended, at each time; those that are never served have ended at once."""
    ends = outcome.arrival_s + np.nan_to_num(outcome.e2e_s)
    came, ended = (
        np.searchsorted(np.sort(column), times, side="right") for column in (outcome.arrival_s, ends)
    )
    return np.asarray(came - ended, dtype=np.float64)


def _group(name: str, rows: BoolColumn, outcome: Outcome, kept: BoolColumn) -> Group:
    return Group(
        name=name,
        share=float(rows.mean()),
        attainment=_share(kept[rows]),
        ttft_p90_s=percentile(outcome.ttft_s[rows], 90),
        tpot_p90_s=percentile(outcome.tpot_s[rows], 90),
    )


def _share(kept: BoolColumn) -> float | None:
    return float(kept.mean()) if len(kept) else None
