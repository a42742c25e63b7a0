"""Prefix sharing: how much of the prompts was already there, from whom, how long ago, and in which prefixes.

A block hits when an earlier request had it among its leading blocks; a request's own blocks are visible to the
next one at once. Works on runs of blocks and never on text. Definitions: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.logs.trace import FloatColumn, IntColumn, Labels, Trace
from advisor.workload.capacity import capacity_curve
from advisor.workload.model import ReuseGap, Sharing, TopPrefix
from advisor.workload.runs import Runs, find_runs, previous_use

TOP_PREFIXES = 10


@dataclass(frozen=True, slots=True)
class SharingMeasured:
    """The sharing of a Trace, and the prompt tokens of every request that an unlimited cache does not cover."""

    sharing: Sharing
    uncached_tokens: IntColumn | None  # [requests]


def measure_sharing(trace: Trace, seed: int, cache_tokens: Sequence[int]) -> SharingMeasured:
    """Everything about sharing; all None where the log has no blocks or all prompts are empty."""
    prompt_tokens = int(trace.prompt_tokens.sum())
    if trace.blocks is None or prompt_tokens == 0:
        return SharingMeasured(_without_blocks(trace), None)
    if len(trace.blocks.ids) == 0:
        return SharingMeasured(_without_full_block(trace, trace.blocks.size), trace.prompt_tokens)
    runs = find_runs(trace.blocks, trace.prompt_tokens)
    hit_tokens = np.where(runs.seen, runs.tokens, 0)
    curve, error = capacity_curve(runs, prompt_tokens, cache_tokens, seed)
    within = within_session_tokens(runs, trace.session)
    sharing = Sharing(
        block_size=runs.size,
        hit_rate_tokens=float(hit_tokens.sum() / prompt_tokens),
        hit_rate_blocks=float(runs.blocks[runs.seen].sum() / runs.blocks.sum()),
        hit_rate_optimal=hit_rate_optimal(trace),
        within_session=None if within is None else within / prompt_tokens,
        across_session=None if within is None else (int(hit_tokens.sum()) - within) / prompt_tokens,
        capacity_curve=curve,
        capacity_error=error,
        reuse_gap_s=reuse_gaps(runs, trace.arrival_s),
        top_prefixes=top_prefixes(runs),
        any_position_share=None,  # chained ids differ for equal content at another place
    )
    by_request = np.bincount(runs.row, weights=hit_tokens, minlength=len(trace)).astype(np.int64)
    return SharingMeasured(sharing, trace.prompt_tokens - by_request)


def _without_blocks(trace: Trace) -> Sharing:
    return Sharing(
        block_size=None,
        hit_rate_tokens=None,
        hit_rate_blocks=None,
        hit_rate_optimal=hit_rate_optimal(trace),
        within_session=None,
        across_session=None,
        capacity_curve=(),
        capacity_error=None,
        reuse_gap_s=None,
        top_prefixes=(),
        any_position_share=None,
    )


def _without_full_block(trace: Trace, block_size: int) -> Sharing:
    """No prompt fills a block: nothing can hit, which is known; there is no curve."""
    nothing: dict[str, float] = {"block_size": block_size, "hit_rate_tokens": 0.0}
    if _has_sessions(trace.session):
        nothing |= {"within_session": 0.0, "across_session": 0.0}
    return _without_blocks(trace).model_copy(update=nothing)


def hit_rate_optimal(trace: Trace) -> float | None:
    """Share of prompt tokens already seen, at 1-token pages; needs text.

    One minus the edges of the prompts' radix tree over all prompt tokens (SGLang, arXiv 2312.07104, appendix).
    """
    if trace.novel_tokens is None or not trace.prompt_tokens.any():
        return None
    return 1 - float(trace.novel_tokens.sum() / trace.prompt_tokens.sum())


def within_session_tokens(runs: Runs, session: Labels | None) -> int | None:
    """Prompt tokens whose blocks an earlier request of the same session had: the hits of a cache per session.

    Requests without a session label share with nobody here. None where no request has one.
    """
    if session is None or not _has_sessions(session):
        return None
    code = session.codes[runs.row]
    nodes = int(runs.node.max()) + 1
    seen = (previous_use(code * nodes + runs.node) >= 0) & (code >= 0)
    return int(runs.tokens[seen].sum())


def _has_sessions(session: Labels | None) -> bool:
    return session is not None and bool(np.any(session.codes >= 0))


def reuse_gaps(runs: Runs, arrival_s: FloatColumn) -> ReuseGap | None:
    """Seconds between neighbouring uses of a block, over all reuses but those of blocks in every request.

    Those blocks are always warm; counted, they make much of the reuse look simultaneous. None without reuse or
    times.
    """
    everywhere = runs.uses()[runs.node] == len(arrival_s)
    reuse = np.flatnonzero(runs.seen & ~everywhere)
    gaps = arrival_s[runs.row[reuse]] - arrival_s[runs.row[runs.previous[reuse]]]
    by_block = np.repeat(gaps, runs.blocks[reuse])
    by_block = by_block[np.isfinite(by_block)]
    if len(by_block) == 0:
        return None
    p50, p90 = np.percentile(by_block, (50, 90))
    return ReuseGap(p50=float(p50), p90=float(p90))


def top_prefixes(runs: Runs) -> tuple[TopPrefix, ...]:
    """The shared prefixes that give the most hit tokens, at most `TOP_PREFIXES`.

    A prefix ends where a run ends: requests part there. Its hits are those of that last run only, so that the
    shares of nested prefixes add up to 1 over all of them.
    """
    hits = np.bincount(runs.node, weights=np.where(runs.seen, runs.tokens, 0))
    uses = runs.uses()
    first_use = np.unique(runs.node, return_index=True)[1]
    depth = runs.before[first_use] * runs.size + runs.tokens[first_use]
    best = np.argsort(-hits, kind="stable")[:TOP_PREFIXES]
    return tuple(
        TopPrefix(tokens=int(depth[n]), requests=int(uses[n]), hit_share=float(hits[n] / hits.sum()))
        for n in best
        if hits[n] > 0
    )
