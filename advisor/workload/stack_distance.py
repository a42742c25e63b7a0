"""LRU stack distances of block accesses: the hit rate of every cache size from one pass.

The cache is the LRU of an engine's prefix tree. A request looks up its leading blocks, then touches its blocks
leaf to root, so that a parent is always more recent than its children and eviction takes leaves first. Then a
block hits in a cache of C blocks exactly when fewer than C distinct blocks are more recent than it at the
lookup: its distance (Mattson et al., "Evaluation techniques for storage hierarchies", 1970). Never simulates a
cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from advisor.logs.trace import FloatColumn, IntColumn
from advisor.workload.runs import Runs


@dataclass(frozen=True, slots=True)
class Reuses:
    """The uses of runs that hit in an unlimited cache. Columns: [reuses].

    Block k of a run (0 is nearest the root) has distance `distance + k` and hits in larger caches.
    """

    size: int  # tokens per block
    use: IntColumn  # index into the runs' columns
    distance: FloatColumn  # blocks more recent than the run's first
    blocks: IntColumn
    tokens: IntColumn

    def count_hits(self, capacities: IntColumn) -> FloatColumn:
        """Hits in blocks and in tokens at ascending capacities, in blocks. [capacities, 2]"""
        starts = np.searchsorted(capacities, self.distance, side="right")
        whole = np.searchsorted(capacities, self.distance + self.blocks - 1, side="right")
        hits = np.zeros((len(capacities), 2))
        for index, column in enumerate((self.blocks, self.tokens)):
            fits = np.bincount(whole, weights=column, minlength=len(capacities) + 1)
            hits[:, index] = fits[:-1].cumsum()
        parted = np.flatnonzero(starts < whole)
        for index, capacity in enumerate(capacities):
            part = parted[(starts[parted] <= index) & (index < whole[parted])]
            blocks = np.ceil(capacity - self.distance[part])
            hits[index] += blocks.sum(), np.minimum(blocks * self.size, self.tokens[part]).sum()
        return hits

    def take(self, chosen: npt.NDArray[np.bool_]) -> Reuses:
        """Only the chosen reuses."""
        return replace(
            self,
            use=self.use[chosen],
            distance=self.distance[chosen],
            blocks=self.blocks[chosen],
            tokens=self.tokens[chosen],
        )


def find_reuses(runs: Runs, scale: FloatColumn | None = None) -> Reuses:
    """Stack distances of all reuses. `scale` [uses]: blocks that each block stands for; 1 unless sampled."""
    if scale is None:
        scale = np.ones(len(runs))
    touch = _touch_order(runs.row)
    weight = (runs.blocks * scale)[touch]
    touched_before = np.concatenate(([0.0], np.cumsum(weight)))  # blocks touched before each touch
    seen = np.flatnonzero(runs.seen[touch])
    use = touch[seen]
    last_touch = touch[runs.previous[use]]  # the order is its own inverse
    # Blocks touched between the last use and this lookup, less those that were touched there before.
    lookup = touched_before[np.searchsorted(runs.row, runs.row[use])]
    touched_again = larger_before(last_touch, weight[seen])
    distance = lookup - touched_before[last_touch + 1] - touched_again
    return Reuses(runs.size, use, distance, runs.blocks[use], runs.tokens[use])


def _touch_order(row: IntColumn) -> IntColumn:
    """Indices of uses in the order of touching: requests in order, each from leaf to root."""
    first = np.searchsorted(row, row, side="left")
    last = np.searchsorted(row, row, side="right") - 1
    return first + last - np.arange(len(row))


def larger_before(values: IntColumn, weights: FloatColumn) -> FloatColumn:
    """For every entry the total weight of the entries before it that are larger. Values are distinct.

    Counts inversions from the top bit down: among entries that agree on all higher bits, one with bit 0 is
    smaller than those before it with bit 1; then each such group is split by the bit, in order. With values
    ranked and padded to a power of two all groups are of one size: a few numpy passes a bit, O(n log n).
    """
    count = len(values)
    if count == 0:
        return np.zeros(0)
    bits = (count - 1).bit_length()
    ranks = np.arange(1 << bits, dtype=np.int32)
    ranks[np.argsort(values)] = np.arange(count, dtype=np.int32)
    weight = np.zeros(1 << bits)
    weight[:count] = weights
    total = np.zeros(1 << bits)
    rank = ranks
    for bit in reversed(range(bits)):
        one = (rank >> bit & 1).astype(bool)
        ones, zeros = np.flatnonzero(one), np.flatnonzero(~one)
        passed = np.cumsum(weight * one).reshape(-1, 2 << bit)  # [groups, entries of a group]
        passed -= np.concatenate(([0.0], passed[:-1, -1]))[:, None]
        total[zeros] += passed.reshape(-1)[zeros]
        order = np.concatenate((zeros, ones))
        rank, weight, total = rank[order], weight[order], total[order]
    by_rank = np.empty_like(total)
    by_rank[rank] = total
    return by_rank[ranks[:count]]
