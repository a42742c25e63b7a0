"""Reuse of blocks over time: how long ago, what a cache that forgets keeps, and what a shorter log would show.

Everything follows from the gap between neighbouring uses of a run: a cache that forgets a block some time after
its last use, or that starts empty in every window, hits exactly where that gap is short enough, and a block's
parents are never further back than the block. Never simulates a cache.
"""

from __future__ import annotations

import numpy as np

from advisor.logs.trace import BoolColumn, FloatColumn, IntColumn
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
    everywhere = runs.uses()[runs.node] == requests
    reuse = np.flatnonzero(runs.seen & ~everywhere)
    gaps = arrival_s[runs.row[reuse]] - arrival_s[runs.row[runs.previous[reuse]]]
    timed = np.isfinite(gaps)
    if not timed.any():
        return None
    p50, p90 = (weighted_percentile(gaps[timed], runs.blocks[reuse][timed], share) for share in (0.5, 0.9))
    return ReuseGap(p50=p50, p90=p90)


def weighted_percentile(values: FloatColumn, counts: IntColumn, share: float) -> float:
    """The linear-interpolated percentile of values that occur `counts` times each, without repeating them."""
    order = np.argsort(values)
    ends = np.cumsum(counts[order])
    place = share * (int(ends[-1]) - 1)
    low, high = (
        values[order[np.searchsorted(ends, at, side="right")]] for at in (int(place), int(np.ceil(place)))
    )
    return float(low + (high - low) * (place - int(place)))


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
    return tuple(
        CacheLife(
            seconds=life,
            hit_rate_tokens=float(runs.tokens[used_within(runs, arrival_s, life)].sum() / total),
        )
        for life in LIVES_S
    )


def used_within(runs: Runs, arrival_s: FloatColumn, seconds: float) -> BoolColumn:
    """Uses of runs that were used at most `seconds` before. [uses]"""
    within = runs.seen
    gaps = arrival_s[runs.row[within]] - arrival_s[runs.row[runs.previous[within]]]
    within[within] = gaps <= seconds
    return within


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
    cuts = requests * np.arange(parts + 1) // parts
    window = np.repeat(np.arange(parts, dtype=np.int8), np.diff(cuts))[runs.row]
    seen = runs.seen
    seen[seen] = window[runs.previous[seen]] == window[seen]
    hits = [np.bincount(window[seen], column[seen], parts) for column in (runs.blocks, runs.tokens)]
    return np.stack(hits, axis=1).astype(np.int64)
