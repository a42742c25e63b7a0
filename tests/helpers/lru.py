"""A slow LRU prefix cache that is obviously right: the oracle of the one-pass stack distances."""

from __future__ import annotations

from collections import OrderedDict

from advisor.logs.trace import Trace


class LruCache:
    """Holds up to `capacity` blocks, least recent first. Requests look up, then touch from leaf to root."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def look_up(self, path: list[int]) -> int:
        """How many leading blocks of `path` are cached."""
        return next((depth for depth, block in enumerate(path) if block not in self.blocks), len(path))

    def touch(self, path: list[int]) -> None:
        """Make the blocks of `path` the most recent, the root most of all; evict what no longer fits."""
        for block in reversed(path):
            self.blocks[block] = None
            self.blocks.move_to_end(block)
            if len(self.blocks) > self.capacity:
                self.blocks.popitem(last=False)


def simulate(trace: Trace, capacity: int) -> tuple[int, int]:
    """Hits of a cache of `capacity` blocks over the whole trace, in blocks and in prompt tokens."""
    assert trace.blocks is not None
    cache, blocks, tokens = LruCache(capacity), 0, 0
    for row in range(len(trace)):
        path = trace.blocks.row(row).tolist()
        hit = cache.look_up(path)
        blocks += hit
        tokens += min(hit * trace.blocks.size, int(trace.prompt_tokens[row]))
        cache.touch(path)
    return blocks, tokens
