"""The search for goodput on a running endpoint: which rate to replay next, and when to stop.

Owns the order of the probes; never sends, never reads a clock: the caller replays. Moves from `bracket` (a rate
that keeps the objective and one that does not) over `bisect` (until they are 5 % apart) to `confirm` (both
again, with seeds of their own, all runs at a rate together). It asks for the same probes wherever their
outcomes are the same, so an interrupted search goes on from the probes that it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from advisor.validation.probes import (
    Judged,
    Point,
    Probe,
    Stage,
    crossing,
    curve,
    not_monotone,
    pooled,
    together_keep,
)
from advisor.validation.statistics import Evidence
from advisor.workload.model import Report

__all__ = ["Judged", "Point", "Probe", "Search", "Stage", "find_goodput"]

End = Literal["found", "limit", "interrupted", "invalid"]

BELOW, ABOVE = 0.8, 1.25  # of the prediction: where the search begins
STRIDE = 1.5  # from rate to rate until one keeps and one fails
TOLERANCE = 0.05  # how far apart they may be in the end
MOST_PROBES = 60  # (ours)
MOST_STEPS = 8  # by the tolerance, where confirmations contradict what was found before (ours)
MOST_INVALID = 2  # probes at one rate


class Search(Report):
    """What the probes found. Rates are the factor times the log's rate."""

    probes: tuple[Probe, ...]
    curve: tuple[Point, ...] = Field((), description="attainment by rate, ascending")
    low_rps: float | None = Field(
        description="highest rate whose confirmations together kept the objective; null: none"
    )
    goodput_rps: float | None = Field(
        None,
        description="best estimate: where the isotonic curve crosses the target, from `low_rps` to `high_rps`; "
        "null: not both are known, or it does not cross",
    )
    high_rps: float | None = Field(description="lowest rate that did not; null: none was found")
    low_attainment: float | None = Field(description="measured at `low_rps`, all its confirmations together")
    evidence: Evidence | None = Field(description="of all confirmations at `low_rps` together")
    gpus: int | None = Field(description="devices of the plan; goodput per GPU is low_rps / gpus")
    predicted_rps: float | None = Field(description="where the search began: the plan's goodput")
    not_monotone: str | None = Field(description="a pair of rates where the lower did worse, beyond noise")
    end: End
    why: str = Field(description="one sentence")


def find_goodput(
    probe: Callable[[float, int, Stage], Probe | None],
    *,
    start: float,
    rate_rps: float,
    lowest: float,
    highest: float,
    gpus: int | None,
    predicted_rps: float | None,
    seeds: int = 3,
    tolerance: float = TOLERANCE,
    done: Sequence[Probe] = (),
    base_seed: int = 0,
) -> Search:
    """The highest rate that keeps the objective, between two rates that are `tolerance` apart.

    `probe(factor, seed, stage)` replays at `factor` times the log's rate, `rate_rps`; None: it was interrupted.
    It may end a probe early, but none of stage `confirm`, whose shares are added up. `start`, `lowest` and
    `highest` are factors. `done`: probes of an interrupted search, which are not repeated, and those of stage
    `log`, which spare the search a rate. Raises ValueError for factors that are not ordered.
    """
    if not 0 < lowest <= highest or start <= 0:
        raise ValueError(f"cannot search from {start} between {lowest} and {highest}")
    search = _Search(probe, rate_rps, (lowest, highest), seeds, tolerance, done, base_seed)
    try:
        search.bracket(start)
        search.bisect()
        search.settle()
        end, why = search.outcome()
    except _StopError as stop:
        end, why = stop.end, stop.why
    low, high = search.found()
    together = pooled(search.confirmed[low]) if low is not None else None
    points, goodput_rps = curve(search.probes, rate_rps), None
    if low is not None and high is not None and together is not None:
        goodput_rps = crossing(points, low * rate_rps, high * rate_rps, together.target)
    return Search(
        probes=tuple(search.probes),
        curve=points,
        low_rps=None if low is None else low * rate_rps,
        goodput_rps=goodput_rps,
        high_rps=None if high is None else high * rate_rps,
        low_attainment=None if together is None else together.share,
        evidence=together,
        gpus=gpus,
        predicted_rps=predicted_rps,
        not_monotone=not_monotone(points),
        end=end,
        why=why,
    )


class _StopError(Exception):
    """The search ends here."""

    def __init__(self, end: End, why: str) -> None:
        super().__init__(why)
        self.end = end
        self.why = why


