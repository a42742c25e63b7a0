"""The search: from all sensible layouts to the best few, by successive halving (Jamieson and Talwalkar 2016).

Bounds leave out what is hopeless; the rest is judged on a short, busy stretch of the load, the better ones on a
longer one, there with both ways of routing; then what differs from the best in one setting; the finalists on
all of it. Cost is counted in simulated requests, never in seconds. Random search gets the same and is reported
beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.advice.load import Traffic
from advisor.advice.search.bounds import SUSTAINED, predicted_rps
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.judge import Goal, Job, Judged
from advisor.advice.search.layout import Layout, by_prefix, routed_by_prefix, variants
from advisor.simulation.simulate import Turns
from advisor.simulation.slo import Slo

Judge = Callable[[Sequence[Job]], Iterable[Judged]]
Rated = tuple[Layout, float]  # with the rate to start from, requests/s


@dataclass(frozen=True, slots=True)
class Round:
    """One round of halving: requests of each simulation, how close goodput is found, how many go on (ours)."""

    requests: int
    tolerance: float
    keep: int


FIRST_ROUND, SECOND_ROUND = Round(300, 0.2, 4), Round(800, 0.1, 2)
FIRST = 16  # layouts that the first round judges, of each kind at least `LEAST_OF_KIND` (ours)
LEAST_OF_KIND = 4
HOPELESS = 0.5  # of the best predicted rate per GPU (ours)
STAGES_PROMISE = 1.1  # times the best predicted without pipeline stages: less is no reason for them (ours)
CONTENDER = 0.75  # of the best goodput per GPU: less than a split's largest margin leaves (ours)
DOUBTED = 1 / 16  # of the predicted rate: less was found where some long requests fail at any (ours)
FINAL = Round(12_000, 0.025, 0)  # of a finalist's simulation at most, the busiest of the log (ours)
AT_ONCE = 2  # layouts that random search begins together


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
    """One search. `judge` carries out jobs, in any number of processes, and answers in order.

    `reuse`: prompts share prefixes, so routing and queueing by them may pay.
    """

    def __init__(self, judge: Judge, hardware: Hardware, traffic: Traffic, goal: Goal, *, reuse: bool) -> None:
        self._judge, self._hardware, self._traffic, self._goal = judge, hardware, traffic, goal
        self._reuse = reuse
        self._simulated = 0

    def run(self, every: Sequence[Layout], also: Sequence[Layout] = ()) -> Found:
        """Search `every` layout; those in `also` are finalists whatever they are like."""
        every = [one for one in every if not any(same(one, other) for other in also)]
        rated, rejected = self._within_bounds([one for one in every if not routed_by_prefix(one)])
        first = self._judged(rated, FIRST_ROUND)
        kept = [self._again(one) for one in _with_each_kind(first, FIRST_ROUND.keep)]
        routed = [(other, rps) for one, rps in kept if self._reuse and (other := by_prefix(one))]
        second = self._judged([*kept, *routed], SECOND_ROUND)
        second += self._variants(second)
        standing = self._judged([(one, self.predicted(one)) for one in also], SECOND_ROUND)
        chosen = [one for one in _with_each_kind(second, SECOND_ROUND.keep) if _contends(one, second)]
        again = [self._again(one) for one in (*chosen, *standing)]
        finalists = self._judged(again, FINAL, graded=True)
        others = {one.layout.name: one for one in (*first, *second)}
        for one in finalists:
            others.pop(one.layout.name, None)
        return Found(tuple(best_first(finalists)), tuple(others.values()), tuple(rejected), self._simulated)

    def predicted(self, layout: Layout) -> float:
        """The rate that means predict for a layout; where they predict a miss, that without targets."""
        for slo in (self._goal.slo, Slo()):
            rate = predicted_rps(layout, self._hardware, self._traffic, slo)
            if rate > 0:
                return rate
        return 1e-3

    def once_more(self, finalists: Sequence[Judged], turns: Turns) -> list[Judged]:
        """The finalists on all of the load again, with turns of this kind; best first."""
        rated = [self._again(one) for one in finalists]
        return best_first(self._judged(rated, FINAL, graded=True, turns=turns))

    def random(self, every: Sequence[Layout], simulated: int, seed: int) -> Judged | None:
        """The best that random search finds for as many simulated requests, each layout judged on the whole.

        Begins `AT_ONCE` layouts at a time, so it may take a little more; whatever the number of processes.
        """
        order = [every[i] for i in np.random.default_rng(seed).permutation(len(every)).tolist()]
        judged: list[Judged] = []
        while order and sum(one.simulated for one in judged) < simulated:
            some, order = order[:AT_ONCE], order[AT_ONCE:]
            judged += self._judged([(one, self.predicted(one)) for one in some], FINAL)
        return next(iter(best_first(judged)), None)

    def _again(self, one: Judged) -> Rated:
        """To judge once more, from what is known; what kept the goal nowhere may do so on another part."""
        return one.layout, max(one.low_rps, DOUBTED * self.predicted(one.layout))

    def _variants(self, judged: Sequence[Judged]) -> list[Judged]:
        """What differs in one setting from the best layout of each kind that contends, where it is better."""
        better = []
        for best in _with_each_kind(judged, 1):
            if _contends(best, judged):
                tried = variants(best.layout, self._hardware, reuse=self._reuse)
                found = self._judged([(one, best.low_rps) for one in tried], SECOND_ROUND)
                better += [one for one in found if one.per_gpu > best.per_gpu]
        return better

    def _within_bounds(self, every: Sequence[Layout]) -> tuple[list[Rated], list[tuple[Layout, str]]]:
        """The most promising layouts of each kind with a rate to start from, and why the others are out."""
        bounds = [
            predicted_rps(one, self._hardware, self._traffic, self._goal.slo) / SUSTAINED for one in every
        ]
        per_gpu = [bound / one.gpus for one, bound in zip(every, bounds, strict=True)]
        top, plain = max(per_gpu, default=0.0), {True: 0.0, False: 0.0}
        for one, rate in zip(every, per_gpu, strict=True):
            if not one.staged:
                plain[one.split] = max(plain[one.split], rate)
        kept: list[Rated] = []
        rejected: list[tuple[Layout, str]] = []
        for i in sorted(range(len(every)), key=lambda i: (-per_gpu[i], i)):
            layout, bound = every[i], bounds[i]
            if layout.staged and per_gpu[i] < STAGES_PROMISE * plain[layout.split]:
                rejected.append((layout, "its means allow hardly more than without pipeline stages"))
                continue
            hopeless = len(kept) >= FIRST or bound / layout.gpus <= HOPELESS * top
            if hopeless and sum(one.split == layout.split for one, _ in kept) >= LEAST_OF_KIND:
                why = f"its means allow {bound:.3g} requests/s at most" if bound else "its means miss a target"
                rejected.append((layout, why))
            else:
                kept.append((layout, self.predicted(layout)))
        return kept, rejected

    def _judged(
        self, rated: Sequence[Rated], stage: Round, *, graded: bool = False, turns: Turns | None = None
    ) -> list[Judged]:
        jobs = [
            Job(one, self._hardware, stage.requests, max(rps, 1e-3), stage.tolerance, graded, turns=turns)
            for one, rps in rated
        ]
        judged = list(self._judge(jobs))
        self._simulated += sum(one.simulated for one in judged)
        return judged


def best_first(judged: Iterable[Judged]) -> list[Judged]:
    """By goodput per GPU; of equal ones the one with fewer GPUs (as DistServe), then the one listed first."""
    return sorted(judged, key=lambda one: (-one.per_gpu, one.layout.gpus))


def same(one: Layout, other: Layout) -> bool:
    """Whether two layouts differ in their names at most."""
    return (one.pools, one.router) == (other.pools, other.router)


def _with_each_kind(judged: Sequence[Judged], count: int) -> list[Judged]:
    """The best `count`, and the best colocated and the best split layout where they are not among them."""
    every = best_first(judged)
    kept = every[:count]
    for split in (False, True):
        if not any(one.layout.split == split for one in kept):
            kept += [one for one in every if one.layout.split == split][:1]
    return kept


def _contends(one: Judged, judged: Sequence[Judged]) -> bool:
    """Whether a layout is near enough to the best to be worth a simulation of everything."""
    return one.per_gpu > 0 and one.per_gpu >= CONTENDER * max(other.per_gpu for other in judged)
