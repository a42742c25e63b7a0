"""Blocks of 64 bytes become blocks of so many tokens, by the token counts that the log itself has.

How many tokens a shared beginning is worth is told by the request with the least text behind it: an earlier
turn of a conversation ends just there, and a system prompt is best seen in front of a short question. So every
stretch of blocks belongs to the shortest request that has it, whose logged count, less what its beginning is
worth already, is spread evenly over its own bytes. Where no count is logged, a guess from the words of the text
takes its place, which says how sharing is spread but not how long prompts are. Never sees text.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from advisor.logs.guess import GUESS
from advisor.logs.ordinals import Ids, by_first, narrow, run_heads, stretches
from advisor.logs.trace import BoolColumn, FloatColumn, IntColumn

BLOCK_BYTES = 64
USUAL_BYTES = 4.0  # of a token, in text of no known count
_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class ByteRuns:
    """Stretches of blocks of bytes that occur only together: all their uses, row after row."""

    node: IntColumn  # [uses] which: ordinals in order of first appearance
    row: IntColumn  # [uses]
    before: IntColumn  # [uses] blocks of the row in front of it
    blocks: IntColumn  # [uses] its length
    guess: FloatColumn  # [uses] tokens that its words suggest
    first: IntColumn  # [rows + 1] where each row's uses start

    def blocks_before(self, use: IntColumn) -> IntColumn:
        """Blocks of each row in front of one of its uses, or of the place behind its last. [rows]"""
        last = np.maximum(use - 1, 0)
        return np.where(use > self.first[:-1], self.before[last] + self.blocks[last], 0)


def find_byte_runs(ids: Ids, starts: IntColumn, guess: npt.NDArray[np.uint16] | None) -> ByteRuns:
    """The runs of all rows.

    `ids` are ordinals of chained blocks, row i having `ids[starts[i]:starts[i + 1]]`, and not empty; `guess`
    [blocks] is in 1/`GUESS` tokens, 0 in rows with a count, None where all have one.
    """
    heads = run_heads(ids, starts)
    first = np.searchsorted(heads, starts)
    row = np.repeat(np.arange(len(starts) - 1), np.diff(first))
    tokens = np.zeros(len(heads))
    if guess is not None:
        tokens = np.add.reduceat(guess[ids], heads, dtype=np.float64) / GUESS
    blocks = np.diff(heads, append=len(ids))
    return ByteRuns(by_first(ids[heads]), row, heads - starts[row], blocks, tokens, first)


def to_token_blocks(runs: ByteRuns, lengths: IntColumn, tokens: IntColumn, size: int) -> tuple[Ids, IntColumn]:
    """Ids of blocks of `size` tokens, numbered in order of first appearance, and where each row starts.

    `lengths` [rows] are bytes, with what fills no block; `tokens` [rows] -1 where no count of exactly those
    bytes is known. What two prompts share is known to the block of bytes, of which half is missed on average:
    that half is added before tokens are cut into blocks.
    """
    known = tokens > 0
    counted, size_bytes = int(tokens[known].sum()), int(lengths[known].sum())
    half_block = BLOCK_BYTES / 2 * (min(1.0, counted / size_bytes) if counted else 1 / USUAL_BYTES)
    worth, owner = _worth(runs, lengths, tokens, known)
    full = np.where(known, tokens // size, np.iinfo(np.int64).max)[owner]  # that the owner's prompt has
    ends = np.minimum(((worth + half_block) / size).astype(np.int64), full)[runs.node]
    count = ends - np.where(runs.before > 0, np.append(0, ends[:-1]), 0)  # token blocks that end in each use
    count = np.maximum(count, 0)  # a damaged count may say that more is less
    of_node = np.zeros(int(runs.node.max()) + 1, dtype=np.int64)
    of_node[runs.node] = count
    new_id = (np.cumsum(of_node) - of_node)[runs.node]
    upto = np.concatenate(([0], np.cumsum(count)))
    ids = np.empty(int(upto[-1]), dtype=narrow(int(of_node.sum())))
    for some, span in stretches(upto):
        ids[span] = np.repeat(new_id[some] - upto[some], count[some]) + np.arange(span.start, span.stop)
    return ids, upto[runs.first]


def _worth(
    runs: ByteRuns, lengths: IntColumn, tokens: IntColumn, known: BoolColumn
) -> tuple[FloatColumn, IntColumn]:
    """Tokens from the start of the prompt to the end of each run, and the row that it belongs to. [nodes]"""
    rows, nodes = len(known), int(runs.node.max()) + 1
    order = np.lexsort((lengths, ~known))
    rank = np.empty(rows, dtype=np.int64)
    rank[order] = np.arange(rows)
    owner = np.full(nodes, rows)
    np.minimum.at(owner, runs.node, rank[runs.row])
    owner = order[owner]
    own = owner[runs.node] == runs.row  # of each row its last uses
    split = runs.first[1:] - np.bincount(runs.row[own], minlength=rows)
    guessed = np.concatenate(([0.0], np.cumsum(runs.guess)))
    shares = split > runs.first[:-1]
    above = np.where(shares, owner[runs.node[split - 1]], -1)  # the row whose own blocks they follow
    shared = runs.blocks_before(split)
    there = np.where(shares, runs.first[:-1][above] + split - runs.first[:-1], 0)  # the same place in that row
    before, rate = _rates(
        order,
        above,
        np.where(shares, shared - shared[above], 0) * known[above],
        np.where(shares & ~known[above], guessed[there] - guessed[split[above]], 0.0),
        np.where(known, tokens, -1),
        np.maximum(1, lengths - BLOCK_BYTES * shared),
    )
    use = np.flatnonzero(own)
    row = runs.row[use]
    by_count = (runs.before[use] + runs.blocks[use] - shared[row]) * rate[row]
    by_guess = guessed[use + 1] - guessed[split[row]]
    worth = np.zeros(nodes)
    worth[runs.node[use]] = before[row] + np.where(known[row], by_count, by_guess)
    return worth, owner


def _rates(
    order: IntColumn,
    above: IntColumn,
    counted_blocks: IntColumn,
    guessed: FloatColumn,
    tokens: IntColumn,
    rest: IntColumn,
) -> tuple[FloatColumn, FloatColumn]:
    """Tokens in front of each row's own blocks, and tokens of each of those. [rows]

    In front are those of the row above and, of its own, so many blocks at its rate or so many guessed tokens.
    `rest` are the row's other bytes. No tokenizer makes more tokens than bytes, whatever a damaged row says.
    """
    before, rate = array("d", bytes(8 * len(order))), array("d", bytes(8 * len(order)))
    for start in range(0, len(order), _ROWS_AT_ONCE):
        some = order[start : start + _ROWS_AT_ONCE]
        columns = (column[some].tolist() for column in (above, counted_blocks, guessed, tokens, rest))
        for row, up, blocks, guess, count, left in zip(some.tolist(), *columns, strict=True):
            front = before[up] + blocks * rate[up] + guess if up >= 0 else 0.0
            before[row] = front
            if count > front:
                rate[row] = BLOCK_BYTES * ((count - front) / left if count - front < left else 1.0)
    return np.frombuffer(before), np.frombuffer(rate)
