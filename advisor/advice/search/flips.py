"""Flip points: where a target, reuse, the link or the number of GPUs make another layout the best.

Looks at a few values of each, judged on a part of the load. The rate needs no search: beyond its goodput a
layout does not keep the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from advisor.advice.flips import ASSUMED_HITS
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.judge import Goal, Job, Judged

LIMITS = (0.5, 2.0)  # times a latency target (ours)
LINKS = (4.0, 16.0)  # times slower (ours)
REUSE = (0.5, 0.0)  # share of requests that still share prefixes (ours)
FLEETS = (0.5, 2.0)  # times the instances of every pool (ours)
REQUESTS, TOLERANCE = 800, 0.15  # of each simulation (ours)
NOISE = 0.05  # of a goodput on a part of the load: a smaller lead is none (ours)

Judge = Callable[[Sequence[Job]], Iterable[Judged]]


def find_flips(
    judge: Judge, goal: Goal, hardware: Hardware, best: Judged, others: Sequence[Judged], *, reuse: bool | None
) -> list[dict[str, Any]]:
    """The values looked at where one of `others` beats `best`, and which; or where none keeps the targets.

    `reuse`: whether requests share prefixes; None: the log does not tell, and the plan counts on none.
    """
    candidates = [best, *others]
    found: list[dict[str, Any]] = [
        {"parameter": "rate_rps", "value": best.low_rps, "becomes": "more GPUs: its goodput ends here"}
        if goal.deadline_s is None
        else {"parameter": "deadline_s", "value": best.batch_s, "becomes": "more GPUs: it ends no sooner"}
    ]
    split = any(one.layout.split for one in candidates)
    rows: list[tuple[str, float, list[Job]]] = [
        (name, value, [_job(one, **{"hardware": hardware} | moved) for one in candidates])
        for name, value, moved in _moves(goal, hardware, split=split, reuse=reuse)
    ]
    for times in () if hardware.on_cpu else FLEETS:
        grown = [one for one in candidates if all(pool.count * times % 1 == 0 for pool in one.layout.pools)]
        if best in grown and len(grown) > 1:
            jobs = [_job(_resized(one, times), hardware) for one in grown]
            rows.append(("gpus", best.layout.gpus * times, jobs))
    judged = iter(judge([job for _, _, jobs in rows for job in jobs]))
    for name, value, jobs in rows:
        mine = [next(judged) for _ in jobs]
        top = max(mine, key=lambda one: one.per_gpu)
        if top.per_gpu <= 0:
            found.append({"parameter": name, "value": value, "becomes": "nothing keeps the targets"})
        elif top.per_gpu > mine[0].per_gpu * (1 + NOISE):
            found.append({"parameter": name, "value": value, "becomes": top.layout.name})
    return found


def _job(one: Judged, hardware: Hardware, **moved: Any) -> Job:
    """Judge a layout again, on a part of the load, with something different."""
    return Job(one.layout, hardware, REQUESTS, max(one.low_rps, 1e-3), TOLERANCE, **moved)


def _resized(one: Judged, times: float) -> Judged:
    """The same layout with other numbers of instances, predicted to serve as many times the rate."""
    pools = tuple(pool.model_copy(update={"count": int(pool.count * times)}) for pool in one.layout.pools)
    return replace(one, layout=replace(one.layout, pools=pools), low_rps=one.low_rps * times)


def _moves(
    goal: Goal, hardware: Hardware, *, split: bool, reuse: bool | None
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
    if reuse is None:
        for hit in ASSUMED_HITS:
            yield "hit_rate_tokens", hit, {"assumed_hit": hit}
    if split:
        for times in LINKS:
            moved = hardware.moved(link=times)
            yield "link_bytes_per_s", hardware.link_bytes_per_s / times, {"hardware": moved}
