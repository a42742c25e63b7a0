"""Judging a layout: its goodput on a load, by simulation, with what it is like at that rate.

One job is one layout on one part of the load; jobs know nothing of each other and run in any process, with the
same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from advisor.advice.search.hardware import Hardware
from advisor.advice.search.layout import Layout
from advisor.logs.trace import FloatColumn
from advisor.simulation.bootstrap import Graded
from advisor.simulation.deployment import Deployment, Fault, Pool, Transport
from advisor.simulation.from_trace import with_assumed_hits
from advisor.simulation.goodput import Attainment, Capacity, Objective, Patient, Scale, goodput, throughput
from advisor.simulation.load import Load
from advisor.simulation.outcome import Outcome
from advisor.simulation.scaling import Window, busiest, scaled, time_scaled
from advisor.simulation.simulate import Turns, Watch, simulate
from advisor.simulation.slo import Slo

LOWEST, HIGHEST = 1 / 64, 64.0  # times the predicted rate: where the search for goodput gives up (ours)
OUTWARD = 1.15  # from a rate to the next while all keep the goal, or none; its powers follow (ours)
MOST_GRADED = 7  # complete simulations of a finalist (ours)
FEWEST_REQUESTS = 50  # of a simulation that still says something of an attainment (ours)
# A part of the load lasts so many seconds at least, and so many times the TTFT target, within a minute (ours).
LEAST_S, LEAST_TTFTS, MOST_LEAST_S = 4.0, 10.0, 60.0
# Far above the log's own rate most requests are copies, and more of them tell no more (ours).
COPIED, MOST_COPIED = 1.5, 3000
FIRST_PAIR = (0.85, 1.2)  # of the predicted rate: an interval needs rates on both sides (ours)
FEWEST_SESSIONS = 50  # with fewer, a rate made of whole sessions is too coarse (ours)


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked of a layout, and of which load. `tbt`: Sarathi-Serve's capacity instead of attainment."""

    slo: Slo
    objective: Literal["goodput", "tbt", "throughput"] = "goodput"
    turns: Turns = "open"
    seed: int = 0
    deadline_s: float | None = None  # of a batch: all of the log, at once; objective `throughput`


@dataclass(frozen=True, slots=True)
class Job:
    """One layout to judge on some requests of the load.

    `requests`: about how many each simulation has, the busiest of the load; 0: all. `length_s`: as many as come
    in so many seconds instead. `start_rps` is the
    predicted goodput; `tolerance` how closely it is found. `graded`: every simulation runs to its end. `slo`,
    `reuse` (the share of requests that share prefixes) and `assumed_hit` are moved for flip points, `turns`
    where turns would overlap.
    """

    layout: Layout
    hardware: Hardware
    requests: int
    start_rps: float
    tolerance: float
    graded: bool = False
    slo: Slo | None = None
    reuse: float = 1.0
    assumed_hit: float | None = None
    turns: Turns | None = None
    length_s: float | None = None


@dataclass(frozen=True, slots=True)
class AtRate:
    """What a layout is like at one rate. Times in seconds, None where no request was served."""

    rate_rps: float
    attainment: float
    ttft_p90_s: float | None
    tpot_p90_s: float | None
    tbt_p99_s: float | None
    hit_rate_tokens: float | None
    e2e_p99_s: float | None
    preemptions: int
    early_turns: float = 0.0  # share of turns sent before the turn before has ended


@dataclass(frozen=True, slots=True)
class Judged:
    """A layout with its goodput, requests/s over all its GPUs: `low_rps` kept the goal, `high_rps` did not.

    `batch_s`: seconds until the last request has ended where all were there at once (objective `throughput`).
    """

    layout: Layout
    low_rps: float
    high_rps: float | None
    below_rps: float | None
    at: AtRate | None
    graded: tuple[Graded, ...]
    simulated: int
    batch_s: float | None = None

    @property
    def per_gpu(self) -> float:
        """Goodput over GPUs, requests/s."""
        return self.low_rps / self.layout.gpus


