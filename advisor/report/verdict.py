"""One validation on one screen, and several side by side.

Owns layout; the words are `measured`'s and every number comes from the Result. A verdict is always printed with
N, its misses and what they prove.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.report import measured
from advisor.report.grid import Grid, show_grid
from advisor.report.progress import Advance
from advisor.report.rows import row, seconds, visible
from advisor.report.words import count, kept, plural, share
from advisor.simulation.slo import Slo
from advisor.validation.gates import Gate
from advisor.validation.metrics import Latency
from advisor.validation.options import Cost
from advisor.validation.replay import Counts
from advisor.validation.result import Result

_STYLE = {
    "PASS": "bold green",
    "LIKELY PASS": "green",
    "LIKELY FAIL": "red",
    "FAIL": "bold red",
    "INVALID": "bold yellow",
    "REHEARSED": "bold cyan",
}
_COLOUR = {"green": "green", "amber": "yellow", "red": "red"}
_DAY_S = 86_400


class ReplayTalk:
    """Says what a replay will send and what it costs, then how far it is."""

    def __init__(self, console: Console, advance: Advance) -> None:
        self._console, self._advance = console, advance

    def cost(self, cost: Cost) -> None:
        """What is about to be sent, until when, for how much."""
        form = "%H:%M" if cost.duration_s < _DAY_S else "%Y-%m-%d %H:%M"
        until = time.strftime(form, time.localtime(cost.end_unix_s))
        paid = "" if cost.usd is None else f", about {cost.usd:,.2f} USD"
        self._say(
            f"replaying {plural(cost.requests, 'request')} in {cost.duration_s:,.0f} s (until {until}) "
            f"to {cost.url} ({cost.model}): {count(cost.prompt_tokens)} prompt and "
            f"{count(cost.output_tokens)} output tokens{paid}"
        )
        if cost.most_runs > 1:
            self._say(f"a search: up to {cost.most_runs} replays of about this")
        if cost.warm_up_requests:
            self._say(
                f"{plural(cost.warm_up_requests, 'request')} before the window warm the caches, not judged"
            )
        if cost.left_out:
            self._say(f"{plural(cost.left_out, 'request')} without a known output length left out")
        for sentence in (*cost.scaled, *cost.fell_back):
            self._say(sentence)
        if cost.emulates is not None:
            slower = "" if cost.time_scale == 1 else f", on a clock {cost.time_scale:g} times slower"
            self._say(f"a rehearsal: {cost.emulates} is emulated{slower}")

    def tick(self, counts: Counts) -> None:
        """How far it is."""
        self._advance(counts.finished, counts.scheduled)

    def probe(self, factor: float, said: str) -> None:
        """What came of one rate of a search."""
        self._say(f"{factor:.2f} times the log's rate: {said}")

    def _say(self, sentence: str) -> None:
        self._console.print(visible(sentence), markup=False, highlight=False)


def show_results(console: Console, results: Mapping[str, Result], *, then: str | None = None) -> None:
    """One Result on a screen; of several a column each, the verdict first, and what the numbers rest on.

    `then` is the next command, "" for none; without it that of a single Result follows from its verdict.
    """
    if len(results) == 1:
        result = next(iter(results.values()))
        _show_one(console, result)
        then = measured.next_step(result) if then is None else then
    else:
        _show_several(console, results)
    if then:
        row(console, "next", then)


def _show_one(console: Console, result: Result) -> None:
    row(console, "verdict", f"{result.label}: {result.reason}", style=_STYLE[result.verdict])
    for sentence in measured.proof(result):
        row(console, "", sentence)
    row(console, "sent", measured.sent(result))
    for sentence in measured.beside(result):
        row(console, "", sentence)
    row(console, "target", kept(result.slo))
    _gates(console, result.gates)
    console.print()
    show_grid(console, _figures(result))
    row(console, "kept", measured.kept(result))
    row(console, "missed", measured.misses(result))
    _beneath(console, measured.classes(result))
    _show_prediction(console, result)
    _sentences(console, "fault", measured.fault(result))
    _beneath(console, measured.search(result))
    _sentences(console, "goodput", measured.goodput(result))
    _beneath(console, measured.elsewhere(result))
    console.print()


def _show_several(console: Console, results: Mapping[str, Result]) -> None:
    slo = next(iter(results.values())).slo
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("", overflow="fold")
    for name in results:
        table.add_column(visible(name), justify="right", overflow="fold")
    table.add_column("target", justify="right", style="dim", overflow="fold")
    table.add_row("verdict", *(Text(result.label, style=_STYLE[result.verdict]) for result in results.values()))
    for label, cells, target in _rows(list(results.values()), slo):
        table.add_row(label, *(Text(visible(cell)) for cell in cells), target)
    console.print(table)
    for name, result in results.items():
        row(console, name, result.reason)
        _gates(console, result.gates)
        for sentence in measured.beside(result):
            row(console, "", sentence)


def _figures(result: Result) -> Grid:
    """The figures of one run with their target."""
    slo, one = result.slo, result.latencies
    named = (
        ("TTFT", one.ttft, slo.ttft_s), ("TPOT", one.tpot, slo.tpot_s), ("TBT", one.tbt, slo.tbt_s),
        ("E2E", one.e2e, None), ("send lag", one.send_lag, None),
    )  # fmt: skip
    rows = tuple((name, *measured.quantiles(latency), _target(target)) for name, latency, target in named)
    return Grid("measured", ("", *measured.PERCENTILES, "target"), rows)


def _show_prediction(console: Console, result: Result) -> None:
    grid = measured.predicted(result)
    if grid is None or result.predicted is None:
        if result.not_predicted is not None:
            console.print()
            row(console, "", f"nothing is predicted: {result.not_predicted}")
        return
    console.print()
    show_grid(console, grid, ["yellow" if measured.off(one) else "" for one in result.predicted.rows])
    if result.predicted.advice is not None:
        row(console, "", result.predicted.advice, style="yellow")


def _beneath(console: Console, grid: Grid | None) -> None:
    if grid is not None:
        console.print()
        show_grid(console, grid)


def _sentences(console: Console, label: str, told: list[str]) -> None:
    for place, sentence in enumerate(told):
        row(console, label if place == 0 else "", sentence)


def _rows(results: list[Result], slo: Slo) -> list[tuple[str, list[str], str]]:
    return [
        ("attainment", [share(r.score.attainment) for r in results], f"{slo.attainment * 100:.4g}%"),
        ("requests", [count(r.score.requests) for r in results], ""),
        ("missed", [measured.misses(r) for r in results], ""),
        ("good requests/s", [_number(r.score.good_rate_rps) for r in results], ""),
        ("TTFT p50", [_percentile(r.latencies.ttft, "p50") for r in results], ""),
        ("TTFT p90", [_percentile(r.latencies.ttft, "p90") for r in results], _target(slo.ttft_s)),
        ("TPOT p90", [_percentile(r.latencies.tpot, "p90") for r in results], _target(slo.tpot_s)),
        ("TBT p99", [_percentile(r.latencies.tbt, "p99") for r in results], _target(slo.tbt_s)),
        ("prompt tokens cached", [_cached(r) for r in results], ""),
        ("send lag p99", [_percentile(r.latencies.send_lag, "p99") for r in results], ""),
    ]


def _gates(console: Console, gates: tuple[Gate, ...]) -> None:
    """All green in a word; any other with its figure."""
    shown = [gate for gate in gates if gate.colour != "green"]
    if not shown:
        row(console, "gates", f"all {len(gates)} green", style=_COLOUR["green"])
    for place, gate in enumerate(shown):
        text = f"{gate.name.replace('_', ' ')} {gate.colour}: {gate.text}"
        row(console, "gates" if place == 0 else "", text, style=_COLOUR[gate.colour])


def _cached(result: Result) -> str:
    if result.cached is None:
        return "not reported"
    return f"{result.cached.measured_tokens / max(1, result.cached.prompt_tokens):.1%}"


def _percentile(latency: Latency | None, name: str) -> str:
    return "-" if latency is None else seconds(getattr(latency, name))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _target(value: float | None) -> str:
    return "" if value is None else seconds(value)
