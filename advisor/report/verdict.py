"""One validation on one screen, and several side by side.

Owns wording and layout; every number comes from the Result. A verdict is always printed with N and its misses.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.report.progress import Advance
from advisor.simulation.slo import Slo
from advisor.validation.gates import Gate
from advisor.validation.metrics import Latency
from advisor.validation.replay import Counts
from advisor.validation.validate import Cost
from advisor.validation.verdict import Result

_STYLE = {
    "PASS": "bold green",
    "FAIL": "bold red",
    "INVALID": "bold yellow",
    "REHEARSED": "bold cyan",
}
_COLOUR = {"green": "green", "amber": "yellow", "red": "red"}


class ReplayTalk:
    """Says what a replay will send, then how far it is."""

    def __init__(self, console: Console, advance: Advance) -> None:
        self._console, self._advance = console, advance

    def cost(self, cost: Cost) -> None:
        """What is about to be sent."""
        self._console.print(
            f"replaying {cost.requests} requests in {cost.duration_s:.0f} s to {cost.url} ({cost.model}): "
            f"{cost.prompt_tokens:,} prompt and {cost.output_tokens:,} output tokens"
        )
        if cost.left_out:
            self._console.print(f"{cost.left_out} requests without a known output length are left out")
        for sentence in cost.scaled:
            self._console.print(sentence)
        if cost.emulates is not None:
            slower = "" if cost.time_scale == 1 else f", on a clock {cost.time_scale:g} times slower"
            self._console.print(f"a rehearsal: {cost.emulates} is emulated{slower}")

    def tick(self, counts: Counts) -> None:
        """How far it is."""
        self._advance(counts.finished, counts.scheduled)


def show_results(console: Console, results: Mapping[str, Result]) -> None:
    """A column for each result, the verdict first; then what the numbers rest on."""
    slo = next(iter(results.values())).slo
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right")
    table.add_column("target", justify="right", style="dim")
    table.add_row("verdict", *(Text(result.label, style=_STYLE[result.verdict]) for result in results.values()))
    for label, cells, target in _rows(list(results.values()), slo):
        table.add_row(label, *cells, target)
    console.print(table)
    for name, result in results.items():
        console.print(Text(f"gates of {name}: ").append_text(_gates(result.gates)))
        for sentence in _beside(result):
            console.print(f"{name}: {sentence}", markup=False, highlight=False)


def _beside(result: Result) -> list[str]:
    """What a reader of the figures must know of the fleet, and what it shared the cores with."""
    found = list(result.incidents) if result.rehearsal is None else [result.reason]
    cpu = result.cpu
    if cpu is not None and cpu.client_share is not None:
        router = "" if cpu.router_share is None else f"router {cpu.router_share:.1%}, "
        found.append(f"CPU: {router}client {cpu.client_share:.1%} of each of {cpu.cores} cores")
    return found


def _rows(results: list[Result], slo: Slo) -> list[tuple[str, list[str], str]]:
    ttft = _seconds(slo.ttft_s)
    return [
        ("attainment", [f"{r.score.attainment:.1%}" for r in results], f"{slo.attainment:.0%}"),
        ("requests", [str(r.score.requests) for r in results], ""),
        ("missed", [_misses(r) for r in results], ""),
        ("good requests/s", [_number(r.score.good_rate_rps) for r in results], ""),
        ("TTFT p50", [_percentile(r.latencies.ttft, "p50") for r in results], ""),
        ("TTFT p90", [_percentile(r.latencies.ttft, "p90") for r in results], ttft),
        ("TPOT p90", [_percentile(r.latencies.tpot, "p90") for r in results], _seconds(slo.tpot_s)),
        ("TBT p99", [_percentile(r.latencies.tbt, "p99") for r in results], _seconds(slo.tbt_s)),
        ("prompt tokens cached", [_cached(r) for r in results], ""),
        ("send lag p99", [_percentile(r.latencies.send_lag, "p99") for r in results], ""),
    ]


def _gates(gates: tuple[Gate, ...]) -> Text:
    """All green in a word; any other with its figure."""
    if all(gate.colour == "green" for gate in gates):
        return Text(f"all {len(gates)} green", style=_COLOUR["green"])
    shown = [
        Text(f"{g.name} {g.colour} ({g.text})", style=_COLOUR[g.colour]) for g in gates if g.colour != "green"
    ]
    return Text("; ").join(shown)


def _misses(result: Result) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in result.score.misses.items())
    return kinds or "0"


def _cached(result: Result) -> str:
    if result.cached is None:
        return "not reported"
    return f"{result.cached.measured_tokens / max(1, result.cached.prompt_tokens):.1%}"


def _percentile(latency: Latency | None, name: str) -> str:
    return "-" if latency is None else _seconds(getattr(latency, name))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.0f} ms"
