"""The search: from all sensible layouts to the best few, by successive halving (Jamieson and Talwalkar 2016).

Bounds leave out what is hopeless; the rest is judged on a short, busy stretch of the load, the better half on a
longer one, and so on; the finalists, and what differs from the best in one setting, on all of it. Cost is
counted in simulated requests, never in seconds. Random search gets the same and is reported beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.advice.load import Traffic
from advisor.advice.search.bounds import predicted_rps
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.judge import Goal, Job, Judged
from advisor.advice.search.layout import Layout, variants

Judge = Callable[[Sequence[Job]], Iterable[Judged]]


@dataclass(frozen=True, slots=True)
class Round:
    """One round of halving: requests of each simulation, how close goodput is found, how many go on (ours)."""

    requests: int
    tolerance: float
    keep: int


ROUNDS = (Round(400, 0.2, 8), Round(1500, 0.1, 3))
FIRST = 20  # layouts that the first round judges, of each kind at least `LEAST_OF_KIND` (ours)
LEAST_OF_KIND = 4
HOPELESS = 0.5  # of the best predicted rate per GPU (ours)
FINAL_REQUESTS = 12_000  # of a finalist's simulation at most, the busiest of the log (ours)
FINAL_TOLERANCE = 0.025


@dataclass(frozen=True, slots=True)
class Found:
    """The finalists, best first, everything else that was judged, and the requests that it took."""

    finalists: tuple[Judged, ...]
    others: tuple[Judged, ...]
    rejected: tuple[tuple[Layout, str], ...]
    simulated: int

    @property
    def best(self) -> Judged | None:
        """The layout with the highest goodput per GPU; None where none keeps the goal at any rate."""
        return self.finalists[0] if self.finalists and self.finalists[0].low_rps > 0 else None


class Search:
    """One search. `judge` carries out jobs, in any number of processes, and answers in order."""

    def __init__(self, judge: Judge, hardware: Hardware, traffic: Traffic, goal: Goal, *, reuse: bool) -> None:
        self._judge, self._hardware, self._traffic, self._goal = judge, hardware, traffic, goal
        self._reuse = reuse
        self._simulated = 0

    def run(self, every: Sequence[Layout], also: Sequence[Layout] = ()) -> Found:
        """Search `every` layout; those in `also` are judged with the finalists whatever they are like."""
        rated, rejected = self._within_bounds(every)
        others: dict[str, Judged] = {}
        for stage in ROUNDS:
            if len(rated) <= 1:
                break
            judged = self._judged(rated, stage.requests, stage.tolerance)
            others |= {one.layout.name: one for one in judged}
            judged = best_first(judged)
            kept = _with_each_kind(judged, stage.keep)
            rated = [(one.layout, one.low_rps) for one in kept if one.low_rps > 0]
        if rated:
            stage, (best, rps) = ROUNDS[-1], rated[0]
            tried = [(one, rps) for one in variants(best, self._hardware, reuse=self._reuse)]
            judged = best_first([*self._judged(tried, stage.requests, stage.tolerance), others[best.name]])
            others |= {one.layout.name: one for one in judged}
            better = [(one.layout, one.low_rps) for one in judged if one.per_gpu > others[best.name].per_gpu]
            rated = [*better[:2], *rated]
        rated += [
            (one, self.predicted(one)) for one in also if one.name not in {layout.name for layout, _ in rated}
        ]
        finalists = self._judged(rated, FINAL_REQUESTS, FINAL_TOLERANCE, graded=True)
        names = {one.layout.name for one in finalists}
        return Found(
            tuple(best_first(finalists)),
            tuple(one for name, one in sorted(others.items()) if name not in names),
            tuple(rejected),
            self._simulated,
        )

    def predicted(self, layout: Layout) -> float:
        """The rate that means predict for a layout; more than nothing, to start from."""
        return max(predicted_rps(layout, self._hardware, self._traffic, self._goal.slo), 1e-3)

    def random(self, every: Sequence[Layout], simulated: int, seed: int) -> Judged | None:
        """The best that random search finds for as many simulated requests, each layout judged on the whole."""
        rng = np.random.default_rng(seed)
        best: Judged | None = None
        left = simulated
        for index in rng.permutation(len(every)).tolist():
            if left <= 0:
                break
            [one] = self._judged(
                [(every[index], self.predicted(every[index]))], FINAL_REQUESTS, FINAL_TOLERANCE
            )
            left -= one.simulated
            best = one if best is None or one.per_gpu > best.per_gpu else best
        return best

    def _within_bounds(
        self, every: Sequence[Layout]
    ) -> tuple[list[tuple[Layout, float]], list[tuple[Layout, str]]]:
        """The most promising layouts of each kind with their predicted rates, and why the others are out."""
        rates = [predicted_rps(layout, self._hardware, self._traffic, self._goal.slo) for layout in every]
        top = max((rate / one.gpus for one, rate in zip(every, rates, strict=True)), default=0.0)
        order = sorted(range(len(every)), key=lambda i: (-rates[i] / every[i].gpus, i))
        kept: list[tuple[Layout, float]] = []
        rejected: list[tuple[Layout, str]] = []
        for i in order:
            layout, rate = every[i], rates[i]
            kind = sum(one.split == layout.split for one, _ in kept)
            if rate <= 0:
                rejected.append((layout, "a latency target is below what it can do alone"))
            elif kind >= LEAST_OF_KIND and (len(kept) >= FIRST or rate / layout.gpus < HOPELESS * top):
                rejected.append((layout, f"its means allow {rate:.3g} requests/s at most"))
            else:
                kept.append((layout, rate))
        return kept, rejected

    def _judged(
        self, rated: Sequence[tuple[Layout, float]], requests: int, tolerance: float, *, graded: bool = False
    ) -> list[Judged]:
        jobs = [Job(one, self._hardware, requests, rps, tolerance, graded) for one, rps in rated]
        judged = list(self._judge(jobs))
        self._simulated += sum(one.simulated for one in judged)
        return judged


def best_first(judged: Sequence[Judged]) -> list[Judged]:
    """By goodput per GPU; of equal ones the one with fewer GPUs (as DistServe), then the one listed first."""
    return sorted(judged, key=lambda one: (-one.per_gpu, one.layout.gpus))


def _with_each_kind(judged: Sequence[Judged], count: int) -> list[Judged]:
    """The best `count`, of which the best colocated and the best split layout always are two."""
    kept = list(judged[:count])
    for split in (False, True):
        if not any(one.layout.split == split for one in kept):
            kept += [one for one in judged if one.layout.split == split][:1]
    return kept