def judge(job: Job, load: Load, goal: Goal) -> Judged:
    """The goodput of a job's layout; with objective `throughput`, requests/s when all are there at once."""
    load = load if job.reuse == 1.0 else with_reuse(load, job.reuse)
    load = load if job.assumed_hit is None else with_assumed_hits(load, job.assumed_hit)
    goal = replace(goal, slo=job.slo or goal.slo, turns=job.turns or goal.turns)
    if goal.objective == "throughput":
        every = not 0 < job.requests < len(load)
        some = load if every else busiest(load, job.requests / _rate_rps(load))
        rate, outcome = throughput(lambda all_at_once, watch: _run(job, all_at_once, goal, watch), some)
        like, batch_s = figures(rate, outcome, goal.slo), outcome.end_s if rate > 0 else np.inf
        return Judged(job.layout, rate, None, None, like, (), len(some), batch_s)
    part = part_of(load, job.requests, job.start_rps, goal, job.length_s)
    if goal.objective == "goodput" and job.graded:
        return _close_in(job, part, goal)
    objective: Objective = Attainment(goal.slo)
    if goal.objective == "tbt":
        objective = Capacity(goal.slo.gap_s or np.inf)
    start = job.start_rps / _rate_rps(part.load)
    found = goodput(
        lambda some, watch: _run(job, some, goal, watch),
        part.load,
        objective,
        scale=part.scale,
        lowest=min(start, max(start * LOWEST, FEWEST_REQUESTS / max(1.0, part.requests))),
        highest=start * HIGHEST,
        start=start,
        tolerance=job.tolerance,
        check=job.graded,
    )
    best = found.best
    at = None if best is None else figures(best.rate_rps, best.outcome, goal.slo)
    return Judged(job.layout, found.low_rps, found.high_rps, found.below_rps, at, (), found.simulated)


def _close_in(job: Job, part: Part, goal: Goal) -> Judged:
    """The goodput from complete simulations, each at the rate where those before put the attainment wanted.

    They serve for its interval too, so that a plan's last simulations are used twice.
    """
    wanted = goal.slo.attainment
    tried: list[tuple[float, float, Outcome]] = []  # rate, attainment
    rates = [job.start_rps * factor for factor in FIRST_PAIR]
    width, halving = np.inf, False
    while len(tried) < MOST_GRADED:
        rate = rates.pop(0)
        outcome = _at_factor(job, part, goal, rate)
        tried.append((rate, outcome.attainment(goal.slo), outcome))
        tried.sort(key=lambda one: one[0])
        if rates:
            continue
        low = max((one for one in tried if one[1] >= wanted), key=lambda one: one[0], default=None)
        high = min((one for one in tried if one[1] < wanted), key=lambda one: one[0], default=None)
        if low is None or high is None:
            step = OUTWARD ** len(tried)
            rates = [low[0] * step if low is not None else tried[0][0] / step]
            if low is None and rates[0] / _rate_rps(part.load) * part.requests < FEWEST_REQUESTS:
                break
            continue
        if high[0] <= low[0] * (1 + job.tolerance):
            break
        # Attainment falls off a cliff where interpolation does not halve the interval.
        before, width = width, np.log(high[0] / low[0])
        halving |= width > before / 2
        share = 0.5 if halving else (low[1] - wanted) / (low[1] - high[1])
        rate = low[0] * (high[0] / low[0]) ** share
        # Near an end, just far enough from it that the next step can close the interval.
        edge = 1 + 0.9 * job.tolerance
        rates = [min(max(rate, low[0] * edge), high[0] / edge)]
    missed = [one[0] for one in tried if one[1] < wanted and low is not None and one[0] < low[0]]
    return Judged(
        job.layout,
        0.0 if low is None else low[0],
        None if high is None else high[0],
        min(missed, default=None),
        None if low is None else figures(low[0], low[2], goal.slo),
        tuple(Graded(rate, outcome.arrival_s, outcome.kept(goal.slo)) for rate, _, outcome in tried),
        sum(len(outcome) for _, _, outcome in tried),
    )


def at_rate(job: Job, load: Load, goal: Goal, rate_rps: float) -> AtRate:
    """What the layout is like at a rate, however bad."""
    part = part_of(load, job.requests, rate_rps, goal)
    return figures(rate_rps, _at_factor(job, part, goal, rate_rps), goal.slo)


@dataclass(frozen=True, slots=True)
class Part:
    """What a simulation is made of: `scale` makes the traffic of any rate of `load`.

    `requests`: how many that has at the rate of the load.
    """

    load: Load
    scale: Scale
    requests: float


