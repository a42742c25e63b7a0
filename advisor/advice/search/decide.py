"""The decision: whether the best layout found is a change worth making, against what runs now.

Any change must beat the control beyond the noise of the log, and with step times and links moved by their own
known error; a split must also beat the best colocated layout by a margin. Never simulates: it asks for what it
needs to know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.advice.search.attribution import best_of_kind
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.judge import Goal, Judged
from advisor.advice.search.layout import Layout
from advisor.simulation.bootstrap import Interval, block_seconds, interval_of_goodputs

SPLIT_MARGIN = 1.15  # over the best colocated layout (ours; against chunked baselines gains were 1.6 to 1.8)
WEAK_SPLIT_MARGIN = 1.3  # where evidence is against a split: small models, short prompts, thin pools in bursts
Verdict = Literal["change", "keep_defaults", "undecided", "infeasible"]
Again = Callable[[Hardware, Sequence[Layout]], Sequence[Judged]]


@dataclass(frozen=True, slots=True)
class Decision:
    """`chosen` is what to run: the control where the defaults are kept. `why`: one sentence.

    `ratio` is the goodput per GPU of the best layout over that of the control.
    """

    verdict: Verdict
    chosen: Judged | None
    runner_up: Judged | None
    ratio: Interval | None
    why: str


def decide(
    finalists: Sequence[Judged],
    control: Judged,
    goal: Goal,
    hardware: Hardware,
    *,
    error: float | None,
    needed_rps: float,
    weak_split: bool,
    again: Again,
) -> Decision:
    """Judge the finalists, best first, against the control, which is one of them.

    `error` is the P90 relative error of the step times, None where it is not known. `needed_rps` is the rate to
    plan for. `again` judges layouts on other hardware, on a part of the load.
    """
    best, other = _best(finalists, weak_split=weak_split)
    if best is None or best.low_rps <= 0:
        return Decision("infeasible", None, None, None, "no layout keeps the targets at any rate")
    ratio = _ratio(best, control, goal)
    if best.layout == control.layout:
        return Decision("keep_defaults", control, other, ratio, "nothing that was tried is better")
    short = ratio is None or ratio.low is None or ratio.high is None
    if short or ratio is None or not ratio.excludes(1.0) or (ratio.low or 0.0) < 1.0:
        why = ratio.why if ratio is not None and ratio.why else "the difference is within the noise of the log"
        if short and control.low_rps < needed_rps <= best.low_rps:
            # What fails at the rate of the log cannot be kept for want of an interval.
            return Decision("undecided", best, control, ratio, f"{why}, but what runs now misses the targets")
        return Decision("keep_defaults", control, best, ratio, why)
    flip = _flips_by_error(best.layout, control.layout, hardware, error, again)
    if flip is not None:
        return Decision("undecided", best, control, ratio, flip)
    return Decision("change", best, other, ratio, "better beyond the noise and the error of the step times")


def _best(finalists: Sequence[Judged], *, weak_split: bool) -> tuple[Judged | None, Judged | None]:
    """The best layout, a split only with its margin, and the best of the others."""
    split, colocated = (best_of_kind(finalists, split=kind) for kind in (True, False))
    margin = WEAK_SPLIT_MARGIN if weak_split else SPLIT_MARGIN
    best = colocated
    if split is not None and (colocated is None or split.per_gpu >= margin * colocated.per_gpu):
        best = split
    others = [one for one in finalists if one is not best]
    return best, max(others, key=lambda one: one.per_gpu, default=None)


def _ratio(best: Judged, control: Judged, goal: Goal) -> Interval | None:
    """Goodput per GPU over that of the control; None where a goodput is zero or was not graded."""
    if not best.graded or not control.graded or best.at is None or control.at is None:
        return None
    e2e_s = [one.at.e2e_p99_s for one in (best, control) if one.at is not None and one.at.e2e_p99_s is not None]
    block_s = block_seconds(*(np.array([value]) for value in e2e_s))
    found = interval_of_goodputs(best.graded, control.graded, goal.slo.attainment, block_s, goal.seed)
    per = control.layout.gpus / best.layout.gpus
    low, high = (None if end is None else end * per for end in (found.low, found.high))
    return Interval(found.middle * per, low, high, found.blocks, found.block_s, found.why)


def _flips_by_error(
    best: Layout, control: Layout, hardware: Hardware, error: float | None, again: Again
) -> str | None:
    """Which factor, moved by the error of the step times either way, makes the control as good; None: none."""
    if error is None:
        return None
    factors = ("prefill", "decode", "link") if best.split or control.split else ("prefill", "decode")
    for factor in factors:
        for times in (1 + error, 1 / (1 + error)):
            one, other = again(hardware.moved(**{factor: times}), (best, control))
            if one.per_gpu <= other.per_gpu:
                return f"with {factor} times x {times:.2f}, within their error, what runs now is as good"
    return None
