"""The decision: whether the best layout found is a change worth making, against what runs now.

Any change must beat the control beyond the noise of the log, and with step times and links moved by their own
known error; a split must also beat the best colocated layout by a margin. Never simulates: it asks for what it
needs to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from advisor.advice.search.attribution import best_of_kind
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.judge import Goal, Judged
from advisor.advice.search.layout import Layout
from advisor.simulation.bootstrap import (
    Graded,
    Interval,
    block_seconds,
    enough_seconds,
    interval_of_goodputs,
    too_short,
)

SPLIT_MARGIN = 1.15  # over the best colocated layout (ours; against chunked baselines gains were 1.6 to 1.8)
WEAK_SPLIT_MARGIN = 1.3  # where evidence is against a split: small models, short prompts, thin pools in bursts
PLAIN_MARGIN = 1.1  # over the control where the objective has no noise to resample (ours)
LEAST_REQUESTS = 1000  # of a log that proves anything (ours, as rule 0b)
Verdict = Literal["change", "keep_defaults", "undecided", "infeasible"]
Again = Callable[[Hardware, Sequence[Layout]], Sequence[Judged]]
Longer = Callable[[Sequence[Judged], float], Sequence[Judged]]


@dataclass(frozen=True, slots=True)
class Decision:
    """`chosen` is what to run: the control where the defaults are kept. `why`: one sentence.

    `ratio` is the goodput per GPU of the best layout over that of the control; None where that has none.
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
    requests: int,
    needed_rps: float,
    weak_split: bool,
    again: Again,
    longer: Longer,
) -> Decision:
    """Judge the finalists, best first, against the control, which is one of them.

    `error` is the P90 relative error of the step times, None where it is not known. `requests` are those of the
    log: copies of them at a higher rate tell nothing new. `needed_rps` is the rate to plan for. `again` judges
    layouts on other hardware, on a part of the load; `longer` once more on one part for all of them, of so many
    seconds where the load has them.
    """
    best, other = _best(finalists, weak_split=weak_split)
    if best is None or best.low_rps <= 0:
        return Decision("infeasible", None, None, None, "no layout keeps the targets at any rate")
    if best.layout == control.layout:
        return Decision("keep_defaults", control, other, None, "nothing that was tried is better")
    ratio, doubt = _compared(best, control, goal, requests, longer)
    if doubt is not None:
        no_interval = ratio is None or ratio.low is None
        if no_interval and control.low_rps < needed_rps <= best.low_rps:
            # What fails at the rate of the log cannot be kept for want of an interval.
            missed = "the targets" if goal.deadline_s is None else "the deadline"
            return Decision("undecided", best, control, ratio, f"{doubt}, but what runs now misses {missed}")
        return Decision("keep_defaults", control, best, ratio, doubt)
    flip = _flips_by_error(best.layout, control.layout, hardware, error, again)
    if flip is not None:
        return Decision("undecided", best, control, ratio, flip)
    return Decision("change", best, other, ratio, "better beyond the noise and the error of the step times")


def in_both(sent_as_logged: Decision, waiting: Decision) -> Decision:
    """The decision where turns would come before the turn before them has ended, as no client sends them.

    It stands if it is the same where each turn waits; else nothing is decided.
    """
    if sent_as_logged.verdict == waiting.verdict and _name(sent_as_logged) == _name(waiting):
        return sent_as_logged
    other = waiting.verdict.replace("_", " ") + ("" if waiting.chosen is None else f" with {_name(waiting)}")
    why = f"many turns would come before the turn before them has ended; if they wait: {other}"
    return replace(sent_as_logged, verdict="undecided", why=why)


def _name(decision: Decision) -> str | None:
    return None if decision.chosen is None else decision.chosen.layout.name


def _best(finalists: Sequence[Judged], *, weak_split: bool) -> tuple[Judged | None, Judged | None]:
    """The best layout, a split only with its margin, and the best of the others."""
    split, colocated = (best_of_kind(finalists, split=kind) for kind in (True, False))
    margin = WEAK_SPLIT_MARGIN if weak_split else SPLIT_MARGIN
    best = colocated
    if split is not None and (colocated is None or split.per_gpu > margin * colocated.per_gpu):
        best = split
    others = [one for one in finalists if one is not best]
    return best, max(others, key=lambda one: one.per_gpu, default=None)


def _compared(
    best: Judged, control: Judged, goal: Goal, requests: int, longer: Longer
) -> tuple[Interval | None, str | None]:
    """Goodput per GPU over that of the control, and why that proves nothing; None where it does."""
    few = requests < LEAST_REQUESTS
    if few or goal.objective != "goodput":
        why = f"{requests:,} requests are too few to tell" if few else f"{goal.objective} has no interval"
        ratio = None
        if control.per_gpu > 0:
            ratio = Interval(best.per_gpu / control.per_gpu, None, None, 0, 0.0, why)
        if few:
            return ratio, why
        enough = ratio is None or ratio.middle > PLAIN_MARGIN
        return ratio, None if enough else f"less than {PLAIN_MARGIN:g} times what runs now"
    e2e_p99_s = max(_e2e_p99_s(best), _e2e_p99_s(control))
    enough_s = enough_seconds(e2e_p99_s)
    if control.low_rps <= 0 or not best.graded or not control.graded:
        # The least that must be known is that the best keeps the targets over more than a moment.
        [best] = longer([best], enough_s)
        span_s = _span_s(best.graded)
        return None, too_short(span_s, block_seconds(span_s, e2e_p99_s))
    best, control = longer([best, control], enough_s)
    block_s = block_seconds(_span_s([*best.graded, *control.graded]), e2e_p99_s)
    found = interval_of_goodputs(best.graded, control.graded, goal.slo.attainment, block_s, goal.seed)
    if not math.isfinite(found.middle):
        return None, found.why or "no goodput is within the rates simulated"
    per = control.layout.gpus / best.layout.gpus
    low, high = (None if end is None else end * per for end in (found.low, found.high))
    ratio = Interval(found.middle * per, low, high, found.blocks, found.block_s, found.why)
    if ratio.low is None:
        return ratio, ratio.why or "the log gives no interval"
    return ratio, None if ratio.low > 1.0 else "the difference is within the noise of the log"


def _e2e_p99_s(one: Judged) -> float:
    return 0.0 if one.at is None or one.at.e2e_p99_s is None else one.at.e2e_p99_s


def _span_s(graded: Sequence[Graded]) -> float:
    """From the first arrival simulated to the last."""
    arrivals = [one.arrival_s for one in graded if len(one.arrival_s)]
    return max((float(one.max()) for one in arrivals), default=0.0) - min(
        (float(one.min()) for one in arrivals), default=0.0
    )


def _flips_by_error(
    best: Layout, control: Layout, hardware: Hardware, error: float | None, again: Again
) -> str | None:
    """Which factor, moved by its error either way, makes the control as good; None: none.

    Links have no measured error: they are moved by that of the step times.
    """
    if error is None:
        return None
    factors = ("prefill", "decode", "link") if best.split or control.split else ("prefill", "decode")
    for factor in factors:
        for times in (1 + error, 1 / (1 + error)):
            one, other = again(hardware.moved(**{factor: times}), (best, control))
            if one.per_gpu <= other.per_gpu:
                then = "what runs now is as good" if other.per_gpu > 0 else "nothing keeps the targets"
                return f"with {factor} times x {times:.2f}, within their error, {then}"
    return None
