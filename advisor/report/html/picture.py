"""A figure of the report with what it says in words and the table behind it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from advisor.logs.trace import FloatColumn
from advisor.report.grid import Grid
from advisor.report.html.svg import MOST_POINTS


@dataclass(frozen=True, slots=True)
class Picture:
    """`says` is one sentence under the figure; the table holds what the figure shows."""

    title: str
    says: str
    svg: Markup
    table: Grid


def thinned(values: FloatColumn) -> FloatColumn:
    """At most MOST_POINTS of sorted values, both ends among them."""
    if len(values) <= MOST_POINTS:
        return values
    places = np.linspace(0, len(values) - 1, MOST_POINTS).round().astype(np.int64)
    return np.asarray(values[places])


def plain(axes: Axes) -> None:
    """Numbers, not powers of ten, on logarithmic axes; thousands and millions as `k` and `M`."""
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            wide = low <= 0 or high / low > 300
            axis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5), numticks=8))
            axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
            axis.set_minor_formatter(NullFormatter())


def _number(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
