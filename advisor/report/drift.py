"""The comparison of a log with an earlier plan, as a table.

Owns wording and layout; every number comes from the PlanDrift and has its unit. Ends with what to do.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.advice.drift import Move, PlanDrift
from advisor.report.rows import row

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
    moved = ", ".join(_NAMES[move.name][0] for move in drift.moves if move.over)
    allowed = f"more than {drift.tolerance:.0%} beyond what the plan's log had"
    if drift.replan:
        row(console, "drift", f"plan again: {moved}", style="yellow")
    else:
        row(console, "drift", f"none: the plan still fits; nothing is {allowed}", style="green")
    hours = f"{drift.hours} full hour{'s' if drift.hours > 1 else ''}"
    row(console, "", f"judged: {hours if drift.hours else 'the log as a whole'}; moved means {allowed}")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="bold")
    now = "farthest hour" if drift.hours else "now"
    for heading in ("", "plan's log", now, "change", "the plan's log had", "from", ""):
        table.add_column(heading, overflow="fold")
    for move in drift.moves:
        start = f"{move.from_s / 3600:.0f} h" if drift.hours else ""
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


def _cells(move: Move) -> tuple[str, ...]:
    name, unit = _NAMES[move.name]
    change = "new" if move.change is None else f"{move.change:+.0%}"
    if move.low is None or move.high is None:
        had = "the target"
    else:
        low, high = unit.format(move.low), unit.format(move.high)
        had = low if low == high else f"{low} to {high}"
    return name, unit.format(move.was), unit.format(move.now), change, had
