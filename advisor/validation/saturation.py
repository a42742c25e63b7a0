"""Whether a run could have gone on: requests in flight that keep growing say no, whatever the attainment says.

The rule: in the last third of the run there are on average over 20 % more requests in flight than in the middle
third, and a line through both thirds rises with 95 % confidence. The first third is left to the fleet to fill
up. Pure functions of the records.

A queue's length depends on its length a moment before, so the ordinary interval of a slope is far too narrow.
The slope is held against what chance does to a fleet that is exactly full, whose queue walks at random: the
mean step from cell to cell with its t interval, widened for steps between averages (Working 1960, Econometrica
28). A fleet with room to spare wanders less, so it is called growing more rarely still. Where more requests
arrived in the last third than in the middle one, only growth beyond that counts (ours): a log that gets busier
is not a fleet that falls behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from advisor.logs.trace import FloatColumn
from advisor.validation.record import Record

GROWTH = 0.20  # of requests in flight, last third over middle third
CONFIDENCE = 0.95  # that the slope is above zero
LEAST_MORE = 1.0  # requests in flight: less growth than that is no queue (ours)
LEAST_REQUESTS = 30  # under which nothing is said (ours)
CELLS = 30  # of equal length, ten a third (ours)
_OF_AVERAGES = 1.5**0.5  # a sum of steps between averages varies by this more than the steps themselves say


@dataclass(frozen=True, slots=True)
class Saturation:
    """What became of the requests in flight. Null figures: too few requests to say."""

    oversaturated: bool
    middle: float | None  # mean requests in flight, middle third of the arrivals' span
    last: float | None  # the same, last third
    growth: float | None  # last / middle - 1; None also where the middle third is idle
    slope_low: float | None  # one-sided 95 % lower bound of the slope, requests in flight a second
    text: str


def saturation(records: Sequence[Record]) -> Saturation:
    """Judge a run. A request is in flight from when it was due until its attempt ended, or the run did."""
    due = np.array([record.t_due for record in records])
    if len(due) < LEAST_REQUESTS or np.ptp(due) == 0:
        return Saturation(False, None, None, None, None, f"{len(due)} requests are too few to see a queue grow")
    ends = [record.t_done for record in records]
    end_of_run = max((end for end in ends if end is not None), default=np.inf)
    done = np.array([end_of_run if end is None else end for end in ends])
    edges = np.linspace(due.min(), due.max(), CELLS + 1)
    cells = in_flight(due, np.maximum(done, due), edges)
    third = CELLS // 3
    middle, last = float(cells[third : 2 * third].mean()), float(cells[2 * third :].mean())
    _, *arrived = (int(count) for count in np.histogram(due, edges[::third])[0])
    busier = max(1.0, arrived[1] / max(1, arrived[0]))
    slope_low = _slope_low(cells[third:], float(edges[1] - edges[0]))
    grew = last > (1 + GROWTH) * busier * middle and last - middle >= LEAST_MORE
    text = f"{middle:.3g} requests in flight in the middle third, {last:.3g} in the last"
    growth = last / middle - 1 if middle > 0 else None
    return Saturation(grew and slope_low > 0, middle, last, growth, slope_low, text)


def in_flight(start: FloatColumn, end: FloatColumn, edges: FloatColumn) -> FloatColumn:
    """Mean number of intervals [start, end] that cover a point, between neighbouring edges. [edges - 1]"""
    return np.asarray(np.diff(_past(start, edges) - _past(end, edges)) / np.diff(edges))


def _past(times: FloatColumn, edges: FloatColumn) -> FloatColumn:
    """Sum over the times before each edge of how long before it they are. [edges]"""
    ordered = np.sort(times)
    before = np.searchsorted(ordered, edges)
    return np.asarray(before * edges - np.concatenate(([0.0], np.cumsum(ordered)))[before])


def _slope_low(cells: FloatColumn, cell_s: float) -> float:
    """One-sided lower bound of the slope, requests in flight a second, were the rest a random walk."""
    steps = np.diff(cells)
    error = float(steps.std(ddof=1)) * _OF_AVERAGES / float(np.sqrt(len(steps)))
    return (float(steps.mean()) - float(stdtrit(len(steps) - 1, CONFIDENCE)) * error) / cell_s
