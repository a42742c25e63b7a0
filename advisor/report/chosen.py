"""The chosen layout at the rate to plan for, on a part of the screen: bursts, length classes, a lost instance.

Owns wording and layout; every number comes from the Plan and has its unit.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.advice.plan import Group, LengthGroup, Loss, Simulation
from advisor.advice.simulated import EARLY_TURNS
from advisor.report.rows import row, seconds

INDENT = " " * 9  # as wide as the label of a row


def show_chosen(console: Console, simulation: Simulation, wanted: float) -> None:
    """Whom the chosen layout fails, and what a loss costs; `wanted` is the share that must keep the targets.

    Where each part of the requests keeps them they take a sentence; else a table has those that do not.
    """
    at = simulation.at_needed
    if at is None:
        return
    regimes, classes = simulation.regimes or (), simulation.classes or ()
    everyone = Group(name="all", share=1.0, attainment=at["attainment"],
                     ttft_p90_s=at["ttft_p90_s"], tpot_p90_s=at["tpot_p90_s"])  # fmt: skip
    if all(_kept(one) >= wanted for one in (everyone, *regimes, *classes)):
        _say(console, everyone, at["rate_rps"] or 0.0, (*regimes[1:], *_worst(classes)))
    else:
        missing = sorted((one for one in classes if _kept(one) < wanted), key=_kept)
        parts = (everyone, *(regimes if len(regimes) > 1 else ()), *missing)
        _show_parts(console, at["rate_rps"] or 0.0, parts, wanted)
    _show_turns(console, simulation)
    if simulation.loss is not None:
        _show_loss(console, simulation.loss, wanted)


def _say(console: Console, everyone: Group, rate_rps: float, parts: Iterable[Group]) -> None:
    text = (
        f"the chosen one at {rate_rps:.3g} requests/s, the rate to plan for: {_kept(everyone):.1%} keep the "
        f"targets, TTFT P90 {seconds(everyone.ttft_p90_s)}, TPOT P90 {seconds(everyone.tpot_p90_s)}"
    )
    row(console, "", "; ".join((text, *(f"{_kept(one):.1%} {_named(one)}" for one in parts))))


def _worst(classes: tuple[LengthGroup, ...]) -> tuple[LengthGroup, ...]:
    """The class that keeps the targets least; none where all keep them alike."""
    worst = min(classes, key=_kept, default=None)
    return () if worst is None or _kept(worst) == max(map(_kept, classes)) else (worst,)


def _show_parts(console: Console, rate_rps: float, parts: Iterable[Group], wanted: float) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(f"{INDENT}chosen, at {rate_rps:.3g} requests/s", no_wrap=True)
    for heading in ("share", "kept", "TTFT P90", "TPOT P90"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in parts:
        cells = (
            f"{INDENT}{_named(one)}", f"{one.share:.0%}", f"{_kept(one):.1%}",
            seconds(one.ttft_p90_s), seconds(one.tpot_p90_s),
        )  # fmt: skip
        table.add_row(*(Text(cell, style="" if _kept(one) >= wanted else "yellow") for cell in cells))
    console.print(table)


def _show_turns(console: Console, simulation: Simulation) -> None:
    """Where many turns would come too early: what holds if they wait."""
    early = (simulation.at_needed or {}).get("early_turns") or 0.0
    waiting = simulation.waiting
    if early <= EARLY_TURNS:
        return
    if waiting is None:
        then = "the log has no think times, so that they could wait"
    else:
        then = f"if they wait: {waiting.verdict.replace('_', ' ')}" + f" {waiting.chosen or ''}".rstrip()
    row(console, "turns", f"{early:.0%} would be sent before the turn before has ended; {then}")


def _show_loss(console: Console, loss: Loss, wanted: float) -> None:
    """One sentence; a warning where nothing of its kind is left, or where the targets are missed for it."""
    kind = "instance" if loss.role == "colocated" else f"{loss.role} instance"
    which = f"one {kind}" if loss.left else f"the only {kind}"
    told = [f"{which} dies at the peak, for {loss.down_s:.0f} s: {_cost(loss)}"]
    told.append(f"{loss.rerun:,} begun again, {loss.dropped:,} lost")
    if not loss.left and loss.role == "colocated":
        told.append("all that come meanwhile wait until it is back, or are lost")
    elif not loss.left:
        told.append("the prefill side serves alone meanwhile, or everything stops")
    missed = loss.attainment is not None and loss.attainment < wanted
    row(console, "loss", "; ".join(told), style="yellow" if missed or not loss.left else "")


def _cost(loss: Loss) -> str:
    if loss.attainment is None or loss.attainment_without is None:
        return "no request comes meanwhile"
    made_up = loss.caught_up_s
    when = "from then on" if made_up is None else f"in {made_up:.0f} s"
    kept = f"{loss.attainment:.1%} of {loss.requests:,} requests {when} keep the targets"
    return f"{kept}, {loss.attainment_without:.1%} without"


def _kept(one: Group) -> float:
    return 0.0 if one.attainment is None else one.attainment


def _named(one: Group) -> str:
    if isinstance(one, LengthGroup):
        return f"prompt ~{one.prompt_p50:,.0f}, output ~{one.output_p50:,.0f}"
    return "in bursts" if one.name == "bursts" else one.name
