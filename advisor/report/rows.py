"""The row that every screen is made of: a label, and text that goes on under itself; and times in it."""

from __future__ import annotations

import re

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Control characters, and Unicode's marks of direction and of lines.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text with escapes, `\\x1b[31m`, for whatever steers a terminal or turns the direction of writing."""
    return _STEERING.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


def row(console: Console, label: str, text: str, style: str = "") -> None:
    """Print one labelled row; an empty label continues the row before."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=8)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style="bold"), Text(visible(text), style=style))
    console.print(grid)


def seconds(value: float | None) -> str:
    """A time with its unit; a dash for none."""
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.0f} ms"
