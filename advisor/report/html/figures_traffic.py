"""Figures of the traffic: what a cache of some size saves, when requests come, how long they are.

Each gives None where the log does not tell.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from advisor.advice.analysis import Analysis
from advisor.logs.trace import Trace
from advisor.report.grid import Grid
from advisor.report.html.picture import Picture, plain
from advisor.report.html.svg import Ink, draw
from advisor.report.words import count, rate, share
from advisor.units import show_seconds
from advisor.validation.result import Result

CELLS = 120  # of the arrivals
BURST_S = 10.0
BINS = 40  # of a distribution of lengths


def sharing(analysis: Analysis) -> Picture | None:
    """Hit rate over cache size, with the KV cache of the plan marked."""
    curve = analysis.sharing.capacity_curve
    if len(curve) < 2:
        return None
    marks = _kv(analysis)

    def paint(axes: Axes) -> None:
        sizes = [point.tokens for point in curve]
        axes.plot(sizes, [point.hit_rate_tokens * 100 for point in curve], color=Ink.ONE, label="prompt tokens")
        blocks = [point.hit_rate_blocks * 100 for point in curve]
        axes.plot(sizes, blocks, color=Ink.THREE, linestyle="--", linewidth=1.2, label="blocks")
        for (name, tokens), style in zip(marks, ((0, (5, 3)), ":"), strict=False):
            axes.axvline(tokens, color=Ink.TARGET, linestyle=style, linewidth=1.4, label=f"KV of {name}")
        axes.set(xscale="log", xlabel="cache, tokens", ylabel="% found in the cache", ylim=(0, 100))
        plain(axes)
        axes.legend(loc="upper left")

    full = analysis.sharing.hit_rate_tokens
    says = f"{share(full)} of prompt tokens repeat an earlier prefix, with an unlimited cache"
    says += "".join(f"; {name} holds {count(tokens)} tokens" for name, tokens in marks)
    error = analysis.sharing.capacity_error
    note = "" if not error else f"95 % half-width of the curve, which was sampled: {share(error)}"
    rows = tuple((count(p.tokens), share(p.hit_rate_tokens), share(p.hit_rate_blocks)) for p in curve)
    table = Grid("", ("cache, tokens", "prompt tokens", "blocks"), rows, note, words=())
    return Picture(
        "What a cache finds", says, draw("sharing", f"Hit rate over cache size: {says}", paint), table
    )


def _kv(analysis: Analysis) -> list[tuple[str, int]]:
    """The KV cache of one instance of the plan, and of all that prefill."""
    choice = None if analysis.plan is None else analysis.plan.choice
    pools = [] if choice is None else [p for p in choice.pools if p.role != "decode" and p.kv_tokens]
    if not pools:
        return []
    one = pools[0].kv_tokens or 0
    every = sum(pool.count * (pool.kv_tokens or 0) for pool in pools)
    return [("one instance", one)] + ([(f"all {sum(p.count for p in pools)}", every)] if every > one else [])


def arrivals(trace: Trace, result: Result | None) -> Picture | None:
    """The arrival rate over the log, the busiest 10 s of every stretch above it."""
    times = np.asarray(trace.arrival_s)
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    span = float(times[-1] - times[0])
    cells = int(min(CELLS, max(10, len(times) // 5)))
    edges = times[0] + np.linspace(0, span, cells + 1)
    rates = np.histogram(times, edges)[0] / (span / cells)
    within = np.searchsorted(times, times + BURST_S) - np.arange(len(times))
    cell = np.minimum(((times - times[0]) / span * cells).astype(np.int64), cells - 1)
    peaks = np.zeros(cells)
    np.maximum.at(peaks, cell, within / BURST_S)
    bursts = span / cells > 2 * BURST_S
    unit, name = (3600.0, "hours") if span > 3 * 3600 else (60.0, "minutes") if span > 300 else (1.0, "seconds")
    at = (edges - times[0]) / unit

    def paint(axes: Axes) -> None:
        if bursts:
            axes.stairs(peaks, at, color=Ink.TWO, fill=True, alpha=0.25, label="busiest 10 s in it")
        axes.stairs(rates, at, color=Ink.ONE, linewidth=1.5, label="mean")
        if result is not None:
            start = result.replayed.from_s
            end = start + result.replayed.length_s
            axes.axvspan(start / unit, end / unit, color=Ink.GOOD, alpha=0.18, linewidth=0, label="replayed")
        axes.set(xlabel=f"{name} after the first arrival", ylabel="requests/s", xlim=(0, span / unit))
        axes.set_ylim(bottom=0)
        axes.figure.legend(loc="outside upper left", ncols=3, fontsize=10)

    busiest = rate(float(within.max() / BURST_S))
    says = f"{rate(len(times) / span)} over {show_seconds(round(span))}, {busiest} in the busiest 10 s"
    step = max(1, cells // 20)
    rows = tuple(
        (f"{at[i]:.3g}", f"{rates[i : i + step].mean():.3g}", f"{peaks[i : i + step].max():.3g}")
        for i in range(0, cells, step)
    )
    table = Grid("", (f"from, {name}", "requests/s", "busiest 10 s"), rows, words=())
    return Picture("Arrivals", says, draw("arrivals", f"Arrivals: {says}", paint), table)


def lengths(trace: Trace) -> Picture | None:
    """How long prompts and outputs are."""
    named = [("prompt", np.asarray(trace.prompt_tokens)), ("output", np.asarray(trace.output_tokens))]
    known = [(name, column[column > 0]) for name, column in named if (column > 0).any()]
    if not known:
        return None

    def paint(axes: Axes) -> None:
        low = min(int(column.min()) for _, column in known)
        high = max(int(column.max()) for _, column in known)
        edges = np.geomspace(max(1, low), max(high, low + 1) * 1.01, BINS + 1)
        for (name, column), ink, style in zip(known, (Ink.ONE, Ink.TWO), ("-", "--"), strict=False):
            portion = np.histogram(column, edges)[0] / len(column) * 100
            axes.stairs(portion, edges, color=ink, fill=True, alpha=0.22)
            axes.stairs(portion, edges, color=ink, linewidth=1.4, linestyle=style, label=name)
        axes.set(xscale="log", xlabel="tokens", ylabel="% of requests")
        plain(axes)
        axes.legend(loc="upper right")

    quantiles = (50, 90, 99, 100)
    rows = tuple(
        (name, count(float(column.mean())), *(count(float(v)) for v in np.percentile(column, quantiles)))
        for name, column in known
    )
    says = "; ".join(
        f"{name}s: mean {row[1]}, P99 {row[4]} tokens" for (name, _), row in zip(known, rows, strict=True)
    )
    table = Grid("", ("tokens", "mean", "p50", "p90", "p99", "largest"), rows)
    return Picture("Lengths", says, draw("lengths", f"Lengths in tokens: {says}", paint), table)


def figures(analysis: Analysis | None, trace: Trace | None, result: Result | None) -> list[Picture]:
    """All figures of the traffic."""
    found = [] if analysis is None else [sharing(analysis)]
    if trace is not None:
        found += [arrivals(trace, result), lengths(trace)]
    return [one for one in found if one is not None]
