"""Intervals from stored outcomes: how far two plans are apart, beyond the noise of one log.

Requests near in time fail together, hence whole blocks of time are drawn again, the same ones for both plans.
Circular blocks (Politis and Romano 1992): of one length, from any point, round the end, so that every request
is drawn as often as any other; moving blocks (Künsch 1989) leave out the ends, stationary ones need longer logs
for the same accuracy (Lahiri 1999). Never simulates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from advisor.logs.trace import BoolColumn, FloatColumn, IntColumn

RESAMPLES = 2000
COVERAGE = 0.95
LEAST_BLOCK_S = 10.0  # however many requests that holds
USUAL_BLOCK_S = 60.0  # where `LEAST_BLOCKS` of them were simulated; of dense traffic that is too much (ours)
BLOCKS_OF_E2E = 3.0  # times the P99 of E2E that a block is long at least
LEAST_BLOCKS = 20  # under which there is no interval
MOST_BLOCKS = 200  # longer blocks from there on, at no loss (ours)
ROUNDING = 1e-9  # of a block: so that a span holds twenty of its twentieth parts
STARTS = 8  # points within a block's length where blocks may begin (ours)


@dataclass(frozen=True, slots=True)
class Interval:
    """`middle` as measured; `low` and `high` hold the true value with probability `COVERAGE`.

    Where the log does not give them they are None, and `why` says so. `blocks` of `block_s` seconds.
    """

    middle: float
    low: float | None
    high: float | None
    blocks: int
    block_s: float
    why: str | None = None

    def excludes(self, value: float) -> bool:
        """Whether the difference from `value` is beyond the noise; never without an interval."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Graded:
    """A complete simulation at one rate: when requests arrived, and which kept their targets. [requests]"""

    rate_rps: float
    arrival_s: FloatColumn
    kept: BoolColumn

    @property
    def span_s(self) -> float:
        """From the first arrival to the last, seconds."""
        return float(np.ptp(self.arrival_s)) if len(self.arrival_s) else 0.0


def block_seconds(span_s: float, e2e_p99_s: float) -> float:
    """How long blocks of `span_s` seconds must be: outcomes further apart hardly depend on each other.

    `e2e_p99_s` is that of the slowest plan. Shorter than usual, never too short, where that gives an interval.
    """
    return max(LEAST_BLOCK_S, min(USUAL_BLOCK_S, span_s / LEAST_BLOCKS), BLOCKS_OF_E2E * e2e_p99_s)


def enough_seconds(e2e_p99_s: float) -> float:
    """How much must be simulated for an interval from blocks of the usual length, a block to spare."""
    return (LEAST_BLOCKS + 1) * block_seconds(math.inf, e2e_p99_s)


def too_short(span_s: float, block_s: float) -> str | None:
    """Why so many seconds give no interval; None where they do."""
    blocks = _blocks(span_s, block_s)
    if blocks >= LEAST_BLOCKS:
        return None
    return f"{blocks} blocks of {block_s:.0f} s were simulated; an interval needs {LEAST_BLOCKS}"


def _blocks(span_s: float, block_s: float) -> int:
    return int(span_s / block_s + ROUNDING)


def interval_of_difference(
    arrival_s: FloatColumn, first: BoolColumn, second: BoolColumn, block_s: float, seed: int
) -> Interval:
    """Attainment of the first plan minus that of the second, on the same requests. [requests]"""
    draws = _Draws.of(arrival_s, block_s, seed)
    middle = float(first.mean() - second.mean())
    if draws.why is not None:
        return draws.interval(middle, None)
    of_first, of_second, requests = (
        draws.sums(arrival_s, each) for each in (first, second, np.ones(len(first)))
    )
    return draws.interval(middle, (of_first - of_second) / requests)


def interval_of_goodputs(
    first: Sequence[Graded], second: Sequence[Graded], attainment: float, block_s: float, seed: int
) -> Interval:
    """Goodput of the first plan over that of the second.

    Each plan was simulated at two rates at least, on either side of its goodput, with loads of one span.
    Goodput is where the line through attainments, over the log of the rate, falls below `attainment`. Of a
    resample beyond the rates only that is known: each end of the interval takes the worse case, and is None
    where too many are unknown.
    """
    every = np.concatenate([graded.arrival_s for graded in (*first, *second)])
    draws = _Draws.of(np.array([every.min(), every.max()]), block_s, seed)
    measured = [
        _crossings(plan, attainment, np.array([[one.kept.mean() for one in _by_rate(plan)]]))
        for plan in (first, second)
    ]
    middle = float((measured[0] / measured[1])[0])
    if draws.why is not None:
        return draws.interval(middle, None)
    (low, high), (least, most) = (
        _ends(plan, attainment, draws.attainments(_by_rate(plan))) for plan in (first, second)
    )
    tail = _tail(draws.blocks)
    smallest = float(np.quantile(low / most, tail, method="lower"))
    above = np.divide(high, least, out=np.full(len(high), np.inf), where=least > 0)
    largest = float(np.quantile(above, 1 - tail, method="higher"))
    if not np.isfinite(middle) or (smallest <= 0 and not np.isfinite(largest)):
        return draws.without(middle, "in too many resamples a goodput is beyond the rates simulated")
    ends = smallest if smallest > 0 else None, largest if np.isfinite(largest) else None
    return Interval(middle, *ends, draws.blocks, draws.cell_s * STARTS)


