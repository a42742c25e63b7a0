"""Two plans for the same target, side by side.

Owns wording and layout; every number comes from the plans and has its unit.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from advisor.advice.analysis import Analysis
from advisor.advice.comparison import Figures, figures


def show_beside(console: Console, earlier: Analysis, now: Analysis) -> None:
    """Two plans for the same target in two columns."""
    columns = figures(earlier), figures(now)
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    for heading in ("", "earlier", "now"):
        table.add_column(heading, overflow="fold")
    for label, cells in _figures(columns):
        table.add_row(label, *cells)
    console.print()
    console.print(table)


def _figures(columns: tuple[Figures, Figures]) -> list[tuple[str, list[str]]]:
    def cells(name: str, form: str) -> list[str]:
        values = [getattr(column, name) for column in columns]
        return ["-" if value is None else form.format(value) for value in values]

    return [
        ("verdict", cells("verdict", "{}")),
        ("layout", cells("layout", "{}")),
        ("GPUs", cells("gpus", "{}")),
        ("good requests/s per GPU", cells("per_gpu_rps", "{:.3g}")),
        ("rate to plan for", cells("rate_rps", "{:.3g}/s")),
        ("... attainment there", cells("attainment", "{:.1%}")),
        ("... TTFT P90", cells("ttft_p90_s", "{:.3g} s")),
        ("... TPOT P90", cells("tpot_p90_s", "{:.3g} s")),
        ("batch ends after", cells("batch_s", "{:,.0f} s")),
        ("GPUs needed", cells("gpus_needed", "{}")),
        ("USD a month", cells("usd_per_month", "{:,.0f}")),
        ("requests of the log", cells("requests", "{:,}")),
    ]
