"""Figures of a plan: what each idea is worth, and what each layout gives."""

from __future__ import annotations

import textwrap

from markupsafe import Markup
from matplotlib.axes import Axes

from advisor.advice.control import PREFIX
from advisor.advice.plan import Candidate, Plan
from advisor.report.grid import Grid
from advisor.report.html.picture import Picture
from advisor.report.html.svg import Ink, draw
from advisor.report.plan import DEFAULTS, SHOWN
from advisor.report.rows import seconds
from advisor.report.words import share

LONGEST = 26  # letters in a line of a layout's name in a figure


def attribution(plan: Plan) -> Picture | None:
    """Goodput per GPU of each idea alone and of several together."""
    found = [
        (str(one["name"]), one["goodput_rps_per_gpu"], one.get("attainment")) for one in plan.attribution or ()
    ]
    if not found:
        return None
    says = "on a busy part of the log; `nothing`: prefill first, no cache"
    rows = tuple(
        (name, *(f"{ends[end]:.3g}" for end in ("low", "mid", "high")), share(kept))
        for name, ends, kept in found
    )
    table = Grid("", ("", "at least", "about", "at most", "attainment"), rows)
    bars = [(name, ends["low"], ends["high"], name == "nothing") for name, ends, _ in found]
    svg = _bars("worth", "What each idea is worth: " + _spoken(bars), bars)
    return Picture("What each idea is worth", says, svg, table)


def layouts(plan: Plan) -> Picture | None:
    """Goodput per GPU of the layouts, the chosen one marked."""
    known = [(one, one.goodput_rps_per_gpu) for one in plan.candidates if one.goodput_rps_per_gpu is not None]
    if len(known) < 2:
        return None
    known.sort(key=lambda pair: -pair[1].low)
    wanted = {plan.chosen, plan.runner_up, plan.reasons.get(PREFIX, DEFAULTS)}
    shown = [pair for pair in known if pair[0].name in wanted or pair in known[: SHOWN + 2]]
    bars = [(_marked(one, plan), ends.low, ends.high, one.name != plan.chosen) for one, ends in shown]
    rows = tuple(
        (
            _marked(one, plan),
            str(one.gpus),
            f"{ends.low:.3g} to {ends.high:.3g}",
            share(one.attainment),
            seconds(one.ttft_p90_s),
            seconds(one.tpot_p90_s),
            seconds(one.tbt_p99_s),
            share(one.hit_rate_tokens),
            one.rejected or "",
        )
        for one, ends in known
    )
    head = (
        "layout",
        "GPUs",
        "good/s per GPU",
        "kept",
        "TTFT p90",
        "TPOT p90",
        "TBT p99",
        "hits",
        "out because",
    )
    says = "good requests/s per GPU, from slow to fast step times; latencies at that rate"
    svg = _bars("layouts", "Goodput of the layouts: " + _spoken(bars), bars)
    return Picture("Layouts", says, svg, Grid("", head, rows, words=(0, 8)))


def _marked(one: Candidate, plan: Plan) -> str:
    mark = {plan.chosen: " [chosen]", plan.runner_up: " [runner-up]"}.get(one.name, "")
    return one.name + mark


def _spoken(bars: list[tuple[str, float, float, bool]]) -> str:
    return "; ".join(f"{name} {low:.3g}" for name, low, _, _ in bars)


def _bars(name: str, label: str, bars: list[tuple[str, float, float, bool]]) -> Markup:
    """Horizontal bars to the low end, a line from there to the high end; pale ones where the flag is set."""

    def paint(axes: Axes) -> None:
        for place, (_, low, high, pale) in enumerate(bars):
            axes.barh(place, low, height=0.55, color=Ink.ONE, alpha=0.45 if pale else 0.9)
            axes.hlines(place, low, high, color=Ink.TEXT, linewidth=1.5)
            axes.annotate(
                f"{low:.3g}", (high, place), textcoords="offset points", xytext=(5, 0), va="center", fontsize=10
            )
        names = ["\n".join(textwrap.wrap(one, LONGEST, max_lines=2, placeholder=" ...")) for one, *_ in bars]
        axes.set_yticks(range(len(bars)), names, fontsize=10)
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.set_xlim(0, max(high for _, _, high, _ in bars) * 1.15 or 1)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("good requests/s per GPU")

    return draw(name, label, paint, height=80 + 30 * len(bars))


def figures(plan: Plan | None) -> list[Picture]:
    """All figures of a plan."""
    found = [] if plan is None else [attribution(plan), layouts(plan)]
    return [one for one in found if one is not None]