class _Search:
    """Where a search stands. `low` keeps, `high` fails: by one run until `confirmed`, `refuted` have them.

    After a step by the tolerance an end is a guess until it is there.
    """

    def __init__(
        self,
        probe: Callable[[float, int, Stage], Probe | None],
        rate_rps: float,
        bounds: tuple[float, float],
        seeds: int,
        tolerance: float,
        done: Sequence[Probe],
        base_seed: int,
    ) -> None:
        self._probe = probe
        self._rate_rps = rate_rps
        self._lowest, self._highest = lowest, highest = bounds
        self._seeds = seeds
        self._step = 1 + tolerance
        self._done = {(one.factor, one.seed, one.stage): one for one in done}
        self._base_seed = base_seed
        self._asked = 0
        self.probes = [one for one in done if one.stage == "log"]
        self.low: float | None = None
        self.high: float | None = None
        self.confirmed: dict[float, list[Probe]] = {}
        self.refuted: set[float] = set()
        for one in self.probes:
            if lowest <= one.factor <= highest:
                self._note(one)

    def bracket(self, start: float) -> None:
        """Find a rate that keeps and one that fails; without the latter, the highest keeps."""
        for factor in (BELOW * start, ABOVE * start):
            factor = min(max(factor, self._lowest), self._highest)
            if (self.low is None or self.low < factor) and (self.high is None or factor < self.high):
                self._note(self._ask(factor, "bracket"))
        while self.low is None and self.high is not None:
            if self.high <= self._lowest:
                raise _StopError("limit", f"not even {self._rate(self.high)}, the lowest rate tried, kept it")
            self._note(self._ask(max(self.high / STRIDE, self._lowest), "bracket"))
        while self.high is None and self.low is not None and self.low < self._highest:
            self._note(self._ask(min(self.low * STRIDE, self._highest), "bracket"))
        self.check_invariants()

    def bisect(self) -> None:
        """Halve the distance, in log(rate), until it is within the tolerance."""
        while self.low is not None and self.high is not None and self.high / self.low > self._step + 1e-9:
            self._note(self._ask(math.sqrt(self.low * self.high), "bisect"))
        self.check_invariants()

    def settle(self) -> None:
        """Confirm both ends; where one does not stand, move by one tolerance and confirm again."""
        for _ in range(MOST_STEPS):
            self.check_invariants()
            if self.low is not None and self.low not in self.confirmed:
                if not self._confirm(self.low):
                    self._step_down()
            elif self.high is not None and self.high not in self.refuted and self._confirm(self.high):
                self._step_up()
            if self.low in self.confirmed and (self.high is None or self.high in self.refuted):
                return
        raise _StopError("limit", f"confirmations did not settle in {MOST_STEPS} steps of {self._step - 1:.0%}")

    def outcome(self) -> tuple[End, str]:
        """How a search ends that nothing stopped."""
        kept = self._rate(self.low or 0.0)
        if self.high is None:
            return "limit", f"{kept} kept it, and no higher rate may be sent"
        return "found", f"{kept} kept it in {self._seeds} runs together, {self._rate(self.high)} did not"

    def found(self) -> tuple[float | None, float | None]:
        """The low end if it is confirmed, the high end if a run at it failed."""
        failed = {one.factor for one in self.probes if one.judged == "fails"}
        return self.low if self.low in self.confirmed else None, self.high if self.high in failed else None

    def check_invariants(self) -> None:
        """Raises ValueError where the ends are not in order."""
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"{self.low} keeps but {self.high} fails")

    def _ask(self, factor: float, stage: Stage) -> Probe:
        """The next valid probe at this rate."""
        while True:
            if len(self.probes) >= MOST_PROBES:
                raise _StopError("limit", f"{MOST_PROBES} probes did not settle it")
            seed = int(np.random.SeedSequence((self._base_seed, self._asked)).generate_state(1)[0])
            self._asked += 1
            made = self._done.get((factor, seed, stage)) or self._probe(factor, seed, stage)
            if made is None:
                raise _StopError("interrupted", f"interrupted after {len(self.probes)} probes")
            self.probes.append(made)
            if made.judged != "invalid":
                return made
            invalid = [one for one in self.probes if one.factor == factor and one.judged == "invalid"]
            if len(invalid) >= MOST_INVALID:
                why = f"{len(invalid)} probes at {self._rate(factor)} were invalid: {made.why}"
                raise _StopError("invalid", why)

    def _note(self, made: Probe) -> None:
        if made.judged == "keeps":
            self.low = max(made.factor, self.low or 0.0)
        elif made.judged == "fails":
            self.high = min(made.factor, self.high or math.inf)

    def _confirm(self, factor: float) -> bool:
        runs = [self._ask(factor, "confirm") for _ in range(self._seeds)]
        if together_keep(runs):
            self.confirmed[factor] = runs
            return True
        self.refuted.add(factor)
        return False

    def _step_down(self) -> None:
        """`low` was refuted."""
        self.high, self.low = self.low, None
        if self.high is None or self.high <= self._lowest:
            raise _StopError("limit", f"not even {self._rate(self._lowest)}, the lowest rate tried, kept it")
        self.low = max(self.high / self._step, self._lowest)

    def _step_up(self) -> None:
        """`high` was confirmed to keep."""
        self.low, self.high = self.high, None
        if self.low is not None and self.low < self._highest:
            self.high = min(self.low * self._step, self._highest)

    def _rate(self, factor: float) -> str:
        return f"{factor * self._rate_rps:.3g} requests/s"
