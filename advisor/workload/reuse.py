"""Reuse of blocks over time: how long ago, what a cache that forgets keeps, and what a shorter log would show.

Everything follows from the gap between neighbouring uses of a run: a cache that forgets a block some time after
its last use, or that starts empty in every window, hits exactly where that gap is short enough, and a block's
parents are never further back than the block. Never simulates a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from advisor.logs.trace import FloatColumn, IntColumn
from advisor.workload.model import CacheLife, ReuseGap, WindowPoint
from advisor.workload.runs import Runs

LIVES_S = (300, 3600)  # what hosted caches keep: Anthropic's 5 minutes and 1 hour, renewed by every use
WINDOWS = (10, 4, 2, 1)  # parts that the log is cut into
WINDOW_REQUESTS = 2  # a part with fewer cannot show reuse


def reuse_gaps(runs: Runs, arrival_s: FloatColumn, requests: int) -> ReuseGap | None:
    """Seconds between neighbouring uses of a block, over all reuses but those of blocks in every request.

    `requests` is how many have known content. Blocks of all of them are always warm; counted, they make much of
    the reuse look simultaneous. None without reuse or times.
    """
    everywhere = runs.uses() == requests
    gaps = gaps_of(runs, arrival_s)
    timed = np.flatnonzero(np.isfinite(gaps) & ~everywhere[runs.node])
    if len(timed) == 0:
        return None
    p50, p90 = weighted_percentiles(gaps[timed], runs.blocks[timed], (0.5, 0.9))
    return ReuseGap(p50=p50, p90=p90)


def gaps_of(runs: Runs, arrival_s: FloatColumn) -> FloatColumn:
    """Seconds since each run was used before; NaN where it was not, or a time is unknown. [uses]"""
    at = arrival_s[runs.row]
    gaps: FloatColumn = at - at[runs.previous]
    gaps[~runs.seen] = np.nan
    return gaps


def weighted_percentiles(values: FloatColumn, counts: IntColumn, shares: Sequence[float]) -> list[float]:
    """The linear-interpolated percentiles of values that occur `counts` times each, without repeating them."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))  # fewer to sort: runs come together
    values, counts = values[starts], np.add.reduceat(counts, starts)
    order = np.argsort(values)
    ends = np.cumsum(counts[order])
    found = []
    for share in shares:
        place = share * (int(ends[-1]) - 1)
        low, high = (
            values[order[np.searchsorted(ends, at, side="right")]] for at in (int(place), int(np.ceil(place)))
        )
        found.append(float(low + (high - low) * (place - int(place))))
    return found


def cache_life(runs: Runs, arrival_s: FloatColumn, prompt_tokens: IntColumn) -> tuple[CacheLife, ...]:
    """Token hit rates of unlimited caches that drop a block `LIVES_S` after its last use; empty without times.

    `prompt_tokens` are 0 where a request does not count. Requests without a time are left out.
    """
    timed = np.isfinite(arrival_s)
    total = int(prompt_tokens[timed].sum())
    if total == 0:
        return ()
    if not timed.all():
        runs = runs.take(timed[runs.row])
    gaps = gaps_of(runs, arrival_s)
    return tuple(
        CacheLife(seconds=life, hit_rate_tokens=float(runs.tokens[gaps <= life].sum() / total))
        for life in LIVES_S
    )


def window_curve(runs: Runs, requests: int, prompt_tokens: int) -> tuple[WindowPoint, ...]:
    """Hit rates of the log cut into tenths, quarters and halves, each from an empty cache, and of the whole.

    All windows of a length together: hits over all tokens (blocks). What hits across cuts is lost, so the curve
    shows how far the figures depend on the length of the log. `prompt_tokens` is the total of all prompts.
    """
    points = []
    for parts in WINDOWS:
        if parts == 1 or requests >= parts * WINDOW_REQUESTS:
            blocks, tokens = window_hits(runs, requests, parts).sum(axis=0).tolist()
            points.append(
                WindowPoint(
                    share=1 / parts,
                    hit_rate_tokens=tokens / prompt_tokens,
                    hit_rate_blocks=blocks / int(runs.blocks.sum()),
                )
            )
    return tuple(points)


def window_hits(runs: Runs, requests: int, parts: int) -> IntColumn:
    """Hits in blocks and in tokens of each of `parts` windows of consecutive requests. [parts, 2]"""
    cuts = np.searchsorted(runs.row, requests * np.arange(parts + 1) // parts).tolist()
    hits = np.zeros((parts, 2), dtype=np.int64)
    for window, (start, stop) in enumerate(pairwise(cuts)):
        seen = runs.previous[start:stop] >= start  # uses are in the order of requests
        hits[window] = [int(column[start:stop] @ seen) for column in (runs.blocks, runs.tokens)]
    return hits
