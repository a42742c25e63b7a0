"""How requests arrive: rate, burstiness of gaps and of counts, and what a coarse clock hides.

A log whose clock ticks slower than its requests makes gaps look bursty: Mooncake's 3 s tick gives CV 3.03 where
spreading the stamps within the tick gives 1.0. So gaps are judged on spread stamps, counts on raw ones.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from advisor.logs.trace import FloatColumn, IntColumn, Totals, Trace
from advisor.workload.model import Arrivals

DISPERSION_WINDOWS_S = (1, 10, 60)
PEAK_WINDOWS_S = (10, 60)
BURST_GAP_S = 0.010
TICK_SHARE = 0.05  # of gaps that are 0, and of the others that are one tick (ours; equal for Poisson arrivals)
_SPREAD_SEED = 0  # as of every validation of the same plan
CLOCK_S = 1e-6  # gaps are compared at this resolution


def measure_arrivals(
    arrival_s: FloatColumn, rng: np.random.Generator, totals: Totals | None = None
) -> Arrivals:
    """Everything about arrival times, seconds; NaN stamps are left out. `rng` places stamps within the tick.

    The rate without any stamps is that of the log's totals.
    """
    stamps = np.sort(arrival_s[np.isfinite(arrival_s)])
    gaps = np.diff(stamps)
    tick_s = find_tick(gaps)
    spread = spread_gaps(stamps, tick_s, rng)
    hides_bursts = tick_s is not None and tick_s > BURST_GAP_S
    return Arrivals(
        rate_rps=len(stamps) / float(stamps[-1] - stamps[0]) if np.any(gaps > 0) else _rate(stamps, totals),
        cv=variation(gaps),
        cv_spread=variation(spread),
        tick_s=tick_s,
        dispersion={str(w): dispersion(*filled_windows(stamps, w)) for w in DISPERSION_WINDOWS_S},
        peak_rps={str(w): peak_rate(stamps, w) for w in PEAK_WINDOWS_S},
        gamma_shape=gamma_shape(spread),
        on_off_share=float(np.mean(gaps < BURST_GAP_S)) if len(gaps) and not hides_bursts else None,
    )


def _rate(stamps: FloatColumn, totals: Totals | None) -> float | None:
    if len(stamps) or totals is None or totals.requests is None or not totals.span_s:
        return None
    return totals.requests / totals.span_s


def find_tick(gaps: FloatColumn) -> float | None:
    """The clock tick, seconds: the most common positive gap, where many stamps are equal; else None.

    The share of equal stamps and that of one-tick gaps must both reach `TICK_SHARE`: requests that a client
    sends together on a fine clock are not a tick.
    """
    steps = np.rint(gaps / CLOCK_S).astype(np.int64)
    positive = steps[steps > 0]
    if len(positive) == 0 or np.mean(steps == 0) < TICK_SHARE:
        return None
    values, counts = np.unique(positive, return_counts=True)
    best = int(counts.argmax())
    return float(values[best] * CLOCK_S) if counts[best] >= TICK_SHARE * len(positive) else None


def spread_gaps(stamps: FloatColumn, tick_s: float | None, rng: np.random.Generator) -> FloatColumn:
    """Sorted gaps after every stamp is placed uniformly at random within its tick."""
    if tick_s is None:
        return np.diff(stamps)
    return np.diff(np.sort(stamps + rng.uniform(0.0, tick_s, len(stamps))))


def variation(gaps: FloatColumn) -> float | None:
    """Coefficient of variation: population std over mean. None with fewer than two gaps or no time between."""
    return float(gaps.std() / gaps.mean()) if len(gaps) >= 2 and gaps.mean() > 0 else None


def window_counts(stamps: FloatColumn, window_s: float) -> FloatColumn:
    """Arrivals in consecutive windows from the first one; the last, partial window is dropped. [windows]"""
    if len(stamps) == 0:
        return np.zeros(0)
    index, windows = _window_of(stamps, window_s)
    return np.bincount(index, minlength=windows).astype(np.float64)


def filled_windows(stamps: FloatColumn, window_s: float) -> tuple[FloatColumn, int]:
    """The counts above zero among `window_counts`, and how many windows there are: a log may span years."""
    if len(stamps) == 0:
        return np.zeros(0), 0
    index, windows = _window_of(stamps, window_s)
    return np.unique(index, return_counts=True)[1].astype(np.float64), windows


def spread_trace(trace: Trace) -> tuple[Trace, float | None]:
    """The trace with stamps of one clock tick spread over it, in the same order, and the tick, seconds.

    Equal stamps would be a burst to whoever replays them. The same trace gives the same stamps. None: no tick.
    """
    tick_s = find_tick(np.diff(trace.arrival_s))
    if tick_s is None:
        return trace, None
    within = np.random.default_rng(_SPREAD_SEED).uniform(0.0, tick_s, len(trace))
    arrivals = np.sort(trace.arrival_s + within)
    return replace(trace, arrival_s=arrivals - arrivals[0]), tick_s


def dispersion(counts: FloatColumn, windows: int | None = None) -> float | None:
    """Index of dispersion: variance over mean of window counts. 1 for Poisson; None below two windows.

    `windows` is their number where `counts` has only those above zero.
    """
    windows = len(counts) if windows is None else windows
    if windows < 2 or not counts.any():
        return None
    mean = float(counts.sum()) / windows
    squares = float(((counts - mean) ** 2).sum()) + (windows - len(counts)) * mean**2
    return squares / windows / mean


def peak_rate(stamps: FloatColumn, window_s: float) -> float | None:
    """Highest count of the consecutive windows over their length, requests/s; None without a full window."""
    counts, windows = filled_windows(stamps, window_s)
    return float(counts.max(initial=0.0) / window_s) if windows else None


def _window_of(stamps: FloatColumn, window_s: float) -> tuple[IntColumn, int]:
    """The window of every arrival but those in the last, partial one, and how many there are."""
    since = stamps - stamps[0]
    windows = int(since[-1] // window_s)
    index = (since // window_s).astype(np.int64)
    return index[index < windows], windows


def gamma_shape(gaps: FloatColumn) -> float | None:
    """Maximum-likelihood shape of a gamma distribution of the positive gaps; 1 for Poisson, below 1 for bursts.

    Solves `log k - digamma(k) = log(mean) - mean(log)` by Minka's generalized Newton iteration ("Estimating a
    Gamma distribution", 2002). None with fewer than three positive gaps, or when they are all equal.
    """
    positive = gaps[gaps > 0]
    if len(positive) < 3:
        return None
    skew = float(np.log(positive.mean()) - np.log(positive).mean())
    if skew < 1e-9:
        return None
    shape = (3 - skew + np.sqrt((skew - 3) ** 2 + 24 * skew)) / (12 * skew)
    for _ in range(20):
        digamma, trigamma = _digamma(float(shape))
        shape = 1 / (1 / shape + (np.log(shape) - digamma - skew) / (shape**2 * (1 / shape - trigamma)))
    return float(shape)


def _digamma(x: float) -> tuple[float, float]:
    """Digamma and its derivative for x > 0 (Abramowitz and Stegun 6.3.5, 6.3.18, 6.4.12), to 1e-10.

    scipy has both; importing it takes longer than all else that is measured of a small log.
    """
    first = second = 0.0
    while x < 8:
        first -= 1 / x
        second += 1 / x**2
        x += 1
    inverse = 1 / x**2
    first += math.log(x) - 1 / (2 * x) - inverse * (1 / 12 - inverse * (1 / 120 - inverse / 252))
    second += (1 / x) * (
        1 + 1 / (2 * x) + inverse * (1 / 6 - inverse * (1 / 30 - inverse * (1 / 42 - inverse / 30)))
    )
    return first, second
