"""Drawing: a matplotlib figure in, SVG text out that takes its colours from the page.

matplotlib knows fixed colours only, so figures are drawn in those of `Ink`, and every one is replaced by a CSS
variable that the page defines, once for light and once for dark. No date, no random id, no web font: the same
figure gives the same bytes. Uses no pyplot, so nothing outlives a drawing.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from advisor.report.rows import visible

WIDTH, HEIGHT = 420, 260  # of a figure, in units of its viewBox; text is 11 of them
MOST_POINTS = 300  # of a line


class Ink:
    """Colours that stand for CSS variables; no two alike."""

    TEXT, MUTED, GRID = "#010203", "#020304", "#030405"
    ONE, TWO, THREE, FOUR = "#040506", "#050607", "#060708", "#070809"
    BAD, GOOD, TARGET = "#08090a", "#090a0b", "#0a0b0c"


_VARIABLES = {
    Ink.TEXT: "--fg", Ink.MUTED: "--muted", Ink.GRID: "--rule", Ink.ONE: "--one", Ink.TWO: "--two",
    Ink.THREE: "--three", Ink.FOUR: "--four", Ink.BAD: "--bad", Ink.GOOD: "--good", Ink.TARGET: "--target",
}  # fmt: skip

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "advise",
    "text.parse_math": False,
    "font.size": 11,
    "axes.edgecolor": Ink.MUTED,
    "axes.labelcolor": Ink.TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "grid.color": Ink.GRID,
    "grid.linewidth": 0.7,
    "xtick.color": Ink.MUTED,
    "ytick.color": Ink.MUTED,
    "xtick.labelcolor": Ink.TEXT,
    "ytick.labelcolor": Ink.TEXT,
    "text.color": Ink.TEXT,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "path.simplify": True,
}


def draw(
    name: str, label: str, paint: Callable[[Any], None], *, panels: int = 1, height: int = HEIGHT
) -> Markup:
    """Paint one figure and give it as an SVG element; `label` is what a screen reader says.

    `name` is unique in the page. `paint` gets the Axes, or with several `panels`, one above the other, a list.
    """
    from matplotlib import style

    with warnings.catch_warnings(), style.context(["default", _STYLE]):
        warnings.simplefilter("ignore")  # a font without some letter of a name: the browser has another
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        FigureCanvasSVG(figure)
        axes: list[Axes] = list(figure.subplots(panels, 1, squeeze=False, sharex=panels > 1)[:, 0])
        paint(axes[0] if panels == 1 else axes)
        out = io.StringIO()
        empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=empty)
    return Markup(_themed(out.getvalue(), name, label))  # noqa: S704 - our own SVG; matplotlib escapes its text


def _themed(text: str, name: str, label: str) -> str:
    """The svg element alone, its colours variables, its ids the figure's own, its size the page's."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head = f'<svg role="img" aria-label="{Markup.escape(visible(label))}" viewBox="0 0 {WIDTH} '
    text = re.sub(r'<svg [^>]*viewBox="0 0 [\d.]+ ', lambda _: head, text, count=1)
    text = re.sub(r"(<svg [^>]*?) version=\"1.1\"", r"\1", text, count=1)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->", "", text, flags=re.DOTALL)
    used = set(re.findall(r"(?:url\(#|xlink:href=\"#)([^)\"]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r' ?font-family: [^;"]*;?', "", text).replace("font-size: 11px; ", "")
    text = re.sub(r' transform="rotate\(-?0 [^"]*"', "", text)
    text = re.sub(r'( (?:d|x|y|transform)=")([^"]*)', lambda m: m[1] + _short(m[2]), text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    # Names from a log may be in it; a terminal's controls mean nothing to a browser, and are shown.
    return "\n".join(visible(line.strip()) for line in _flat(text).split("\n") if line.strip())


def _short(numbers: str) -> str:
    """Coordinates to a tenth of a unit, on one line."""
    return re.sub(r"(\.\d)\d+", r"\1", numbers).replace(" \n", "").replace("\n", "")


def _flat(text: str) -> str:
    """Without groups that say nothing of what is in them."""
    kept: list[bool] = []

    def tag(match: re.Match[str]) -> str:
        if match[0] == "</g>":
            return match[0] if kept.pop() else ""
        kept.append(match[0] != "<g>")
        return match[0] if kept[-1] else ""

    return re.sub(r"<g>|<g [^>]*[^/]>|</g>", tag, text)
