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
from advisor.workload.runs import Runs, number_densely


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
        last = self.distance + self.blocks - 1  # distance of each run's last block
        starts = np.searchsorted(capacities, self.distance, side="right")
        parted = np.flatnonzero(np.append(capacities, np.inf)[starts] <= last)
        whole = starts.copy()
        whole[parted] = np.searchsorted(capacities, last[parted], side="right")
        hits = np.zeros((len(capacities), 2))
        for index, column in enumerate((self.blocks, self.tokens)):
            fits = np.bincount(whole, weights=column, minlength=len(capacities) + 1)
            hits[:, index] = fits[:-1].cumsum()
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
    use, last_touch, weight, touched = _touched_since(runs, scale)
    # Less the blocks that were touched more than once.
    distance = touched - larger_before(last_touch, weight)
    return Reuses(runs.size, use, distance, runs.blocks[use], runs.tokens[use])


def _touched_since(
    runs: Runs, scale: FloatColumn | None
) -> tuple[IntColumn, IntColumn, FloatColumn, FloatColumn]:
    """Of every reuse, as they are touched: its index, when it was touched before as a number of touches, its
    blocks, and the blocks touched between that and the lookup. [reuses]
    """
    starts, touch = _touch_order(runs.row)
    weight = (runs.blocks.astype(np.float64) if scale is None else runs.blocks * scale)[touch]
    touched_before = np.append(0.0, np.cumsum(weight))  # blocks touched before each touch
    seen = np.flatnonzero(runs.seen[touch])
    use = touch[seen]
    last_touch = touch[runs.previous[use]]  # the order is its own inverse
    lookup = np.repeat(touched_before[starts[:-1]], np.diff(starts))[use]
    return use, last_touch, weight[seen], lookup - touched_before[last_touch + 1]


def _touch_order(row: IntColumn) -> tuple[IntColumn, IntColumn]:
    """Where the uses of each request that has some start and the last end, and all uses as they are touched.

    That is requests in order, each from leaf to root; as indices.
    """
    starts = np.flatnonzero(np.concatenate(([True], row[1:] != row[:-1], [True])))
    return starts, np.repeat(starts[:-1] + starts[1:] - 1, np.diff(starts)) - np.arange(len(row))


def larger_before(values: IntColumn, weights: FloatColumn) -> FloatColumn:
    """For every entry the total weight of the entries before it that are larger.

    Values are distinct, not negative and small. Neighbours of neighbouring ranks, as the blocks of one request
    that another one has again, count as one entry: nothing is between them, and none is before a smaller one.
    """
    if len(values) == 0:
        return np.zeros(0)
    rank = number_densely(values)
    starts = np.flatnonzero(np.append(True, rank[1:] != rank[:-1] + 1))
    larger = _larger_before(number_densely(rank[starts]), np.add.reduceat(weights, starts))
    return np.repeat(larger, np.diff(starts, append=len(values)))


def _larger_before(values: IntColumn, weights: FloatColumn) -> FloatColumn:
    """The same for the values 0 to `len(values)` - 1 in any order.

    Counts inversions from the top bit down: among entries that agree on all higher bits, one with bit 0 is
    smaller than those before it with bit 1; then each such group is split by the bit, in order. With values
    padded to a power of two all groups are of one size: a few numpy passes a bit, O(n log n).
    """
    bits = (len(values) - 1).bit_length()
    rank = np.arange(1 << bits, dtype=np.int32)
    rank[: len(values)] = values
    weight = np.zeros(1 << bits)
    weight[: len(values)] = weights
    total = np.zeros(1 << bits)
    for bit in reversed(range(bits)):
        one = (rank >> bit & 1).astype(np.bool_)
        zeros, ones = np.flatnonzero(~one), np.flatnonzero(one)
        of_ones = weight[ones]
        passed = np.append(0.0, np.cumsum(of_ones))  # weight of the ones before each, over all groups
        before = passed[zeros - np.arange(len(zeros))] - np.repeat(passed[: -1 : 1 << bit], 1 << bit)
        rank = np.concatenate((rank[zeros], rank[ones]))
        weight = np.concatenate((weight[zeros], of_ones))
        total = np.concatenate((total[zeros] + before, total[ones]))
    by_rank = np.empty_like(total)
    by_rank[rank] = total
    return by_rank[values]
