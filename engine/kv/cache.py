"""The KV of running requests: joins the block pool and the prefix tree.

A request's blocks, by position (B = block size):

    |-- matched pages --|-- own, published --|-- own, private --|-- allocated, not written --|
    0                  hit              B * published        computed               B * len(blocks)

A block is free, published (held by the tree, referenced or not) or private to one request. `release` is
fenced: while a step that may touch the blocks is in flight they stay held, and go back when that step is
retired. The caller publishes only positions whose step has completed.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from engine.invariants import require
from engine.kv.blocks import BlockPool
from engine.kv.identity import RunOf
from engine.kv.prefix import Node, PrefixTree


class BlockTable:
    """The blocks of one request. `path` is referenced; `match`, of a request that waits, is not.

    The first `published` pages are on the path; `doubles` are blocks of those whose page the tree had already.
    Pages from `own` on nobody else can have.
    """

    __slots__ = ("blocks", "doubles", "match", "matched", "namespace", "own", "path", "published", "run_of")

    def __init__(self, namespace: str, run_of: RunOf, own: int = sys.maxsize) -> None:
        self.namespace = namespace
        self.run_of = run_of
        self.own = own
        self.match: list[Node] = []
        self.matched = 0  # pages
        self.path: list[Node] = []
        self.blocks: list[int] = []
        self.published = 0
        self.doubles: list[int] = []

    def private(self) -> list[int]:
        """Blocks that only this request holds: not published yet, or published by another first."""
        return self.doubles + self.blocks[self.published :]


class Held(NamedTuple):
    """What a request gives back: references along a path of the tree, pages left over, its private blocks."""

    path: list[Node]
    left_over: list[int]
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
        self.fenced: deque[tuple[int, Held]] = deque()  # with the step that must be retired first

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
            limit = (tokens - 1) // self.block_size
            table.matched = self.tree.match(table.namespace, table.match, table.run_of, limit)
        return table.matched * self.block_size

    def admit(self, table: BlockTable, positions: int, spare: int) -> bool:
        """Reference the matched pages and allocate the rest of `positions`, all or nothing.

        `spare` blocks must stay available. Matched pages that nobody references yet are not available to
        others once we hold them, so they count against it (ATOM#902). Call right after `match`.
        """
        needed = self.blocks_for(positions) - table.matched
        if needed + spare > self.available - self.tree.idle_pages(table.match):
            return False
        if table.match:
            self._hold(table)
        table.blocks += self.take(needed)
        return True

    def do_without_parts(self, table: BlockTable) -> None:
        """Cut a match before the first run of which it uses fewer pages than it would hold."""
        for i, node in enumerate(table.match):
            run = table.run_of(i)
            if min(run.stop, table.matched) - run.start < len(node.blocks):
                del table.match[i:]
                table.matched = run.start
                break

    def take(self, count: int) -> list[int]:
        """Blocks to write to: free ones, then those of evicted pages. StopIteration where there are fewer."""
        pool = self.pool
        free = pool.free
        if count <= free:
            return pool.take(count)
        taken = pool.take(free) if free else []
        taken += self.tree.evict(count - free)
        if len(taken) > count:
            pool.give_back(reversed(taken[count:]))
            del taken[count:]
        return taken

    def grow(self, table: BlockTable, positions: int) -> bool:
        """Make sure that the table covers `positions`; False if no block is available."""
        needed = self.blocks_for(positions) - len(table.blocks)
        if needed > self.available:
            return False
        if needed > 0:
            table.blocks += self.take(needed)
        return True

    def publish(self, table: BlockTable, computed: int) -> None:
        """Publish the full pages among the first `computed` positions, whose steps have all completed.

        Not the request's own: they are of use to nobody before it lets go of them.
        """
        pages = min(computed // self.block_size, table.own)
        if pages > table.published:
            self._publish(table, pages)

    def _publish(self, table: BlockTable, pages: int) -> None:
        if self._prefix_cache and pages > table.published:
            table.doubles += self.tree.publish(
                table.namespace, table.path, table.run_of, table.blocks, table.published, pages
            )
            table.published = pages

    def release(
        self, table: BlockTable, computed: int, after: int | None = None, *, over: bool = False
    ) -> None:
        """Publish what is computed and empty the table.

        The blocks go back when step `after` is retired, now if there is none. `over`: the request will not
        come again, so nobody looks for pages that only it can have.
        """
        pages = computed // self.block_size
        self._publish(table, min(pages, table.own) if over else pages)
        left_over: list[int] = []
        if over and pages > table.own and self._prefix_cache:
            left_over = table.blocks[table.published : pages]
            del table.blocks[table.published : pages]
        private = table.private()
        path, table.path, table.blocks, table.doubles, table.published = table.path, [], [], [], 0
        if after is None:
            self._give_back(path, left_over, private)
        else:
            self.fenced.append((after, Held(path, left_over, private)))

    def retire(self, step_id: int) -> bool:
        """Step `step_id` and all before it are done: give back what waited for them. Whether anything did."""
        waited = False
        while self.fenced and self.fenced[0][0] <= step_id:
            self._give_back(*self.fenced.popleft()[1])
            waited = True
        return waited

    def check_invariants(self, tables: Iterable[BlockTable]) -> None:
        """Every block is free, published or private to one of `tables` (or fenced); references are exact."""
        held = [Held(table.path, [], table.private()) for table in tables] + [held for _, held in self.fenced]
        free = self.pool.check_invariants()
        refs = self.tree.check_invariants()
        private = [block for one in held for block in (*one.left_over, *one.private)]
        blocks = [*free, *(block for node in refs for block in node.blocks), *private]
        require(len(blocks) == self.pool.total == len(set(blocks)), "free + cached + in use is not the total")
        uses = Counter(node for one in held for node in one.path)
        require(all(uses[node] == count for node, count in refs.items()), "a page's references are wrong")

    def _hold(self, table: BlockTable) -> None:
        """Reference the matched pages."""
        self.tree.acquire(table.match)
        table.path, table.match = table.match, []
        for i, node in enumerate(table.path):
            run = table.run_of(i)
            table.blocks += node.blocks[: min(run.stop, table.matched) - run.start]
        table.published, table.matched = table.matched, 0

    def _give_back(self, path: list[Node], left_over: list[int], private: list[int]) -> None:
        if left_over:
            self.tree.leave(left_over)
        if path:
            self.tree.release(path)
        self.pool.give_back(reversed(private))
