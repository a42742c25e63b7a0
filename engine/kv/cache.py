"""The KV of running requests: joins the block pool and the prefix tree.

A request's blocks, by position (B = block size):

    |-- matched pages --|-- own, published --|-- own, private --|-- allocated, not written --|
    0                  hit                                  computed               B * len(blocks)

A block is free, published (held by the tree, referenced or not) or private to one request. `release` is
fenced: while a step that may touch the blocks is in flight they stay held, and go back when that step is
retired. The caller publishes only positions whose step has completed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from random import Random
from typing import NamedTuple

from engine.invariants import require
from engine.kv.blocks import BlockPool
from engine.kv.prefix import Node, PrefixTree


class BlockTable:
    """The blocks of one request. `path` is referenced; `match`, of a request that waits, is not."""

    __slots__ = ("blocks", "key", "match", "namespace", "path")

    def __init__(self, namespace: str, key: Callable[[int], Hashable]) -> None:
        self.namespace = namespace
        self.key = key
        self.match: list[Node] = []
        self.path: list[Node] = []
        self.blocks: tuple[int, ...] = ()

    def private(self) -> list[int]:
        """Blocks that only this request holds: not published yet, or published by another first."""
        own = [block for block, node in zip(self.blocks, self.path, strict=False) if block != node.block]
        return own + list(self.blocks[len(self.path) :])


class Held(NamedTuple):
    """What a request gives back: references along a path of the tree, and its private blocks."""

    path: list[Node]
    private: list[int]


class KVCache:
    """All KV blocks of one instance."""

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_cache: bool = True, shuffle: Random | None = None
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, shuffle)
        self.tree = PrefixTree()
        self._prefix_cache = prefix_cache
        self._fenced: deque[tuple[int, Held]] = deque()

    @property
    def available(self) -> int:
        """Blocks that could be allocated now: free, or published and unreferenced."""
        return self.pool.free + self.tree.evictable

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold `positions` tokens."""
        return -(-positions // self.block_size)

    def match(self, table: BlockTable, tokens: int) -> int:
        """How many of a waiting request's `tokens` are cached now: full pages, never the last token."""
        if self._prefix_cache:
            self.tree.match(table.namespace, table.match, table.key, (tokens - 1) // self.block_size)
        return len(table.match) * self.block_size

    def admit(self, table: BlockTable, positions: int, spare: int) -> bool:
        """Reference the matched pages and allocate the rest of `positions`, all or nothing.

        `spare` blocks must stay available. Matched pages that nobody references yet are not available to
        others once we hold them, so they count against it (ATOM#902). Call right after `match`.
        """
        needed = self.blocks_for(positions) - len(table.match)
        revived = sum(not node.refs for node in table.match)
        if needed + spare > self.available - revived:
            return False
        table.path, table.match = table.match, []
        self.tree.acquire(table.path)
        table.blocks = tuple(node.block for node in table.path) + tuple(self._take() for _ in range(needed))
        return True

    def grow(self, table: BlockTable, positions: int) -> bool:
        """Make sure that the table covers `positions`; False if no block is available."""
        while len(table.blocks) * self.block_size < positions:
            if not self.available:
                return False
            table.blocks += (self._take(),)
        return True

    def publish(self, table: BlockTable, computed: int) -> None:
        """Publish the full pages among the first `computed` positions, whose steps have all completed."""
        if self._prefix_cache:
            for page in range(len(table.path), computed // self.block_size):
                self.tree.insert(table.namespace, table.path, table.key(page), table.blocks[page])

    def release(self, table: BlockTable, after: int | None = None) -> None:
        """Empty the table; its blocks go back when step `after` is retired, now if there is none."""
        held = Held(table.path, table.private())
        table.path, table.blocks = [], ()
        if after is None:
            self._give_back(held)
        else:
            self._fenced.append((after, held))

    def retire(self, step_id: int) -> None:
        """Step `step_id` and all before it are done: give back what waited for them."""
        while self._fenced and self._fenced[0][0] <= step_id:
            self._give_back(self._fenced.popleft()[1])

    def check_invariants(self, tables: Iterable[BlockTable]) -> None:
        """Every block is free, published or private to one of `tables` (or fenced); references are exact."""
        held = [Held(table.path, table.private()) for table in tables] + [held for _, held in self._fenced]
        free = self.pool.check_invariants()
        refs = self.tree.check_invariants()
        private = [block for one in held for block in one.private]
        blocks = [*free, *refs, *private]
        require(len(blocks) == self.pool.total == len(set(blocks)), "free + cached + in use is not the total")
        uses = Counter(node.block for one in held for node in one.path)
        require(all(uses[block] == count for block, count in refs.items()), "a page's references are wrong")

    def _give_back(self, held: Held) -> None:
        self.tree.release(held.path)
        for block in reversed(held.private):
            self.pool.give_back(block)

    def _take(self) -> int:
        return self.pool.take() if self.pool.free else self.tree.evict()
