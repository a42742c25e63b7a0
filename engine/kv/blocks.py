"""The pool of KV blocks: which are free.

A block goes free -> taken -> free. Block 0 is the trash block: padding writes go there, it is never handed
out. Who holds a taken block (one request, or the prefix tree for many) is not this file's concern.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from engine.invariants import require

TRASH_BLOCK = 0


class BlockPool:
    """`num_blocks` blocks, the trash block included.

    The last freed is the next taken. With `shuffle` the order is random: tests use it to show that no result
    depends on which block is which (vllm#39146).
    """

    def __init__(self, num_blocks: int, shuffle: Random | None = None) -> None:
        self.total = num_blocks - 1
        self._shuffle = shuffle
        self._free = list(range(num_blocks - 1, TRASH_BLOCK, -1))

    @property
    def free(self) -> int:
        """Blocks that `take` can hand out."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Free blocks; IndexError where there are fewer."""
        left = len(self._free) - count
        if left < 0:
            raise IndexError("no free block")
        if self._shuffle:
            self._shuffle.shuffle(self._free)
        taken = self._free[left:]
        del self._free[left:]
        taken.reverse()
        return taken

    def give_back(self, blocks: Iterable[int]) -> None:
        """Make taken blocks free; the last of them is taken next."""
        self._free.extend(blocks)

    def check_invariants(self) -> frozenset[int]:
        """No block is free twice and the trash block never is. Returns the free blocks."""
        free = frozenset(self._free)
        require(len(free) == len(self._free), "a block is free twice")
        require(all(TRASH_BLOCK < block <= self.total for block in free), "a free block is not of this pool")
        return free
