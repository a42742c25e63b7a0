"""A small table as plain data: what the terminal and the HTML report both show.

Owns nothing but its form. Cells are text with their units; the first column says what a row is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.report.rows import visible


@dataclass(frozen=True, slots=True)
class Grid:
    """Headings and rows of equal length. `words`: numbers of columns that hold text, not figures."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    words: tuple[int, ...] = (0,)


def show_grid(console: Console, grid: Grid, styles: Sequence[str] = ()) -> None:
    """Print a grid under its title; cells fold, and are never cut. `styles`: of the rows, from the first on."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title_justify="left")
    for place, heading in enumerate(grid.headings):
        named = grid.title if place == 0 and not heading else heading
        table.add_column(visible(named), justify="left" if place in grid.words else "right", overflow="fold")
    for place, cells in enumerate(grid.rows):
        style = styles[place] if place < len(styles) else ""
        table.add_row(*(Text(visible(cell), style=style) for cell in cells))
    console.print(table)
    if grid.note:
        console.print(Text(visible(grid.note), style="dim"))
