"""Goodput: the highest rate of the same traffic at which a deployment keeps its objective.

Owns the objectives, what ends a hopeless simulation early, and the search over rates. Never simulates: it calls
what does, and counts the requests that took. Assumes that what fails at one rate fails at every higher one,
and checks it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from advisor.simulation.load import Load
from advisor.simulation.outcome import Outcome
from advisor.simulation.rising import RisingTtft
from advisor.simulation.simulate import Watch
from advisor.simulation.slo import Slo

TOLERANCE = 0.025  # of the rate (Sarathi-Serve and DistServe search to this)
FIRST_STEP = 1.25  # from a predicted rate to the next (ours); squared every time, up to MOST_STEP
MOST_STEP = 2.0
CHECKED_BELOW = 0.9  # of the rate found, where the objective must be kept too (ours)
SCHEDULING_DELAY_S = 2.0  # Sarathi-Serve, section 5: a load is sustained while the median delay is no longer

Run = Callable[[Load, Watch], Outcome]
Scale = Callable[[Load, float], Load]


class Objective(Protocol):
    """What a deployment must keep at a rate."""

    def kept(self, outcome: Outcome) -> bool:
        """Whether it was kept. Only asked where the simulation was not stopped early: that is a no."""
        ...

    def watch(self, requests: int) -> Watch:
        """What stops a simulation of so many requests once it cannot be kept any more."""
        ...


@dataclass(frozen=True, slots=True)
class Attainment:
    """Enough requests keep every latency target, dropped ones count as misses (DistServe; joint)."""

    slo: Slo

    def kept(self, outcome: Outcome) -> bool:
        """Whether the share of all requests that kept every target is the one asked for."""
        return outcome.attainment(self.slo) >= self.slo.attainment

    def watch(self, requests: int) -> MissBudget:
        """Stops at the first miss too many."""
        return MissBudget(self.slo, requests)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The pooled P99 of gaps between tokens and the median queue delay are short enough (Sarathi-Serve, 5).

    Dropped requests count as delayed without end. Seconds.
    """

    tbt_s: float
    delay_s: float = SCHEDULING_DELAY_S

    def kept(self, outcome: Outcome) -> bool:
        """Whether both are within their limits."""
        delay_s = np.where(outcome.served, outcome.queued_s, np.inf)
        if len(delay_s) == 0 or np.sort(delay_s)[len(delay_s) // 2] > self.delay_s:
            return False
        return (outcome.gap_quantile(0.99) or 0.0) <= self.tbt_s

    def watch(self, requests: int) -> RisingTtft:
        """Stops where requests wait longer and longer; in a short run a little before the median says so."""
        return RisingTtft(requests, self.delay_s)


class MissBudget:
    """Stops a simulation at the first miss that no later request can make good: exact, and free.

    `left`: further misses that the attainment asked for allows, of all requests of the load.
    """

    __slots__ = ("_tbt_s", "_tpot_s", "_ttft_s", "left")

    def __init__(self, slo: Slo, requests: int) -> None:
        self._ttft_s = math.inf if slo.ttft_s is None else slo.ttft_s
        self._tpot_s = math.inf if slo.tpot_s is None else slo.tpot_s
        self._tbt_s = math.inf if slo.tbt_s is None else slo.tbt_s
        # As the share is judged, in floating point: 0.07 * 100 is more than 7, and 7 of 100 are enough.
        needed = max(0, int(slo.attainment * requests) - 1)
        while needed < requests and needed / requests < slo.attainment:
            needed += 1
        self.left = requests - needed

    def ended(self, *, ttft_s: float, tpot_s: float, max_gap_s: float) -> bool:
        """A request was served (seconds; NaN where it has no gap). True to stop here."""
        if ttft_s > self._ttft_s or tpot_s > self._tpot_s or max_gap_s > self._tbt_s:
            self.left -= 1
        return self.left < 0

    def dropped(self) -> bool:
        """A request was not served. True to stop here."""
        self.left -= 1
        return self.left < 0


@dataclass(frozen=True, slots=True)
class Probe:
    """One simulation of the search. `simulated`: its requests, or those that ended before it was stopped."""

    factor: float  # of the rate of the load
    rate_rps: float
    requests: int
    simulated: int
    kept: bool
    outcome: Outcome = field(repr=False)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Between `low_rps`, the highest rate that kept the objective, and `high_rps`, the lowest that did not.

    `low_rps` is 0 where none kept it, `high_rps` None where all did. `below_rps`: a rate under `low_rps` that
    did not keep it, where the check found one: goodput then is no single rate, and a plan should say so.
    """

    low_rps: float
    high_rps: float | None
    below_rps: float | None
    probes: tuple[Probe, ...]

    @property
    def simulated(self) -> int:
        """Requests simulated by all probes."""
        return sum(probe.simulated for probe in self.probes)

    @property
    def best(self) -> Probe | None:
        """The probe at `low_rps`; None where none kept the objective."""
        return max((probe for probe in self.probes if probe.kept), key=lambda probe: probe.factor, default=None)


def goodput(
    run: Run,
    load: Load,
    objective: Objective,
    *,
    scale: Scale,
    lowest: float,
    highest: float,
    start: float = 1.0,
    tolerance: float = TOLERANCE,
    check: bool = True,
) -> Goodput:
    """The highest rate, between `lowest` and `highest` times that of the load, that keeps the objective.

    Steps away from `start`, a predicted factor, until one rate keeps it and one does not, then halves the
    interval of log rates until its ends are within `tolerance`. `scale` makes the load of each factor and must
    nest, so that a lower rate is the same traffic with less in it. `check` simulates one rate more, a tenth
    below the one found.
    """
    search = _Search(run, load, objective, scale)
    low, high = search.bracket(min(max(start, lowest), highest), lowest, highest)
    while low is not None and high is not None and high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if search.keeps(middle) else (low, middle)
    below = None
    if check and low is not None and low * CHECKED_BELOW >= lowest:
        below = None if search.keeps(low * CHECKED_BELOW) else low * CHECKED_BELOW
    rate = search.rate_rps
    return Goodput(
        low_rps=0.0 if low is None else low * rate,
        high_rps=None if high is None else high * rate,
        below_rps=None if below is None else below * rate,
        probes=tuple(search.probes),
    )


def throughput(run: Run, load: Load) -> tuple[float, Outcome]:
    """Requests served a second where all are there at once, in their order, and what became of them.

    The objective without latency targets: nothing waits for an arrival, so no queue is assumed or bounded.
    """
    every = replace(load, arrival_s=np.zeros(len(load)), think_s=np.where(load.parent >= 0, 0.0, load.think_s))
    outcome = run(every, Patient())
    return (float(outcome.served.sum()) / outcome.end_s if outcome.end_s > 0 else 0.0), outcome


class Patient:
    """Never stops a simulation."""

    __slots__ = ()

    def ended(self, *, ttft_s: float, tpot_s: float, max_gap_s: float) -> bool:  # noqa: ARG002 - as a Watch is called
        """A request was served."""
        return False

    def dropped(self) -> bool:
        """A request was not served."""
        return False


class _Counted:
    """Counts the requests that end on their way to a watch."""

    __slots__ = ("_inner", "ends")

    def __init__(self, inner: Watch) -> None:
        self._inner = inner
        self.ends = 0

    def ended(self, *, ttft_s: float, tpot_s: float, max_gap_s: float) -> bool:
        self.ends += 1
        return self._inner.ended(ttft_s=ttft_s, tpot_s=tpot_s, max_gap_s=max_gap_s)

    def dropped(self) -> bool:
        self.ends += 1
        return self._inner.dropped()


class _Search:
    """The rates tried so far."""

    def __init__(self, run: Run, load: Load, objective: Objective, scale: Scale) -> None:
        self._run, self._load, self._objective, self._scale = run, load, objective, scale
        self.rate_rps = len(load) / load.span_s if load.span_s > 0 else 0.0
        self.probes: list[Probe] = []

    def keeps(self, factor: float) -> bool:
        """Whether the objective is kept at this factor of the rate."""
        scaled = self._scale(self._load, factor)
        watch = _Counted(self._objective.watch(len(scaled)))
        outcome = self._run(scaled, watch)
        kept = not outcome.stopped_early and self._objective.kept(outcome)
        simulated = watch.ends if outcome.stopped_early else len(scaled)
        self.probes.append(Probe(factor, factor * self.rate_rps, len(scaled), simulated, kept, outcome))
        return kept

    def bracket(self, start: float, lowest: float, highest: float) -> tuple[float | None, float | None]:
        """A factor that keeps the objective and a higher one that does not; None where the limits have none."""
        kept = self.keeps(start)
        factor, step, limit = start, FIRST_STEP, highest if kept else lowest
        while factor != limit:
            before, factor = factor, (min(factor * step, highest) if kept else max(factor / step, lowest))
            if self.keeps(factor) != kept:
                return (before, factor) if kept else (factor, before)
            step = min(step * step, MOST_STEP)
        return (factor, None) if kept else (None, factor)