def _tail(blocks: int) -> float:
    """The quantile at either end: a little further out than the coverage says, for as many independent blocks.

    The expanded percentile interval of Hesterberg (2015): a resample varies less than the log by
    (n - 1) / n, and Student's t has longer tails (its quantile: Abramowitz and Stegun 26.7.5).
    """
    z = NormalDist().inv_cdf((1 + COVERAGE) / 2)
    n = blocks - 1
    t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    return NormalDist().cdf(-t * math.sqrt(blocks / n))


def _by_rate(plan: Sequence[Graded]) -> list[Graded]:
    return sorted(plan, key=lambda graded: graded.rate_rps)


def _crossings(plan: Sequence[Graded], attainment: float, shares: FloatColumn) -> FloatColumn:
    """The rate where each row of shares falls below the attainment; NaN beyond the rates. [rows, rates]"""
    log_rate = np.log([graded.rate_rps for graded in _by_rate(plan)])
    falling = np.minimum.accumulate(shares, axis=1)
    after = np.argmax(falling < attainment, axis=1)  # 0: at once, or never
    row, before = np.arange(len(shares)), np.maximum(after - 1, 0)
    high, low = falling[row, before], falling[row, after]
    weight = np.where(after > 0, (high - attainment) / np.where(after > 0, high - low, 1.0), np.nan)
    return np.asarray(np.exp(log_rate[before] + weight * (log_rate[after] - log_rate[before])))


def _ends(plan: Sequence[Graded], attainment: float, shares: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
    """Between which rates the crossing of each row is: twice itself where it is within those simulated."""
    crossing = _crossings(plan, attainment, shares)
    rates = [graded.rate_rps for graded in _by_rate(plan)]
    known, below = np.isfinite(crossing), shares[:, 0] < attainment
    low = np.where(known, crossing, np.where(below, 0.0, rates[-1]))
    high = np.where(known, crossing, np.where(below, rates[0], np.inf))
    return low, high


@dataclass(frozen=True, slots=True)
class _Draws:
    """Which blocks each resample has: the points, of `STARTS` a block, where they begin. [resamples, blocks]"""

    origin_s: float
    cell_s: float
    blocks: int
    begins: IntColumn
    why: str | None = None

    @classmethod
    def of(cls, arrival_s: FloatColumn, block_s: float, seed: int) -> _Draws:
        """For requests from the first of these arrivals to the last."""
        origin_s, span_s = (float(arrival_s.min()), float(np.ptp(arrival_s))) if len(arrival_s) else (0.0, 0.0)
        blocks, why = min(_blocks(span_s, block_s), MOST_BLOCKS), too_short(span_s, block_s)
        if why is not None:
            return cls(origin_s, block_s / STARTS, blocks, np.zeros((0, 0), dtype=np.int64), why)
        begins = np.random.default_rng(seed).integers(blocks * STARTS, size=(RESAMPLES, blocks))
        return cls(origin_s, span_s / blocks / STARTS, blocks, begins)

    def sums(self, arrival_s: FloatColumn, values: FloatColumn | BoolColumn) -> FloatColumn:
        """The sum over the requests of each resample. [requests] -> [resamples]"""
        cells = self.blocks * STARTS
        cell = np.clip((arrival_s - self.origin_s) // self.cell_s, 0, cells - 1).astype(np.int64)
        total = np.cumsum(np.concatenate(([0.0], np.tile(np.bincount(cell, values, cells), 2))))
        of_block = (total[STARTS:] - total[:-STARTS])[:cells]
        return np.asarray(of_block[self.begins].sum(axis=1))

    def attainments(self, plan: Sequence[Graded]) -> FloatColumn:
        """The share kept at each rate in each resample, 1 where it has no request. [resamples, rates]"""
        kept = [self.sums(one.arrival_s, one.kept) for one in plan]
        requests = [self.sums(one.arrival_s, np.ones(len(one.kept))) for one in plan]
        return np.stack(
            [np.where(n > 0, k / np.maximum(n, 1), 1.0) for k, n in zip(kept, requests, strict=True)], axis=1
        )

    def interval(self, middle: float, resampled: FloatColumn | None) -> Interval:
        """The percentile interval of resampled values; without them the reason why there is none."""
        if resampled is None:
            return self.without(middle, self.why or "")
        tail = _tail(self.blocks)
        low, high = np.quantile(resampled, (tail, 1 - tail))
        return Interval(middle, float(low), float(high), self.blocks, self.cell_s * STARTS)

    def without(self, middle: float, why: str) -> Interval:
        """No interval, and why."""
        return Interval(middle, None, None, self.blocks, self.cell_s * STARTS, why)