def part_of(load: Load, requests: int, rate_rps: float, goal: Goal, length_s: float | None = None) -> Part:
    """The busiest `length_s` of the load, or the stretch in which about `requests` come; 0: all of it.

    That is long enough for a queue to grow beyond the TTFT target at a rate a tenth too high.
    Where most requests are copies it is cut from the copies, which are at other places of the log at that
    moment: a few requests over and over would not be its traffic.
    """
    copied = load.span_s > 0 and rate_rps * load.span_s > COPIED * len(load)
    if length_s is None:
        some = min(requests, MOST_COPIED) if copied else requests
        least_s = min(MOST_LEAST_S, max(LEAST_S, LEAST_TTFTS * (goal.slo.ttft_s or 0.0)))
        length_s = max(least_s, some / rate_rps) if requests else np.inf
    if length_s >= load.span_s:
        return Part(load, _scale_of(load, goal.seed), len(load))
    if not copied:
        part = busiest(load, length_s)
        return Part(part, _scale_of(part, goal.seed), len(part))
    start_s = float(busiest(load, max(length_s, MOST_LEAST_S)).arrival_s[0])  # mostly one, whatever the rate
    window = Window(start_s, start_s + length_s)
    requests_in = len(load) * length_s / load.span_s
    return Part(load, lambda some, factor: scaled(some, factor, goal.seed, window), requests_in)


def longest_s(load: Load, rate_rps: float) -> float:
    """How long a load at this rate tells anything new: all of it, or until each of its requests has come."""
    return min(load.span_s, COPIED * len(load) / rate_rps)


def with_reuse(load: Load, share: float) -> Load:
    """The load with only a share of its requests sharing prefixes; a smaller share is a subset of a larger."""
    rank = np.random.default_rng(len(load)).permutation(len(load)) / max(1, len(load))
    runs = tuple(own if r < share else () for own, r in zip(load.runs, rank.tolist(), strict=True))
    return replace(load, runs=runs)


def simulate_layout(
    load: Load,
    layout: Layout,
    hardware: Hardware,
    turns: Turns = "open",
    watch: Watch | None = None,
    faults: Sequence[Fault] = (),
) -> Outcome:
    """What becomes of each request of a load under a layout, some of whose instances may die."""
    deployment = Deployment(
        pools=tuple(Pool(pool, hardware.step_time(hardware.size(pool), pool.pp)) for pool in layout.pools),
        router=layout.router,
        transport=Transport(hardware.link_bytes_per_s / hardware.link_factor, hardware.kv_bytes_per_token),
    )
    return simulate(load, deployment, turns=turns, watch=watch, faults=faults)


def _run(job: Job, load: Load, goal: Goal, watch: Watch) -> Outcome:
    return simulate_layout(load, job.layout, job.hardware, goal.turns, watch)


def _at_factor(job: Job, part: Part, goal: Goal, rate_rps: float) -> Outcome:
    """The whole of a part at a rate, nobody watching."""
    factor = rate_rps / _rate_rps(part.load)
    return _run(job, part.scale(part.load, factor), goal, Patient())


def _rate_rps(load: Load) -> float:
    return len(load) / load.span_s if load.span_s > 0 else 1.0


def _scale_of(load: Load, seed: int) -> Scale:
    """Whole sessions come and go with the rate; of few sessions none can go, so times between requests grow.

    They never shrink: a handful of requests all at once is no rate.
    """
    few = len(load) > 0 and int(load.session.max()) + 1 < FEWEST_SESSIONS

    def scale(some: Load, factor: float) -> Load:
        return time_scaled(some, factor) if few and factor < 1 else scaled(some, factor, seed)

    return scale


def figures(rate_rps: float, outcome: Outcome, slo: Slo) -> AtRate:
    """What a layout was like in a simulation at some rate."""
    return AtRate(
        rate_rps,
        outcome.attainment(slo),
        percentile(outcome.ttft_s, 90),
        percentile(outcome.tpot_s, 90),
        outcome.gap_quantile(0.99),
        outcome.hit_rate_tokens,
        percentile(outcome.e2e_s, 99),
        outcome.preemptions,
        outcome.early_turns,
    )


def percentile(values: FloatColumn, q: float) -> float | None:
    """Of the known values; None where none is."""
    known = values[np.isfinite(values)]
    return float(np.percentile(known, q)) if len(known) else None
