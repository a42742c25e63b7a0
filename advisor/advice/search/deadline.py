"""A deadline for a batch, the whole log at once: which layouts end it in time, and what to say where none does.

Never simulates: layouts come judged on all of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from advisor.advice.search.fleet import MOST_GPUS
from advisor.advice.search.judge import Judged
from advisor.units import show_seconds


def in_time(judged: Sequence[Judged], deadline_s: float) -> list[Judged]:
    """The same layouts in the same order; those that `why_late` is about have no throughput left."""
    return [replace(one, low_rps=0.0) if why_late(one, judged, deadline_s) else one for one in judged]


def why_late(one: Judged, judged: Sequence[Judged], deadline_s: float) -> str | None:
    """Why a layout does not do the batch by the deadline, None: it does.

    What no layout of `judged` can serve (longer than the model's context, say) is not part of the batch; one
    that leaves out more has not done it however soon it ends.
    """
    if _served(one) < max(_served(other) for other in judged):
        return "leaves out requests of the batch that others serve"
    if _end_s(one) > deadline_s:
        return f"ends the batch after {show_seconds(_end_s(one))} only"
    return None


def soonest(judged: Sequence[Judged]) -> Judged:
    """The layout that ends the batch first, of those that serve the most of it."""
    return min(judged, key=lambda one: (-_served(one), _end_s(one)))


def missed(judged: Sequence[Judged], deadline_s: float, gpus_needed: int | None, *, on_cpu: bool) -> str:
    """Why no layout will do: the time that it would take, and the GPUs that it would take in time."""
    first = soonest(judged)
    gpus = first.layout.gpus
    devices = "core" if on_cpu else "GPU"
    text = (
        f"no layout ends the batch within {show_seconds(deadline_s)}: on {gpus} {devices}{'s' * (gpus != 1)} "
        f"it takes {show_seconds(_end_s(first))}"
    )
    if on_cpu:
        return text
    more = f"not on {MOST_GPUS} GPUs either" if gpus_needed is None else f"{gpus_needed} GPUs are needed"
    return f"{text}; {more}"


def _served(one: Judged) -> float:
    """Share of the requests that are served: without latency targets that is the attainment."""
    return 0.0 if one.at is None else one.at.attainment


def _end_s(one: Judged) -> float:
    return float("inf") if one.batch_s is None else one.batch_s
