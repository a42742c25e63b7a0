"""The comparison of a log with an earlier plan, as a table.

Owns wording and layout; every number comes from the PlanDrift and has its unit. Ends with what to do.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.advice.drift import Move, PlanDrift
from advisor.report.rows import row
from advisor.report.words import plural, utc
from advisor.units import show_seconds

_NAMES = {
    "uncached_mean": ("uncached prompt", "{:,.0f} tokens"),
    "prompt_mean": ("prompt", "{:,.0f} tokens"),
    "output_mean": ("output", "{:,.0f} tokens"),
    "rate_rps": ("rate", "{:,.3g}/s"),
    "hit_rate_tokens": ("hit rate", "{:.1%}"),
    "attainment": ("attainment", "{:.1%}"),
}


def show_drift(console: Console, drift: PlanDrift) -> None:
    """Print whether it is time to plan again, and what each value was and is."""
    console.print()
    moved = ", ".join(_NAMES[move.name][0] + _since(drift, move) for move in drift.moves if move.over)
    allowed = f"more than {drift.tolerance:.0%} beyond what the plan's log had"
    if drift.replan:
        row(console, "drift", f"plan again: {moved}", style="yellow")
    else:
        row(console, "drift", f"none: the plan still fits; nothing is {allowed}", style="green")
    windows = f"{plural(drift.windows, 'window')} of {show_seconds(drift.window_s)}"
    row(console, "", f"judged: {windows if drift.windows else 'the log as a whole'}; moved means {allowed}")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="bold")
    now = "farthest window" if drift.windows else "now"
    for heading in ("", "plan's log", now, "change", "the plan's log had", "from", ""):
        table.add_column(heading, overflow="fold")
    for move in drift.moves:
        start = _when(drift, move.from_s) if drift.windows else ""
        table.add_row(*_cells(move), start, Text("moved" if move.over else "", style="yellow"))
    console.print(table)
    for note in drift.notes:
        row(console, "", note)
    if drift.replan:
        row(
            console,
            "next",
            "advise analyze LOG --out NEW_FOLDER, without --compare-to: a plan for this traffic",
        )
    else:
        row(console, "next", "nothing to do; compare again with the next log")


def _since(drift: PlanDrift, move: Move) -> str:
    return "" if move.since_s is None or not drift.windows else f" since {_when(drift, move.since_s)}"


def _when(drift: PlanDrift, after_s: float) -> str:
    """Wall clock where the log has one, else the time after the first arrival."""
    if drift.first_epoch_s is None:
        return show_seconds(round(after_s)) if after_s else "the start"
    return utc(drift.first_epoch_s + after_s).replace(":00 UTC", " UTC")


def _cells(move: Move) -> tuple[str, ...]:
    name, unit = _NAMES[move.name]
    change = "new" if move.change is None else f"{move.change:+.0%}"
    if move.low is None or move.high is None:
        had = "the target"
    else:
        low, high = unit.format(move.low), unit.format(move.high)
        had = low if low == high else f"{low} to {high}"
    return name, unit.format(move.was), unit.format(move.now), change, had
