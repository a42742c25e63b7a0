"""Growing prefixes: which request continues which earlier one, told from block ids alone.

A chat client sends the whole conversation with every turn, so that a prompt starts with the prompt before it.
So do all prompts behind one system prompt, which are no conversation: what links two requests must be theirs
alone. Works on runs of blocks, in a few sorts and one pass over the links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.logs.ordinals import Ids, narrow
from advisor.logs.trace import Blocks, BoolColumn, IntColumn, Labels, Trace, rank_by_first
from advisor.workload.runs import Runs, by_key, find_runs, previous_use

MOST_BRANCHES = 8  # requests that may continue one turn side by side: sub-agents, edits, retries (ours)
NEARLY = 0.9  # of a turn's blocks that the next one keeps when its end is edited (ours)


@dataclass(frozen=True, slots=True)
class _Links:
    """For every request that may continue an earlier one: which, and what they share. Columns: [links]."""

    row: IntColumn
    before: IntColumn  # the earlier request
    depth: IntColumn  # blocks that both start with
    branches: IntColumn  # different continuations of those blocks in the whole log


def find_continued(trace: Trace, blocks: Blocks, runs: Runs | None = None) -> IntColumn:
    """The request that each request continues, -1 for none. Rows are in order of arrival, some have block ids.

    It is the latest earlier, shorter one, of the same client, whose full blocks the request starts with: all,
    or all but the last, as the end of a prompt may be tokenized or tagged otherwise once more follows. The log
    must have no other continuation of what they share. Only behind the first such link, in what is the
    conversation's own, may it branch (at most `MOST_BRANCHES` ways) or lose more of its end (to `NEARLY`).
    `runs` are those of the blocks, where they are at hand.
    """
    parent = np.full(len(trace), -1, dtype=np.int64)
    links = _links(trace, blocks, find_runs(blocks, trace.prompt_tokens) if runs is None else runs)
    own: dict[int, int] = {}  # for every request with a link, the depth of its conversation's first one
    columns = (column.tolist() for column in (links.row, links.before, links.depth, links.branches))
    for row, before, depth, branches in zip(*columns, strict=True):
        start = own.get(before)
        if branches <= 1:
            own[row] = depth if start is None else start
        elif branches <= MOST_BRANCHES and start is not None and depth >= start:
            own[row] = start
        else:
            continue
        parent[row] = before
    return parent


def _links(trace: Trace, blocks: Blocks, runs: Runs) -> _Links:
    """The longest prefix that each request shares with the end of an earlier, shorter one of its client."""
    full = _full_blocks(trace, blocks)
    length = np.where(trace.prompt_tokens >= 0, trace.prompt_tokens, full * blocks.size)
    row, end = runs.row, runs.before + runs.blocks
    left = full[row] - end  # full blocks behind each use
    inside = left >= 0
    kinds = (left == 0, left == 1, inside & (end >= NEARLY * full[row]))
    ends = list(_latest(_of_client(runs, trace.client), kinds))
    length_of = length[row]
    for before in ends:
        before[~inside | (length_of[before] >= length_of)] = -1
    use = _last_of_each_row(row, np.maximum.reduce(ends) >= 0)
    whole, last, near = (before[use] for before in ends)
    before = np.where(whole >= 0, whole, np.where(last >= 0, last, near))
    edited = (whole < 0) & (last < 0)
    # The changed end of the earlier request is a branch of its own, but no continuation.
    follows = np.minimum(before + 1, len(runs) - 1)
    changed = (row[follows] == row[before]) & (end[before] < full[row[before]])
    alone = changed & (runs.uses()[runs.node[follows]] == 1)
    branches = _branches(runs, full)[runs.node[use]] - alone
    branches = np.where(edited, np.maximum(branches, 2), branches)
    branches[_not_growing(runs, kinds[0], length)[runs.node[use]]] = MOST_BRANCHES + 1
    return _Links(row[use], row[before], end[use], branches)


def _latest(node: IntColumn, kinds: Sequence[BoolColumn]) -> Iterator[Ids]:
    """For every use of a run the latest use of that run before it of each kind, as an index; -1 for none."""
    order, is_first = by_key(node)
    place = np.arange(len(order), dtype=narrow(len(order)))
    first = np.maximum.accumulate(np.where(is_first, place, 0))
    for kind in kinds:
        until = np.maximum.accumulate(np.where(kind[order], place, -1))  # the latest up to each place
        latest = np.full_like(place, -1)
        before = np.where(until[:-1] >= first[1:], order[until[:-1]], -1)
        latest[order[1:]] = before
        yield latest


def _full_blocks(trace: Trace, blocks: Blocks) -> IntColumn:
    """How many blocks of each request are full. Where its length is unknown, all but a partial last one."""
    counts = np.diff(blocks.starts)
    partial = 1 if blocks.rounding == "ceil" else 0
    full = np.where(trace.prompt_tokens >= 0, trace.prompt_tokens // blocks.size, counts - partial)
    return np.clip(full, 0, counts)


def _of_client(runs: Runs, client: Labels | None) -> IntColumn:
    """Runs told apart by client: a conversation is of one."""
    if client is None:
        return runs.node
    owner = client.codes[runs.row].astype(np.int64) + 1
    return rank_by_first(owner * (int(runs.node.max()) + 1) + runs.node)[1]


def _last_of_each_row(row: IntColumn, chosen: BoolColumn) -> IntColumn:
    """Of the chosen uses the last of each request."""
    use = np.flatnonzero(chosen)
    return use[np.append(row[use[1:]] != row[use[:-1]], True)] if len(use) else use


def _branches(runs: Runs, full: IntColumn) -> IntColumn:
    """How many different runs with a full block follow each run, over all requests. [nodes]"""
    nodes = int(runs.node.max()) + 1
    follows = np.flatnonzero((runs.row[1:] == runs.row[:-1]) & (runs.before[1:] < full[runs.row[1:]]))
    parent = np.full(nodes, -1, dtype=np.int64)  # chained: a run is always behind the same one
    parent[runs.node[follows + 1]] = runs.node[follows]
    return np.bincount(parent[parent >= 0], minlength=nodes)


def _not_growing(runs: Runs, whole: BoolColumn, length: IntColumn) -> BoolColumn:
    """Runs with which prompts end that do not grow: a common prefix with short questions behind it. [nodes]"""
    common = np.zeros(int(runs.node.max()) + 1, dtype=bool)
    node, tokens = runs.node[whole], length[runs.row[whole]]
    before = previous_use(node)
    common[node[(before >= 0) & (tokens < tokens[before])]] = True
    return common
