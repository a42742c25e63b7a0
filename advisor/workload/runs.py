"""Block accesses as runs: stretches of blocks that always occur together.

In a tree of chained block ids a block that is used exactly as often as its parent is always used with it. All
that is measured about sharing follows from runs, exactly, at a fraction of the accesses (the public Mooncake
conversation trace: 288,500 uses of blocks, 37,454 uses of runs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.logs.ordinals import run_heads
from advisor.logs.trace import Blocks, IntColumn, Trace


@dataclass(frozen=True, slots=True)
class Runs:
    """One entry a use of a run by a request, requests in order and leading run first. Columns: [uses]."""

    size: int  # tokens per block
    row: IntColumn  # the request
    node: IntColumn  # which run: dense ordinals
    before: IntColumn  # blocks of the request in front of it
    blocks: IntColumn  # its length
    tokens: IntColumn  # prompt tokens in it: less than blocks * size where the last block is partial
    previous: IntColumn  # the use of the same run before this one, as an index; -1 for none

    def __len__(self) -> int:
        return len(self.row)

    @property
    def seen(self) -> npt.NDArray[np.bool_]:
        """Uses that hit in an unlimited cache."""
        return self.previous >= 0

    def uses(self) -> IntColumn:
        """How often each run is used. [nodes]"""
        return np.bincount(self.node)

    def take(self, chosen: npt.NDArray[np.bool_]) -> Runs:
        """Only the chosen uses: of a run all or none, or of a request all or none."""
        node = number_densely(self.node[chosen])
        return Runs(
            self.size,
            self.row[chosen],
            node,
            self.before[chosen],
            self.blocks[chosen],
            self.tokens[chosen],
            previous_use(node),
        )


def runs_of(trace: Trace) -> Runs | None:
    """The runs of a Trace; None where it has no blocks."""
    return None if trace.blocks is None else find_runs(trace.blocks, trace.prompt_tokens)


def find_runs(blocks: Blocks, prompt_tokens: IntColumn) -> Runs:
    """The runs of all requests. Ids must be chained, as `Blocks` promises: one parent, one depth.

    A request of unknown length (-1) has its blocks and no tokens in them. Between the ids and the runs, which
    are few, this holds a byte a block and a count for every id.
    """
    ids, starts = blocks.ids, blocks.starts
    if len(ids) == 0:
        nothing = np.zeros(0, dtype=np.int64)
        return Runs(blocks.size, *[nothing] * 6)
    heads = run_heads(ids, starts)
    row = np.repeat(np.arange(len(starts) - 1), np.diff(np.searchsorted(heads, starts)))
    before = heads - starts[row]
    run_blocks = np.diff(heads, append=len(ids))
    node = number_densely(ids[heads])
    tokens = np.clip(prompt_tokens[row] - before * blocks.size, 0, run_blocks * blocks.size)
    return Runs(blocks.size, row, node, before, run_blocks, tokens, previous_use(node))


def number_densely(values: npt.NDArray[np.integer[Any]]) -> IntColumn:
    """The rank of every entry among the distinct values, which are small and not negative."""
    present = np.zeros(int(values.max(initial=-1)) + 1, dtype=np.bool_)
    present[values] = True
    rank = np.cumsum(present, dtype=np.int32 if len(present) < 2**31 else np.int64)
    ranks: IntColumn = rank[values].astype(np.int64) - 1
    return ranks


def previous_use(keys: IntColumn) -> IntColumn:
    """For every entry the index of the entry before it with the same key; -1 for none."""
    order, is_first = by_key(keys)
    before = np.append(-1, order[:-1])[: len(order)]
    before[is_first] = -1
    previous = np.empty(len(keys), dtype=np.int64)
    previous[order] = before
    return previous


def by_key(keys: IntColumn) -> tuple[IntColumn, npt.NDArray[np.bool_]]:
    """The entries, as indices, by key and each key's in order; and which of them are the first of their key.

    Sorts key and index as one integer where both fit in it: some times as fast as a stable argsort.
    """
    bits = len(keys).bit_length()
    widest = max(int(keys.max(initial=0)), -1 - int(keys.min(initial=0))).bit_length()
    if widest + bits > 63:
        order = np.argsort(keys, kind="stable")
        return order, np.append(True, keys[order[1:]] != keys[order[:-1]])[: len(keys)]
    packed = keys.astype(np.int64) << bits
    packed |= np.arange(len(keys))
    packed.sort()
    is_first = np.append(True, (packed[1:] ^ packed[:-1]) >> bits != 0)[: len(keys)]
    packed &= (1 << bits) - 1
    return packed, is_first
