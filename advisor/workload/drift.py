"""Drift inside a log: windows, stretches of one arrival rate, day and night, idle time.

Windows are consecutive from the first arrival; the last, partial one is dropped. Hits are those of an unlimited
cache that has seen all of the log before, so that the first windows of a log are cold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.logs.trace import BoolColumn, FloatColumn, IntColumn, Trace
from advisor.workload.model import Drift, Regime, TrafficWindow
from advisor.workload.runs import find_runs, previous_use
from advisor.workload.sharing import content_known

HOUR_S = 3600.0
WIDTHS_S = (HOUR_S, 1800.0, 1200.0, 900.0, 600.0, 300.0, 120.0, 60.0, 30.0, 10.0, 5.0, 2.0, 1.0)
FEWEST_WINDOWS = 24
TICKS_PER_WINDOW = 10  # shorter windows count the clock's ticks, not the traffic (ours)
FEWEST_IN_REGIME = 3  # windows; a shorter stretch is a burst (ours)
CHANGE = 0.25  # least difference of neighbouring regimes; ours, as in rule 12: less changes no plan
TRIMMED = 0.90  # of neighbouring windows, to estimate the noise without the changes
TRIMMED_MEAN = 0.6230  # mean of a chi-squared variable of one degree below its 90 % quantile

MEDIAN = 0.4549  # of a chi-squared variable of one degree


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests with an arrival time, which windows sum up. NaN where unknown. Columns: [requests]."""

    since_s: FloatColumn  # after the first arrival
    prompt: FloatColumn
    output: FloatColumn
    hits: FloatColumn  # prompt tokens that hit

    def take(self, rows: BoolColumn | IntColumn) -> Requests:
        """Only the given requests."""
        return Requests(self.since_s[rows], self.prompt[rows], self.output[rows], self.hits[rows])


def requests_of(trace: Trace, hit_tokens: FloatColumn | None) -> Requests:
    """The requests of a Trace. `hit_tokens` is NaN where the content of a prompt is unknown; None: all are."""
    rows = np.isfinite(trace.arrival_s)
    arrival_s = trace.arrival_s[rows]
    hits = np.full(len(trace), np.nan) if hit_tokens is None else hit_tokens
    return Requests(
        arrival_s - arrival_s.min(initial=np.inf),
        _known(trace.prompt_tokens[rows]),
        _known(trace.output_tokens[rows]),
        hits[rows],
    )


def hit_tokens(trace: Trace, uncached_tokens: IntColumn | None) -> FloatColumn | None:
    """Prompt tokens of each request that hit, NaN where unknown; None where all are. [requests]

    `uncached_tokens` are those of the requests with known content and length, as `measure_sharing` gives them.
    """
    if uncached_tokens is None:
        return None
    rows = content_known(trace) & (trace.prompt_tokens >= 0)
    hits = np.full(len(trace), np.nan)
    hits[rows] = trace.prompt_tokens[rows] - uncached_tokens
    return hits


