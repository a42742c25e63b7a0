"""The row that every screen is made of: a label, and text that goes on under itself."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text


def row(console: Console, label: str, text: str, style: str = "") -> None:
    """Print one labelled row; an empty label continues the row before."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=8)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style="bold"), Text(text, style=style))
    console.print(grid)
