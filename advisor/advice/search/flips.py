"""Flip points: at which value of a target, of reuse or of the link another layout becomes the best.

Looks at a few values of each, judged on a part of the load. The rate needs no search: beyond its goodput a
layout does not keep the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from advisor.advice.search.hardware import Hardware
from advisor.advice.search.judge import Goal, Job, Judged

LIMITS = (0.5, 2.0)  # times a latency target (ours)
LINKS = (4.0, 16.0)  # times slower (ours)
REUSE = (0.5, 0.0)  # share of requests that still share prefixes (ours)
REQUESTS, TOLERANCE = 1000, 0.1  # of each simulation (ours)
NOISE = 0.05  # of a goodput on a part of the load: a smaller lead is none (ours)

Judge = Callable[[Sequence[Job]], Iterable[Judged]]


def find_flips(
    judge: Judge, goal: Goal, hardware: Hardware, best: Judged, others: Sequence[Judged], *, reuse: bool
) -> list[dict[str, Any]]:
    """The values looked at where one of `others` beats `best`, and which."""
    candidates = [best, *others]
    found: list[dict[str, Any]] = [
        {"parameter": "rate_rps", "value": best.low_rps, "becomes": "more GPUs: its goodput ends here"}
    ]
    split = any(one.layout.split for one in candidates)
    moves = list(_moves(goal, hardware, split=split, reuse=reuse))
    jobs = [
        Job(one.layout, moved.get("hardware", hardware), REQUESTS, max(one.low_rps, 1e-3), TOLERANCE,
            slo=moved.get("slo"), reuse=moved.get("reuse", 1.0))
        for _, _, moved in moves
        for one in candidates
    ]  # fmt: skip
    judged = list(judge(jobs))
    for i, (parameter, value, _) in enumerate(moves):
        mine = judged[i * len(candidates) : (i + 1) * len(candidates)]
        top = max(mine, key=lambda one: one.per_gpu)
        if top.per_gpu > mine[0].per_gpu * (1 + NOISE):
            found.append({"parameter": parameter, "value": value, "becomes": top.layout.name})
    return found


def _moves(
    goal: Goal, hardware: Hardware, *, split: bool, reuse: bool
) -> Iterable[tuple[str, float, dict[str, Any]]]:
    """The parameter, its value, and what a job with it has different."""
    for name in ("ttft_s", "tpot_s", "tbt_s"):
        limit = getattr(goal.slo, name)
        if limit is not None:
            for times in LIMITS:
                slo = goal.slo.model_copy(update={name: limit * times})
                yield name, limit * times, {"slo": slo}
    if reuse:
        for share in REUSE:
            yield "reuse", share, {"reuse": share}
    if split:
        for times in LINKS:
            moved = hardware.moved(link=times)
            yield "link_bytes_per_s", hardware.link_bytes_per_s / times, {"hardware": moved}