def hit_tokens_from_cold(trace: Trace, every_s: float | None) -> FloatColumn | None:
    """The same for a cache that starts empty every so many seconds; None: only once. None without block ids.

    For a fair comparison with a shorter log, whose cache had no time to fill.
    """
    if trace.blocks is None:
        return None
    runs = find_runs(trace.blocks, trace.prompt_tokens)
    seen = runs.seen
    if every_s and len(runs):
        piece = np.nan_to_num(trace.arrival_s // every_s).astype(np.int64)[runs.row]
        seen = previous_use(piece * (int(runs.node.max()) + 1) + runs.node) >= 0
    hits = np.bincount(runs.row[seen], weights=runs.tokens[seen], minlength=len(trace))
    known = content_known(trace) & (trace.prompt_tokens >= 0)
    return np.where(known, hits, np.nan)


def measure_drift(requests: Requests, tick_s: float | None) -> Drift | None:
    """Everything about drift; None where the log has no times or is too short for `FEWEST_WINDOWS` windows."""
    width = window_width(requests.since_s, tick_s)
    if width is None:
        return None
    windows = traffic_windows(requests, width)
    counts = np.array([window.requests for window in windows], dtype=np.float64)
    return Drift(
        window_s=width,
        windows=windows,
        regimes=find_regimes(counts, width),
        idle_share=float(np.mean(counts == 0)),
        day_night_ratio=day_night_ratio(counts) if width == HOUR_S else None,
    )


def window_width(since_s: FloatColumn, tick_s: float | None) -> float | None:
    """An hour, or the largest even part of one that gives `FEWEST_WINDOWS` windows; None where none does."""
    span = float(since_s.max(initial=0.0))
    return next(
        (w for w in WIDTHS_S if span >= FEWEST_WINDOWS * w and w >= TICKS_PER_WINDOW * (tick_s or 0.0)), None
    )


def traffic_windows(requests: Requests, width_s: float) -> tuple[TrafficWindow, ...]:
    """The full windows of `width_s` seconds, in order."""
    number = int(requests.since_s.max(initial=0.0) // width_s)
    inside = requests.since_s < number * width_s
    window = (requests.since_s[inside] // width_s).astype(np.int64)
    within = requests.take(inside)
    counts = np.bincount(window, minlength=number)
    prompt, output = _means(window, within.prompt, number), _means(window, within.output, number)
    known = np.isfinite(within.hits) & np.isfinite(within.prompt)
    tokens = np.bincount(window[known], weights=within.prompt[known], minlength=number)
    hits = np.bincount(window[known], weights=within.hits[known], minlength=number)
    return tuple(
        TrafficWindow(
            start_s=index * width_s,
            requests=int(counts[index]),
            rate_rps=float(counts[index] / width_s),
            prompt_mean=_finite(prompt[index]),
            output_mean=_finite(output[index]),
            hit_rate_tokens=float(hits[index] / tokens[index]) if tokens[index] else None,
        )
        for index in range(number)
    )


def joined(windows: Sequence[TrafficWindow], width_s: float) -> TrafficWindow:
    """Neighbouring windows of `width_s` seconds as one. Means are weighted by all requests of a window."""
    requests = sum(window.requests for window in windows)
    prompts = [(w.prompt_mean, float(w.requests)) for w in windows]
    tokens = [(w.hit_rate_tokens, w.requests * (w.prompt_mean or 0.0)) for w in windows]
    return TrafficWindow(
        start_s=windows[0].start_s,
        requests=requests,
        rate_rps=requests / (len(windows) * width_s),
        prompt_mean=_weighted(prompts),
        output_mean=_weighted([(w.output_mean, float(w.requests)) for w in windows]),
        hit_rate_tokens=_weighted(tokens),
    )


def find_regimes(counts: FloatColumn, width_s: float) -> tuple[Regime, ...]:
    """Stretches of one rate. `counts` are requests in consecutive windows of `width_s` seconds.

    Binary segmentation: a stretch is split where the Poisson deviance falls most, if it falls by more than
    3 log(windows) (the modified BIC of Zhang and Siegmund, 2007) times the noise of the counts over that of a
    Poisson process. Then neighbours whose rates differ by at most `CHANGE` are joined again, the nearest first.
    """
    edges = _joined(counts, _split(counts, 0, len(counts), 3 * math.log(len(counts)) * _noise(counts)))
    return tuple(
        Regime(
            start_s=start * width_s,
            end_s=end * width_s,
            requests=int(counts[start:end].sum()),
            rate_rps=float(counts[start:end].mean() / width_s),
        )
        for start, end in itertools.pairwise(edges)
    )


def step_noise(values: Sequence[float], lag: int = 1) -> float:
    """How much a value differs from one window to the next by chance, as a standard deviation; 0 for too few.

    From how far each is off the middle of its two neighbours, in the median: neither a trend, as of day and
    night, nor a few changes of the traffic are noise. What makes requests of a window alike, sessions or
    bursts, is in it. Windows may overlap: neighbours are `lag` places apart.
    """
    column = np.asarray(values)
    if len(column) <= 2 * lag:
        return 0.0
    bends = column[2 * lag :] - 2 * column[lag:-lag] + column[: -2 * lag]
    return math.sqrt(float(np.median(bends**2)) / 6 / MEDIAN)


def day_night_ratio(hourly: FloatColumn) -> float | None:
    """Busiest hour of the day over the quietest, each a mean over the days; None below a day or at zero.

    The day begins with the log: this is a ratio, not a time of day.
    """
    if len(hourly) < 24:
        return None
    hour = np.arange(len(hourly)) % 24
    mean = np.bincount(hour, weights=hourly) / np.bincount(hour)
    return float(mean.max() / mean.min()) if mean.min() > 0 else None


def _known(column: IntColumn) -> FloatColumn:
    return np.where(column >= 0, column, np.nan)


def _means(window: IntColumn, values: FloatColumn, number: int) -> FloatColumn:
    """The mean of the known values of each window; NaN where there is none."""
    known = np.isfinite(values)
    counts = np.bincount(window[known], minlength=number)
    sums = np.bincount(window[known], weights=values[known], minlength=number)
    return np.where(counts > 0, sums / np.maximum(1, counts), np.nan)


def _weighted(values: Sequence[tuple[float | None, float]]) -> float | None:
    """The mean of the known values by their weights; None where these add up to nothing."""
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _noise(counts: FloatColumn) -> float:
    """Variance over mean of the counts from one window to the next, and from pair to pair; at least 1.

    Pairs show what requests that come in sessions add. Changes of rate, being few, are trimmed away; longer
    windows would take day and night for noise.
    """
    return max(
        1.0, _step_variance(counts), _step_variance(counts[: len(counts) // 2 * 2].reshape(-1, 2).sum(axis=1))
    )


def _step_variance(counts: FloatColumn) -> float:
    """Trimmed mean of the squared steps over what they are for a Poisson process."""
    total = counts[1:] + counts[:-1]
    steps = np.sort(np.diff(counts)[total > 0] ** 2 / total[total > 0])
    kept = steps[: max(1, round(TRIMMED * len(steps)))]
    return float(kept.mean()) / TRIMMED_MEAN if len(kept) else 0.0


def _split(counts: FloatColumn, start: int, end: int, penalty: float) -> list[int]:
    """Edges of the stretches of `counts[start:end]`, both ends included."""
    first, last = start + FEWEST_IN_REGIME, end - FEWEST_IN_REGIME
    if first > last:
        return [start, end]
    places = np.arange(first, last + 1)
    sums = np.concatenate(([0.0], np.cumsum(counts[start:end])))
    left, whole = sums[places - start], sums[-1]
    gain = _fit(left, places - start) + _fit(whole - left, end - places) - _fit(whole, end - start)
    best = int(np.argmax(gain))
    if gain[best] <= penalty:
        return [start, end]
    place = int(places[best])
    return [*_split(counts, start, place, penalty), *_split(counts, place, end, penalty)[1:]]


def _fit(total: FloatColumn, windows: IntColumn | int) -> FloatColumn:
    """Twice the Poisson log likelihood at the mean, without what all segmentations share."""
    return 2 * total * np.log(np.where(total > 0, total, 1.0) / windows)


def _joined(counts: FloatColumn, edges: list[int]) -> list[int]:
    """The edges without those between stretches of nearly equal rates."""
    while len(edges) > 2:
        parts = [counts[start:end] for start, end in itertools.pairwise(edges)]
        ratios = [_ratio(*pair) for pair in itertools.pairwise(parts)]
        nearest = int(np.argmin(ratios))
        if ratios[nearest] > 1 + CHANGE:
            break
        edges = [*edges[: nearest + 1], *edges[nearest + 2 :]]
    return edges


def _ratio(one: FloatColumn, other: FloatColumn) -> float:
    """How far two stretches differ, by their means and by their medians: one busy window is no regime."""
    pairs = [(one.mean(), other.mean()), (np.median(one), np.median(other))]
    ratios = [max(pair) / min(pair) if min(pair) > 0 else math.inf for pair in pairs if max(pair) > 0]
    return float(min(ratios, default=1.0))
