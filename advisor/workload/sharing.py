"""Prefix sharing: how much of the prompts was already there, from whom, and in which prefixes.

A block hits when an earlier request had it among its leading blocks; a request's own blocks are visible to the
next one at once. Requests whose content the log does not show are left out of hits and of all that hits are
divided by. Works on runs of blocks and never on text. Definitions: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.logs.trace import BoolColumn, FloatColumn, IntColumn, Labels, Trace
from advisor.workload.cached import cached_share, unexplained_share
from advisor.workload.capacity import capacity_curve
from advisor.workload.copies import find_copies
from advisor.workload.model import Duplicates, Sharing, TopPrefix
from advisor.workload.reuse import cache_life, reuse_gaps, window_curve
from advisor.workload.runs import Runs, by_key, find_runs

TOP_PREFIXES = 10


@dataclass(frozen=True, slots=True)
class SharingMeasured:
    """The sharing of a Trace, and the prompt tokens that an unlimited cache does not cover.

    Those are of each request with known content and length, in their order.
    """

    sharing: Sharing
    uncached_tokens: IntColumn | None


def measure_sharing(
    trace: Trace,
    seed: int,
    cache_tokens: Sequence[int],
    runs: Runs | None = None,
    *,
    fine_clock: bool = False,
) -> SharingMeasured:
    """Everything about sharing; what needs block ids is None where no request with tokens has known content.

    `runs` are those of its blocks, where they are at hand. `fine_clock`: the log's clock is finer than the gaps
    between requests.
    """
    content = content_known(trace)
    counted = content & (trace.prompt_tokens > 0)
    copies = find_copies(trace, content, fine_clock)
    prompt_tokens = int(trace.prompt_tokens[counted].sum())
    if trace.blocks is None or prompt_tokens == 0:
        return SharingMeasured(_without_hits(trace, content, None, copies), None)
    lengths = trace.prompt_tokens[content & (trace.prompt_tokens >= 0)]
    if len(trace.blocks.ids) == 0:
        return SharingMeasured(_without_full_block(trace, content, trace.blocks.size, copies), lengths)
    runs = find_runs(trace.blocks, trace.prompt_tokens) if runs is None else runs
    hit_tokens = np.where(runs.seen, runs.tokens, 0)
    curve, error = capacity_curve(runs, prompt_tokens, cache_tokens, seed)
    sharing = _without_hits(trace, content, runs.size, None).model_copy(
        update={
            "unexplained_share": unexplained_share(trace, runs, content),
            "hit_rate_tokens": float(hit_tokens.sum() / prompt_tokens),
            "hit_rate_blocks": float(runs.blocks[runs.seen].sum() / runs.blocks.sum()),
            **_by_owner(trace, content, runs, prompt_tokens),
            "capacity_curve": curve,
            "capacity_error": error,
            "cache_life": cache_life(runs, trace.arrival_s, np.where(counted, trace.prompt_tokens, 0)),
            "window_curve": window_curve(runs, len(trace), prompt_tokens),
            "reuse_gap_s": reuse_gaps(runs, trace.arrival_s, int(content.sum())),
            "top_prefixes": top_prefixes(runs),
            "duplicates": _duplicates(trace, counted, copies, runs),
        }
    )
    by_request = np.bincount(runs.row, weights=hit_tokens, minlength=len(trace)).astype(np.int64)
    return SharingMeasured(sharing, lengths - by_request[content & (trace.prompt_tokens >= 0)])


def content_known(trace: Trace) -> BoolColumn:
    """The requests whose prompt content the log shows. [requests]"""
    if trace.blocks is None:
        return np.zeros(len(trace), dtype=np.bool_)
    return np.ones(len(trace), dtype=np.bool_) if trace.blocks.known is None else trace.blocks.known


def _without_hits(
    trace: Trace, content: BoolColumn, block_size: int | None, copies: BoolColumn | None
) -> Sharing:
    """What needs no block ids."""
    return Sharing(
        block_size=block_size,
        known_share=known_share(trace, content),
        cached_share=cached_share(trace),
        hit_rate_tokens=None,
        hit_rate_blocks=None,
        hit_rate_optimal=hit_rate_optimal(trace),
        within_session=None,
        across_session=None,
        capacity_curve=(),
        capacity_error=None,
        reuse_gap_s=None,
        top_prefixes=(),
        duplicates=_duplicates(trace, content, copies, None),
        any_position_share=None,  # chained ids differ for equal content at another place
    )


def _without_full_block(
    trace: Trace, content: BoolColumn, block_size: int, copies: BoolColumn | None
) -> Sharing:
    """No prompt fills a block: nothing can hit, which is known; there is no curve."""
    nothing: dict[str, float] = {"hit_rate_tokens": 0.0}
    for name in ("session", "client"):
        if _has(getattr(trace, name), content):
            nothing |= {f"within_{name}": 0.0, f"across_{name}": 0.0}
    return _without_hits(trace, content, block_size, copies).model_copy(update=nothing)


def known_share(trace: Trace, content: BoolColumn) -> float | None:
    """Share of prompt tokens whose content the log shows; of requests where lengths are unknown or all zero."""
    if len(trace) == 0:
        return None
    total = int(trace.prompt_tokens.sum())
    if total <= 0 or np.any(trace.prompt_tokens < 0):
        return float(content.mean())
    return float(trace.prompt_tokens[content].sum() / total)


def hit_rate_optimal(trace: Trace) -> float | None:
    """Share of prompt tokens already seen, at 1-token pages; needs text.

    One minus the edges of the prompts' radix tree over all prompt tokens (SGLang, arXiv 2312.07104, appendix).
    """
    if trace.novel_tokens is None:
        return None
    known = (trace.novel_tokens >= 0) & (trace.prompt_tokens > 0)
    total = int(trace.prompt_tokens[known].sum())
    return 1 - float(trace.novel_tokens[known].sum() / total) if total else None


def _by_owner(trace: Trace, content: BoolColumn, runs: Runs, prompt_tokens: int) -> dict[str, float]:
    """The token hit rate split into hits from the same session or client and hits from others."""
    hits = int(runs.tokens[runs.seen].sum())
    split: dict[str, float] = {}
    for name in ("session", "client"):
        if _has(getattr(trace, name), content):
            within = within_tokens(runs, getattr(trace, name))
            split |= {f"within_{name}": within / prompt_tokens}
            split |= {f"across_{name}": (hits - within) / prompt_tokens}
    return split


def within_tokens(runs: Runs, owner: Labels | None) -> int:
    """Prompt tokens whose blocks an earlier request of the same owner had: the hits of a cache per owner.

    Requests without the label share with nobody here.
    """
    if owner is None:
        return 0
    code = owner.codes[runs.row].astype(np.int64)
    nodes = int(runs.node.max()) + 1
    order, is_first = by_key(code * nodes + runs.node)
    seen = order[~is_first]
    return int(runs.tokens[seen[code[seen] >= 0]].sum())


def _has(labels: Labels | None, content: BoolColumn) -> bool:
    """Whether any request with known content has the label."""
    return labels is not None and bool(np.any(content & (labels.codes >= 0)))


def _duplicates(
    trace: Trace, counted: BoolColumn, copies: BoolColumn | None, runs: Runs | None
) -> Duplicates | None:
    """How many requests are copies, and the token hit rate of the others."""
    if copies is None:
        return None
    hit_rate = None
    if runs is not None:
        others = runs.take(~copies[runs.row]) if copies.any() else runs
        prompt_tokens = int(trace.prompt_tokens[counted & ~copies].sum())
        hit_rate = float(others.tokens[others.seen].sum() / prompt_tokens) if prompt_tokens else None
    number = int(copies.sum())
    return Duplicates(requests=number, share=number / len(trace), hit_rate_tokens=hit_rate)


def top_prefixes(runs: Runs) -> tuple[TopPrefix, ...]:
    """The shared prefixes with the most hit tokens and those with the most requests, `TOP_PREFIXES` of each.

    Most hit tokens first. A prefix ends where a run ends: requests part there. Its hits are those of that last
    run only, so that the shares of nested prefixes add up to 1 over all of them.
    """
    hits = np.bincount(runs.node, weights=np.where(runs.seen, runs.tokens, 0))
    uses = runs.uses()
    chosen = np.unique(np.concatenate((_most(hits), _most(uses, hits))))
    first_use = np.empty(len(uses), dtype=np.int64)
    first_use[runs.node[~runs.seen]] = np.flatnonzero(~runs.seen)
    total = hits.sum()
    return tuple(
        TopPrefix(
            tokens=int(runs.before[first_use[n]] * runs.size + runs.tokens[first_use[n]]),
            requests=int(uses[n]),
            hit_share=float(hits[n] / total),
        )
        for n in chosen[np.argsort(-hits[chosen], kind="stable")]
        if hits[n] > 0
    )


def _most(amount: FloatColumn | IntColumn, *others: FloatColumn | IntColumn) -> IntColumn:
    """Where the `TOP_PREFIXES` largest amounts are; of equal ones those that have most of the others."""
    enough = np.partition(amount, -TOP_PREFIXES)[-TOP_PREFIXES] if len(amount) > TOP_PREFIXES else amount.min()
    some = np.flatnonzero(amount >= enough)
    return some[np.lexsort([-column[some] for column in (*others[::-1], amount)])][:TOP_PREFIXES]
