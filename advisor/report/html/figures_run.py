"""Figures of a validation: attainment over rate, latencies against their targets, what was missed and when.

Each gives None where the run has nothing to show. Records are on the clock of what was measured (`undilated`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from advisor.logs.trace import FloatColumn
from advisor.report import measured
from advisor.report.grid import Grid
from advisor.report.html.picture import Picture, plain, thinned
from advisor.report.html.svg import Ink, draw
from advisor.report.rows import seconds
from advisor.report.words import plural, rate, share
from advisor.validation.metrics import gaps_s, miss, tpot_s, ttft_s
from advisor.validation.miss import ERROR, attribution
from advisor.validation.probes import Point
from advisor.validation.record import Record
from advisor.validation.result import Result
from advisor.validation.saturation import in_flight

CELLS = 60  # of the time line
STALLS = 5  # worst gaps in the table
_QUANTILES = (50, 90, 95, 99, 99.9, 100)


def attainment_over_rate(result: Result) -> Picture | None:
    """Measured attainment with its 95 % band, the target and the prediction: of a search, or of the one run."""
    points = result.search.curve if result.search is not None else ()
    points = points or _one_point(result)
    if not points:
        return None
    target = result.slo.attainment

    def paint(axes: Axes) -> None:
        at = [point.rate_rps for point in points]
        low = [point.low * 100 for point in points]
        high = [point.high * 100 for point in points]
        shares = [point.share * 100 for point in points]
        if len(points) > 1:
            axes.fill_between(at, low, high, color=Ink.ONE, alpha=0.18, linewidth=0, label="95 % band")
            axes.plot(at, [point.fitted * 100 for point in points], color=Ink.ONE, label="isotonic fit")
            axes.plot(at, shares, "o", color=Ink.ONE, markersize=4, label="measured")
        else:
            axes.vlines(at, low, high, color=Ink.ONE, linewidth=6, alpha=0.35, label="95 % band")
            axes.plot(at, shares, "o", color=Ink.ONE, markersize=6, label="measured")
            axes.set_xlim(0, at[0] * 1.6)
        _prediction(axes, result, at[0])
        axes.axhline(target * 100, color=Ink.TARGET, linestyle=(0, (5, 3)), linewidth=1.3, label="target")
        bottom = min(*low, target * 100)
        axes.set_ylim(max(0, bottom - 8), 101.5)
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        axes.set(xlabel="requests/s", ylabel="% of requests that kept the targets")
        axes.legend(loc="lower left")

    rows = tuple(
        (rate(one.rate_rps), share(one.share), share(one.low), share(one.high), str(one.runs)) for one in points
    )
    table = measured.search(result) or Grid("", ("rate", "kept", "95 % from", "to", "runs"), rows, words=())
    says = (
        measured.goodput(result)
        if result.search is not None
        else ["kept the targets: " + measured.kept(result)]
    )
    label = "Attainment over rate: " + "; ".join(
        f"{share(one.share)} at {rate(one.rate_rps)}" for one in points
    )
    return Picture("Attainment over rate", "; ".join(says), draw("rate", label, paint), table)


def _one_point(result: Result) -> tuple[Point, ...]:
    length_s, found = result.replayed.length_s, result.evidence
    if length_s <= 0 or found is None:
        return ()
    low, high = measured.bounds(found)
    kept = result.score.attainment
    return (
        Point(rate_rps=result.score.requests / length_s, runs=1, share=kept, low=low, high=high, fitted=kept),
    )


def _prediction(axes: Axes, result: Result, at: float) -> None:
    found, search = result.predicted, result.search
    row = next((one for one in found.rows if one.metric == "attainment"), None) if found is not None else None
    if search is not None:
        at = result.score.requests / result.replayed.length_s if result.replayed.length_s > 0 else at
        if search.predicted_rps is not None:
            axes.axvline(
                search.predicted_rps, color=Ink.TWO, linestyle=":", linewidth=1.5, label="predicted goodput"
            )
    if row is None or row.predicted is None or found is None:
        return
    if found.low_attainment is not None and found.high_attainment is not None:
        ends = (found.low_attainment * 100, found.high_attainment * 100)
        axes.vlines([at], *ends, color=Ink.TWO, linewidth=2, linestyle="-")
    axes.plot(
        [at], [row.predicted * 100], "D", color=Ink.TWO, markersize=6, fillstyle="none", label="predicted"
    )


def distribution(result: Result, records: Sequence[Record], what: str) -> Picture | None:
    """The share of all scheduled requests with a TTFT or TPOT (`what`) up to a value, against its target."""
    measure, target = (ttft_s, result.slo.ttft_s) if what == "TTFT" else (tpot_s, result.slo.tpot_s)
    found = [value for record in records if record.status == "ok" and (value := measure(record)) is not None]
    if not found:
        return None
    values = np.sort(np.array(found))
    of = len(records) if what == "TTFT" else sum(r.want_out > 1 for r in records)
    of = max(of, len(values))
    unit, name = (1.0, "s") if values[-1] >= 2 else (1e3, "ms")
    places = thinned(np.arange(len(values), dtype=np.float64)).astype(np.int64)

    def paint(axes: Axes) -> None:
        axes.step(values[places] * unit, (places + 1) / of * 100, where="post", color=Ink.ONE)
        wide = values[-1] > 20 * max(values[len(values) // 2], 1e-4)
        axes.set(xlabel=f"{what}, {name}", ylabel="% of requests", ylim=(0, 102))
        axes.set_xscale("log") if wide else axes.set_xlim(left=0)
        plain(axes)
        axes.axhline(result.slo.attainment * 100, color=Ink.MUTED, linewidth=1, linestyle=":")
        if target is not None:
            axes.axvline(
                target * unit, color=Ink.TARGET, linestyle=(0, (5, 3)), label=f"target {seconds(target)}"
            )
            axes.legend(loc="upper left")

    inside = (
        ""
        if target is None
        else f"{(values <= target).sum() / of:.1%} of {of:,} requests within {seconds(target)}"
    )
    missing = "" if of == len(values) else f"; {of - len(values):,} have none and count as misses"
    at = np.percentile(values, _QUANTILES)
    table = Grid(
        "",
        ("percentile", what),
        tuple(
            ("largest" if q == 100 else f"p{q:g}", seconds(float(v)))
            for q, v in zip(_QUANTILES, at, strict=True)
        ),
    )
    says = f"{inside or plural(len(values), 'request')}{missing}"
    return Picture(f"{what} against its target", says, draw(what.lower(), f"{what}: {says}", paint), table)


def time_line(result: Result, records: Sequence[Record]) -> Picture | None:
    """Arrivals, requests in flight and misses over the window."""
    if len(records) < 2:
        return None
    due = np.array([record.t_due for record in records])
    if np.ptp(due) <= 0:
        return None
    done = np.array([record.t_done if record.t_done is not None else record.t_due for record in records])
    edges = np.linspace(due.min(), due.max(), CELLS + 1)
    width = float(edges[1] - edges[0])
    flying = in_flight(due, np.maximum(done, due), edges)
    own = {one.name: one.slo for one in result.classes if one.own_targets}
    missed = np.array(
        [miss(record, own.get(record.slo_class or "", result.slo)) is not None for record in records]
    )
    came, _ = np.histogram(due, edges)
    bad, _ = np.histogram(due[missed], edges)

    def paint(axes: list[Axes]) -> None:
        for one, values, colour, name in zip(
            axes,
            (came / width, flying, bad),
            (Ink.ONE, Ink.THREE, Ink.BAD),
            ("arrivals/s", "in flight", "missed"),
            strict=True,
        ):
            one.stairs(values, edges, color=colour, fill=True, alpha=0.25)
            one.stairs(values, edges, color=colour, linewidth=1.2)
            one.set_ylabel(name)
            one.set_ylim(bottom=0)
            _fault(one, result)
        axes[-1].set_xlabel("seconds after the window's start, by arrival")
        axes[0].set_xlim(float(edges[0]), float(edges[-1]))

    ten = [slice(start, start + CELLS // 10) for start in range(0, CELLS, CELLS // 10)]
    table = Grid(
        "",
        ("from", "arrivals/s", "in flight", "missed"),
        tuple(
            (
                f"{edges[one.start]:.0f} s",
                f"{came[one].mean() / width:.3g}",
                f"{flying[one].mean():.1f}",
                str(bad[one].sum()),
            )
            for one in ten
        ),
    )
    says = f"at most {flying.max():.0f} requests in flight; {plural(int(missed.sum()), 'request')} missed"
    label = f"Time line of arrivals, requests in flight and misses: {says}"
    return Picture("Time line", says, draw("time", label, paint, panels=3, height=330), table)


def _fault(axes: Axes, result: Result) -> None:
    fault = result.fault
    if fault is not None and fault.at_s is not None:
        axes.axvspan(fault.at_s, fault.back_s or fault.at_s + 0.5, color=Ink.BAD, alpha=0.15, linewidth=0)


def misses(result: Result) -> Picture | None:
    """What was missed: TTFT, TPOT, both, or no answer; by class where there are several."""
    groups = [("all", result.score), *((one.name, one.score) for one in result.classes)]
    counts = [(name, attribution(score), score.requests) for name, score in groups]
    if not sum(counts[0][1].values()):
        return None
    kinds = [kind for kind, number in counts[0][1].items() if number or kind == ERROR]
    inks = dict(zip(counts[0][1], (Ink.ONE, Ink.TWO, Ink.FOUR, Ink.THREE, Ink.BAD), strict=True))
    hatches = dict(zip(counts[0][1], ("", "//", "xx", "..", "\\\\"), strict=True))

    def paint(axes: Axes) -> None:
        names = [name if len(name) <= 24 else name[:23] + "~" for name, _, _ in counts]
        left: FloatColumn = np.zeros(len(counts))
        for kind in kinds:
            width = np.array([100 * found[kind] / max(1, of) for _, found, of in counts])
            axes.barh(
                range(len(counts)), width, left=left, height=0.6, label=kind, facecolor=inks[kind], alpha=0.85,
                hatch=hatches[kind], edgecolor=Ink.GRID, linewidth=0.5,
            )  # fmt: skip
            left = left + width
        axes.set_yticks(range(len(counts)), names)
        axes.invert_yaxis()
        allowed = (1 - result.slo.attainment) * 100
        axes.axvline(allowed, color=Ink.TARGET, linestyle=(0, (5, 3)), linewidth=1.3, label="allowed")
        axes.set(xlabel="% of requests missed")
        axes.set_ylim(len(counts) - 0.3, -0.7)
        axes.grid(visible=False, axis="y")
        axes.figure.legend(loc="outside upper left", ncols=3, fontsize=10)

    rows = tuple((name, *(f"{found[kind]:,}" for kind in kinds), f"{of:,}") for name, found, of in counts)
    says = measured.misses(result)
    height = 150 + 34 * len(counts)
    svg = draw("misses", f"Misses by what was missed: {says}", paint, height=height)
    return Picture("What was missed", says, svg, Grid("", ("", *kinds, "requests"), rows))


def gaps(result: Result, records: Sequence[Record]) -> Picture | None:
    """How long the gaps between chunks are, up to the worst stalls."""
    found = [
        (gap, record.row, place, record.t_chunk[place])
        for record in records
        if record.status == "ok"
        for place, gap in enumerate(gaps_s(record), 1)
    ]
    if not found:
        return None
    values = np.sort(np.array([one[0] for one in found]))
    tail = np.unique((len(values) - np.geomspace(1, len(values), 200)).round().astype(np.int64).clip(0))
    target = result.slo.tbt_s

    def paint(axes: Axes) -> None:
        axes.step(values[tail] * 1e3, (len(values) - tail) / len(values) * 100, where="post", color=Ink.ONE)
        axes.set(xscale="log", yscale="log", xlabel="gap, ms", ylabel="% of gaps as long or longer")
        for q, name in ((50, "p50"), (99, "p99")):
            at = float(np.percentile(values, q)) * 1e3
            axes.plot([at], [100 - q], "o", color=Ink.ONE, markersize=4)
            axes.annotate(name, (at, 100 - q), textcoords="offset points", xytext=(6, 3), fontsize=10)
        plain(axes)
        if target is not None:
            axes.axvline(
                target * 1e3, color=Ink.TARGET, linestyle=(0, (5, 3)), label=f"target {seconds(target)}"
            )
            axes.legend(loc="upper right")

    worst = sorted(found, reverse=True)[:STALLS]
    at = np.percentile(values, _QUANTILES)
    rows = [
        ("largest" if q == 100 else f"p{q:g}", seconds(float(v)), "", "")
        for q, v in zip(_QUANTILES, at, strict=True)
    ]
    rows += [
        ("stall", seconds(gap), f"row {row}, chunk {place}", f"{when:.1f} s") for gap, row, place, when in worst
    ]
    says = (
        f"{len(values):,} gaps; P99 {seconds(float(np.percentile(values, 99)))}, longest {seconds(worst[0][0])}"
    )
    if result.tokens_per_chunk is not None and result.tokens_per_chunk > 1.05:
        says += f"; {result.tokens_per_chunk:.2f} tokens a chunk, so gaps are not between tokens"
    svg = draw("gaps", f"Gaps between chunks: {says}", paint)
    return Picture(
        "Gaps and stalls", says, svg, Grid("", ("", "gap", "where", "when"), tuple(rows), words=(0, 2))
    )


def figures(result: Result, records: Sequence[Record]) -> list[Picture]:
    """All figures of a run, in the order of the page."""
    found = [attainment_over_rate(result)]
    if records:
        found += [distribution(result, records, "TTFT"), distribution(result, records, "TPOT")]
        found.append(time_line(result, records))
    found.append(misses(result))
    if records:
        found.append(gaps(result, records))
    return [one for one in found if one is not None]
