"""The backtest: the configuration that wrote the log, simulated on that log, beside what the log measured.

Says how far predictions can be trusted on this very service. Where they are off, two factors, one for the time
that prefill takes and one for decode, are fitted on the first half of the log and checked on the second. Never
touches the plan: who calls it decides whether to plan with the factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.advice.search.hardware import Hardware
from advisor.advice.search.judge import simulate_layout
from advisor.advice.search.layout import Layout
from advisor.logs.trace import BoolColumn, FloatColumn, IntColumn, Trace
from advisor.simulation.from_trace import usable
from advisor.simulation.load import Load
from advisor.simulation.outcome import Outcome

OFF = 0.25  # relative error beyond which a prediction is called off (ours)
QUANTILES = (50, 90, 99)
FITTED = (("ttft_s", "prefill"), ("tpot_s", "decode"))  # the metric that each factor answers for
FIT_STEPS = 12
FIT_DAMPING = 0.8  # exponent of a correction: a queue makes TTFT move by more than the prefill time does
FIT_ENOUGH = 0.01
MOST_FACTOR = 10.0
LEAST_REQUESTS = 40  # with logged latencies; a half of fewer tells nothing (ours)


@dataclass(frozen=True, slots=True)
class Compared:
    """One percentile of one metric, or the hit rate: seconds, or a share of prompt tokens."""

    metric: str
    quantile: int | None
    predicted: float
    logged: float

    @property
    def error(self) -> float:
        """Predicted over logged, less 1."""
        return self.predicted / self.logged - 1


@dataclass(frozen=True, slots=True)
class Backtest:
    """`whole` log, and its second half `before` and `after` the factors that the first half gave."""

    layout: str
    requests: int
    whole: tuple[Compared, ...]
    before: tuple[Compared, ...]
    after: tuple[Compared, ...]
    prefill_factor: float
    decode_factor: float

    @property
    def off(self) -> bool:
        """Whether a latency or the hit rate is further off than can be called a prediction."""
        return any(abs(one.error) > OFF for one in self.whole)

    @property
    def error_after(self) -> float:
        """The largest relative error on the second half, with the factors."""
        return max((abs(one.error) for one in self.after), default=0.0)

    @property
    def helps(self) -> bool:
        """Whether the factors make the second half better."""
        return _typical(self.after) < _typical(self.before)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the log measured of the requests of a Load. Columns: [requests], NaN or -1 where it did not."""

    ttft_s: FloatColumn
    tpot_s: FloatColumn
    e2e_s: FloatColumn
    cached_tokens: IntColumn

    @classmethod
    def of(cls, trace: Trace) -> Measured | None:
        """For the requests that a Load of the trace has; None where too few have a latency."""
        rows = np.flatnonzero(usable(trace))
        nothing = np.full(len(trace), np.nan)
        ttft_s = (nothing if trace.ttft_s is None else trace.ttft_s)[rows]
        e2e_s = (nothing if trace.e2e_s is None else trace.e2e_s)[rows]
        cached = np.full(len(rows), -1) if trace.cached_tokens is None else trace.cached_tokens[rows]
        if np.isfinite(ttft_s).sum() < LEAST_REQUESTS and np.isfinite(e2e_s).sum() < LEAST_REQUESTS:
            return None
        gaps = trace.output_tokens[rows] - 1
        tpot_s = np.where(gaps > 0, (e2e_s - ttft_s) / np.maximum(gaps, 1), np.nan)
        return cls(ttft_s, tpot_s, e2e_s, cached)


def backtest(load: Load, measured: Measured, layout: Layout, hardware: Hardware) -> Backtest:
    """Simulate `layout` on the log that it wrote, and compare."""
    half = load.arrival_s <= np.median(load.arrival_s)
    outcome = simulate_layout(load, layout, hardware)
    prefill, decode = _fit(load, measured, layout, hardware, half, outcome)
    fitted = simulate_layout(load, layout, hardware.moved(prefill=prefill, decode=decode))
    return Backtest(
        layout=layout.name,
        requests=len(load),
        whole=compare(load, outcome, measured, np.ones(len(load), dtype=np.bool_)),
        before=compare(load, outcome, measured, ~half),
        after=compare(load, fitted, measured, ~half),
        prefill_factor=prefill,
        decode_factor=decode,
    )


def compare(load: Load, outcome: Outcome, measured: Measured, rows: BoolColumn) -> tuple[Compared, ...]:
    """Percentiles of what was predicted and logged for some requests, of those that have both."""
    found = []
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        predicted, logged = getattr(outcome, metric), getattr(measured, metric)
        both = rows & np.isfinite(predicted) & np.isfinite(logged)
        if both.sum() < LEAST_REQUESTS // 2:
            continue
        for q in QUANTILES:
            one, other = (float(np.percentile(values[both], q)) for values in (predicted, logged))
            if other > 0:
                found.append(Compared(metric, q, one, other))
    known = rows & outcome.served & (measured.cached_tokens >= 0)
    prompt = int(load.prompt_tokens[known].sum())
    if prompt and int(measured.cached_tokens[known].sum()):
        cached = (
            int(column[known].sum()) / prompt for column in (outcome.cached_tokens, measured.cached_tokens)
        )
        found.append(Compared("hit_rate_tokens", None, *cached))
    return tuple(found)


def _fit(
    load: Load, measured: Measured, layout: Layout, hardware: Hardware, half: BoolColumn, outcome: Outcome
) -> tuple[float, float]:
    """Factors by which medians of the first half agree: each step corrects by what is left, damped."""
    factors = {"prefill": 1.0, "decode": 1.0}
    for _ in range(FIT_STEPS):
        wrong = {name: _median_ratio(outcome, measured, metric, half) for metric, name in FITTED}
        if all(abs(ratio - 1) < FIT_ENOUGH for ratio in wrong.values()):
            break
        for name, ratio in wrong.items():
            factors[name] = min(MOST_FACTOR, max(1 / MOST_FACTOR, factors[name] * ratio**FIT_DAMPING))
        outcome = simulate_layout(load, layout, hardware.moved(**factors))
    return factors["prefill"], factors["decode"]


def _median_ratio(outcome: Outcome, measured: Measured, metric: str, rows: BoolColumn) -> float:
    """Logged over predicted median of some requests; 1 where nothing is known."""
    predicted, logged = getattr(outcome, metric), getattr(measured, metric)
    both = rows & np.isfinite(predicted) & np.isfinite(logged)
    if both.sum() < LEAST_REQUESTS // 2:
        return 1.0
    one = float(np.median(predicted[both]))
    return float(np.median(logged[both])) / one if one > 0 else 1.0


def _typical(compared: Sequence[Compared]) -> float:
    """Median absolute error of what was compared."""
    return float(np.median([abs(one.error) for one in compared])) if compared else 0.0
