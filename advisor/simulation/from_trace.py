"""A Load from a Trace: lengths, turns, and what requests share, in pages of the engine.

Owns the step from the log's blocks to runs of pages. Chained block ids say which pages are equal; what a turn
generates takes the ids that its session's next prompt shows, but in a replay, whose engine generates other
tokens than the log's did. Never looks at text.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from advisor.logs.ordinals import take_ragged
from advisor.logs.trace import Blocks, BoolColumn, FloatColumn, IntColumn, Trace, rank_by_first
from advisor.simulation.load import Load
from advisor.workload.runs import Runs, find_runs
from advisor.workload.sessions import find_turns
from engine.request import Run

_ASSUMED = "assumed"  # key of the text that prompts are taken to share
REPLY_SHOWN = 0.9  # of a turn's output that its session's next prompt must have room for (ours)


def usable(trace: Trace) -> BoolColumn:
    """Requests that can be simulated: arrival and both lengths are known. [requests]"""
    return np.isfinite(trace.arrival_s) & (trace.prompt_tokens >= 0) & (trace.output_tokens >= 0)


def load_of(trace: Trace, block_size: int, *, replies: bool = True) -> Load:
    """The usable requests of a Trace, in order, for an engine with pages of `block_size` tokens.

    A request that asks for nothing is one token each way, the least that a server takes. A think time counts
    only where the log has the end of the turn before; elsewhere `arrival_s` is all that is known. Without
    `replies` no prompt goes on from what was generated, as in a replay of the log: prompts share what their
    block ids show and nothing else.
    """
    found = find_turns(trace)
    rows = np.flatnonzero(usable(trace))
    place = np.full(len(trace) + 1, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    none = np.full(len(trace), -1, dtype=np.int64)
    parent = place[none if found.trace.parent is None else found.trace.parent][rows]
    prompt = np.maximum(trace.prompt_tokens[rows], 1)
    output = np.maximum(trace.output_tokens[rows], 1)
    blocks = None if trace.blocks is None else trace.blocks.take(rows)
    return Load(
        arrival_s=trace.arrival_s[rows],
        prompt_tokens=prompt,
        output_tokens=output,
        runs=((),) * len(rows)
        if blocks is None
        else _page_runs(blocks, prompt, output, parent if replies else none[: len(rows)], block_size),
        block_size=block_size,
        session=_sessions(none if found.trace.session is None else found.trace.session.codes, rows),
        parent=parent,
        think_s=np.where(parent >= 0, _think_s(trace, found.trace)[rows], np.nan),
    )


def _sessions(codes: IntColumn, rows: IntColumn) -> IntColumn:
    """Dense numbers of sessions; a request without one is a session of its own."""
    codes = codes[rows].astype(np.int64)
    alone = codes.max(initial=-1) + 1 + np.arange(len(rows))
    return rank_by_first(np.where(codes >= 0, codes, alone))[1]


def _think_s(trace: Trace, turns: Trace) -> FloatColumn:
    """Seconds from the end of the turn before; NaN where the log does not have that end."""
    if turns.think_s is None or turns.parent is None:
        return np.full(len(trace), np.nan)
    if trace.think_s is not None:
        return turns.think_s
    lasted = np.full(len(trace), np.nan) if trace.e2e_s is None else trace.e2e_s
    return np.where(np.isfinite(lasted[turns.parent]), turns.think_s, np.nan)


def _page_runs(
    blocks: Blocks, prompt: IntColumn, output: IntColumn, parent: IntColumn, page: int
) -> tuple[tuple[Run, ...], ...]:
    """Per request the leading runs of pages that another request has too.

    A page belongs to the run of blocks in which its last token lies. The last token of an output is never
    computed, hence no page ends with it.
    """
    runs = find_runs(blocks, prompt)
    starts = np.searchsorted(runs.row, np.arange(len(prompt) + 1))
    twins = _twins(runs, starts, parent)
    last, following = _continued(runs, twins, prompt, output, parent)
    source = np.arange(len(prompt))
    source[last] = following
    while np.any(source[source] != source):  # whose prompt shows the pages: the last that goes on from it
        source = source[source]
    limit = prompt // page
    limit[last] = (prompt + output - 1)[last] // page
    use, taken = take_ragged(np.arange(len(runs)), starts, source)
    row = np.repeat(np.arange(len(prompt)), np.diff(taken))
    stop = np.minimum((runs.before[use] * runs.size + runs.tokens[use]) // page, limit[row])
    front, begin = _fronts(runs, starts, twins, last, following, page)
    pieces = _cut(row, runs.node[use].astype(np.int64), stop, front, begin)
    return _as_tuples(*pieces, len(prompt))


def _twins(runs: Runs, starts: IntColumn, parent: IntColumn) -> IntColumn:
    """How many leading runs each request has in common with its parent. [requests]

    Chained: two requests share a run only as the same-numbered run of each, and all runs before it.
    """
    before = parent[runs.row]
    twin = starts[before] + np.arange(len(runs)) - starts[runs.row]
    inside = (before >= 0) & (twin < starts[before + 1])
    same = inside & (runs.node[np.where(inside, twin, 0)] == runs.node)
    return np.bincount(runs.row[same], minlength=len(parent))


def _continued(
    runs: Runs, twins: IntColumn, prompt: IntColumn, output: IntColumn, parent: IntColumn
) -> tuple[IntColumn, IntColumn]:
    """Turns that a later prompt goes on from, and for each the first such prompt.

    That prompt has every full block of the turn's prompt, one at least, and room for the reply.
    """
    starts = np.searchsorted(runs.row, np.arange(len(prompt) + 1))
    whole = np.concatenate(([0], np.cumsum(runs.blocks)))
    shared = whole[starts[:-1] + twins] - whole[starts[:-1]]
    full = prompt[parent] // runs.size
    room = prompt >= prompt[parent] + REPLY_SHOWN * output[parent]
    earlier = (parent >= 0) & (parent < np.arange(len(parent)))
    rows = np.flatnonzero(earlier & (shared >= np.maximum(full, 1)) & room)
    turns, first = np.unique(parent[rows], return_index=True)
    return turns, rows[first]


def _fronts(
    runs: Runs, starts: IntColumn, twins: IntColumn, last: IntColumn, following: IntColumn, page: int
) -> tuple[IntColumn, IntColumn]:
    """For each run the one whose pages are its first, -1 for none, and the page where its own begin. [nodes]

    A prompt that ends within a block has another id for it than the prompt that goes on. Where several
    requests have that unfinished block, its pages keep its name in all of them.
    """
    nodes = int(runs.node.max(initial=-1)) + 1
    begin = np.zeros(nodes, dtype=np.int64)
    begin[runs.node] = runs.before * runs.size // page
    tokens = np.zeros(nodes, dtype=np.int64)
    np.maximum.at(tokens, runs.node, runs.tokens)
    front = np.full(nodes, -1, dtype=np.int64)
    mine, theirs = starts[last] + twins[following], starts[following] + twins[following]
    both = (mine < starts[last + 1]) & (theirs < starts[following + 1])
    unfinished, whole = runs.node[mine[both]], runs.node[theirs[both]]
    fits = tokens[unfinished] < np.minimum(tokens[whole], runs.size)
    whole, first = np.unique(whole[fits], return_index=True)
    front[whole] = unfinished[fits][first]
    begin[whole] = (runs.before[mine[both]][fits][first] * runs.size + tokens[front[whole]]) // page
    alone = runs.uses() == 1
    while len(whole := np.flatnonzero((front >= 0) & alone[front])):
        begin[whole], front[whole] = begin[front[whole]], front[front[whole]]
    return front, begin


def _cut(
    row: IntColumn, node: IntColumn, stop: IntColumn, front: IntColumn, begin: IntColumn
) -> tuple[IntColumn, IntColumn, IntColumn, IntColumn]:
    """Uses of runs with their fronts as uses of their own: row, node, first page, page behind the last."""
    parts = []
    while len(row):
        parts.append((row, node, begin[node], stop))
        fronted = front[node] >= 0
        row, stop = row[fronted], np.minimum(stop, begin[node])[fronted]
        node = front[node[fronted]]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [row] * 4
    row, node, start, stop = (column[columns[3] > columns[2]] for column in columns)
    order = np.lexsort((start, row))
    return row[order], node[order], start[order], stop[order]


def _as_tuples(
    row: IntColumn, node: IntColumn, start: IntColumn, stop: IntColumn, requests: int
) -> tuple[tuple[Run, ...], ...]:
    """Runs of more than one request; in a tree those of one come last. Equal ones are one object."""
    shared = np.bincount(node)[node] > 1
    row, node, start, stop = row[shared], node[shared], start[shared], stop[shared]
    _, first, which = np.unique(node * (stop.max(initial=0) + 1) + stop, return_index=True, return_inverse=True)
    distinct = list(map(Run, node[first].tolist(), start[first].tolist(), stop[first].tolist()))
    used = [distinct[index] for index in which.tolist()]
    bounds = np.searchsorted(row, np.arange(requests + 1)).tolist()
    return tuple(tuple(used[low:high]) for low, high in pairwise(bounds))


def with_assumed_hits(load: Load, share: float) -> Load:
    """The Load as if the leading `share` of every prompt were the same text, where the log shows no content.

    All but the first request then hit that share of their prompts, as long as it stays in the cache.
    """
    pages = (load.prompt_tokens * share).astype(np.int64) // load.block_size
    runs = tuple((Run(_ASSUMED, 0, n),) if n else () for n in pages.tolist())
    return replace(load, runs=runs)
