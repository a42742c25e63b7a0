"""When a prediction and what was measured agree, and whether the rates that they were compared at could tell.

Pure functions of the figures; who simulates and who measures is `rehearsal`'s. The limits are those that the
comparison was announced with, before anything was measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

ATTAINMENT = 0.03  # of a run, from what was predicted for it
TTFT_P90 = 0.10  # of what was predicted
LOWEST, ASKED, HIGHEST = 0.70, 0.90, 0.97  # attainment of the rates: within, and on both sides of what is asked
PLANS, RATES, RUNS = 4, 3, 3
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Figures:
    """What a load was like at a rate: attainment of 0 to 1, P90 of TTFT of served requests, seconds."""

    attainment: float
    ttft_p90_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run at a rate of a plan. `target`: the attainment and the TTFT that the plan is to keep."""

    plan: str
    rate_rps: float
    target: Figures
    predicted: Figures
    measured: Figures


def off(run: Run) -> list[str]:
    """How a run is not as predicted, one clause each; empty where it is."""
    words = []
    points = run.measured.attainment - run.predicted.attainment
    if not abs(points) <= ATTAINMENT + _ROUNDING:
        words.append(f"attainment {points * 100:+.1f} points")
    share = run.measured.ttft_p90_s / run.predicted.ttft_p90_s - 1
    if not abs(share) <= TTFT_P90 + _ROUNDING:
        words.append(f"P90 TTFT {share:+.1%}")
    return words


def guess(run: Run) -> Run:
    """The run as who always answers "measured equals target" predicts it."""
    return replace(run, predicted=run.target)


def faults(runs: Iterable[Run], *, plans: int = PLANS, rates: int = RATES, repeats: int = RUNS) -> list[str]:
    """Why measurement and prediction do not agree, one sentence each; empty where they do.

    They do not where any run is off, where plans, rates or runs are missing, where the rates of a plan are not
    those to compare at, or where a guess would have done as well.
    """
    found = []
    by_plan = [(plan, list(some)) for plan, some in groupby(sorted(runs, key=_order), lambda run: run.plan)]
    if len(by_plan) < plans:
        found.append(f"{len(by_plan)} of {plans} plans")
    for plan, some in by_plan:
        by_rate = [(rate, list(ones)) for rate, ones in groupby(some, lambda run: run.rate_rps)]
        if len(by_rate) < rates:
            found.append(f"{plan}: {len(by_rate)} of {rates} rates")
        for rate, ones in by_rate:
            where = f"{plan} at {rate:.1f}/s"
            if len(ones) < repeats:
                found.append(f"{where}: {len(ones)} of {repeats} runs")
            found += [f"{where}: {', '.join(off(run))}" for run in ones if off(run)]
        found += [f"{plan}: {words}" for words in _coverage([ones for _, ones in by_rate])]
        if not any(off(guess(run)) for run in some):
            found.append(f"{plan}: a guess would have agreed too")
    return found


def _order(run: Run) -> tuple[str, float]:
    return run.plan, run.rate_rps


def _coverage(by_rate: Sequence[Sequence[Run]]) -> list[str]:
    """What is wrong with the rates of a plan, by the median of what was predicted and of what was measured."""
    words = []
    for name in ("predicted", "measured"):
        middle = [statistics.median(getattr(run, name).attainment for run in ones) for ones in by_rate]
        if any(not LOWEST <= one <= HIGHEST for one in middle):
            words.append(f"{name} attainment is not within {LOWEST:.0%} and {HIGHEST:.0%} at every rate")
        if not min(middle) < ASKED < max(middle):
            words.append(f"{name} attainment is not on both sides of {ASKED:.0%}")
    return words
