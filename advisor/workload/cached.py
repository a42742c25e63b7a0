"""Cached tokens as the log has them: their share of the prompts, and what the log cannot explain of them.

An engine can only have cached what an earlier request brought. Cached tokens that no other request of the log
has, neither in its prompt nor in its answer, came with requests that are not in the log: it was sampled, or cut
out of a longer one, and the sharing found in it is a lower bound.
"""

from __future__ import annotations

import numpy as np

from advisor.logs.trace import BoolColumn, IntColumn, Trace
from advisor.workload.runs import Runs


def cached_share(trace: Trace) -> float | None:
    """Cached tokens over prompt tokens of the requests that log both; else what the log says in sum."""
    rows = _logged(trace)
    if trace.cached_tokens is not None and rows.any():
        return float(trace.cached_tokens[rows].sum() / trace.prompt_tokens[rows].sum())
    totals = trace.totals
    if totals is None or totals.cached_share is not None:
        return None if totals is None else totals.cached_share
    if totals.cached_tokens is None or not totals.prompt_tokens:
        return None
    return totals.cached_tokens / totals.prompt_tokens


def unexplained_share(trace: Trace, runs: Runs, content: BoolColumn) -> float | None:
    """Cached tokens that no other request of the log explains, over prompt tokens; 0 for a complete log.

    Over requests that log both. What another request explains, before or after in the log
    as its order may be rough, is at most what it has in common with the prompt, and more where all of that
    request is part of the prompt: its answer may be, too. Blocks show common tokens only in whole, so one block
    is always allowed; so are tokens of the prompt beyond its blocks, such as tools that the log does not show.
    None without such requests, and where the content of any request is unknown: it could explain anything.
    """
    rows = np.flatnonzero(_logged(trace))
    if trace.cached_tokens is None or len(rows) == 0 or not content.all():
        return None
    shared = np.where(runs.uses()[runs.node] > 1, runs.tokens, 0)
    in_common = np.bincount(runs.row, shared, len(trace)).astype(np.int64)
    blocks = np.bincount(runs.row, runs.blocks, len(trace)).astype(np.int64)
    beyond = np.maximum(trace.prompt_tokens - blocks * runs.size, 0)
    explained = np.maximum(in_common, _answered(trace, runs, blocks)) + runs.size - 1 + beyond
    excess = np.maximum(trace.cached_tokens - explained, 0)
    return float(excess[rows].sum() / trace.prompt_tokens[rows].sum())


def _logged(trace: Trace) -> BoolColumn:
    """Requests that log cached and prompt tokens; more cached than prompt tokens is damage."""
    if trace.cached_tokens is None:
        return np.zeros(len(trace), dtype=np.bool_)
    within: BoolColumn = (trace.cached_tokens >= 0) & (trace.cached_tokens <= trace.prompt_tokens)
    return within & (trace.prompt_tokens > 0)


def _answered(trace: Trace, runs: Runs, blocks: IntColumn) -> IntColumn:
    """Longest prompt plus answer of another request whose whole blocks start the prompt; 0 for none. [requests]

    `blocks` is how many each request has. An unknown answer may have been any length.
    """
    unknown = (trace.output_tokens < 0) | (trace.prompt_tokens < 0)
    reach = np.where(unknown, np.iinfo(np.int64).max // 2, trace.prompt_tokens + trace.output_tokens)
    # The run in which the whole blocks of each request end; requests shorter than a block may start any prompt.
    whole = np.where(trace.prompt_tokens < 0, blocks, np.minimum(blocks, trace.prompt_tokens // runs.size))
    ends = (runs.before < whole[runs.row]) & (whole[runs.row] <= runs.before + runs.blocks)
    longest = np.zeros(int(runs.node.max()) + 1, dtype=np.int64)
    np.maximum.at(longest, runs.node[ends], reach[runs.row[ends]])
    alone = np.bincount(runs.node[ends], minlength=len(longest)) == 1
    of_others = np.where(ends & alone[runs.node], 0, longest[runs.node])
    answered = np.full(len(trace), reach[whole == 0].max(initial=0))
    np.maximum.at(answered, runs.row, of_others)
    return answered
