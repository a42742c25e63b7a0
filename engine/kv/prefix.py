"""The prefix tree: which KV blocks hold which prompt prefix, for reuse by later requests.

An edge is a run: pages (full blocks) that occur together under one key, in the engine always one page, a
namespace at each root. Pages enter once the step that wrote them has completed (`publish`), are referenced
while requests use them, then wait in the eviction queue for reuse or eviction. Keys are opaque and compared
exactly, so two prefixes are never confused; runs never split. A run may be there in part: its leading pages.
What a simulated request has for itself is in no tree once it has ended: it only waits for eviction.

A request references whole paths from the root, hence a referenced node has only referenced ancestors, and
every unreferenced node can be evicted in turn. Paths are released tail first, hence in the queue a child
always precedes its parent and the head is a leaf: eviction, from the tail of a run, is exact LRU of leaves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from engine.invariants import require
from engine.kv.blocks import TRASH_BLOCK
from engine.kv.identity import RunOf


class Node:
    """The published pages of one run, leading first. Evicted nodes and roots have none."""

    __slots__ = ("blocks", "children", "key", "parent", "refs")

    def __init__(self, parent: Node | None, key: Hashable) -> None:
        self.parent = parent
        self.key = key
        self.blocks: list[int] = []
        self.refs = 0
        self.children: dict[Hashable, Node] = {}


class PrefixTree:
    """All published pages of one KV pool."""

    def __init__(self) -> None:
        self._roots: dict[str, Node] = {}
        self._idle: OrderedDict[Node, None] = OrderedDict()  # unreferenced nodes, next to evict first
        self._size = 0
        self.evictable = 0  # published pages that no request references

    def __len__(self) -> int:
        return self._size

    def match(self, namespace: str, path: list[Node], run_of: RunOf, limit: int) -> int:
        """Bring `path` up to date in place: the longest published prefix; returns its pages, at most `limit`.

        `path` is empty or an earlier match of the same request, so that a repeated match costs only what
        changed: evicted pages leave at the tail, pages published since are appended. References nothing.
        """
        while path and not path[-1].blocks:
            path.pop()
        node = path[-1] if path else self._roots.get(namespace)
        if node is None:
            return 0
        pages = whole = 0  # of the prefix, and those with which the last run would be complete
        if path:
            run = run_of(len(path) - 1)
            whole = run.stop
            pages = min(run.start + len(node.blocks), whole)
        while pages == whole and pages < limit:
            run = run_of(len(path))
            child = node.children.get(run.key)
            if child is None:
                break
            path.append(child)
            node = child
            whole = run.stop
            pages = min(run.start + len(node.blocks), whole)
        return min(pages, limit)

    def idle_pages(self, path: list[Node]) -> int:
        """Published pages of a path that no request references."""
        return sum([len(node.blocks) for node in path if not node.refs]) if path else 0

    def acquire(self, path: list[Node]) -> None:
        """Reference every node of a path from the root."""
        for node in path:
            self._reference(node)

    def release(self, path: list[Node]) -> None:
        """Drop one reference from every node of a path from the root."""
        for node in reversed(path):
            node.refs -= 1
            if not node.refs:
                self._idle[node] = None
                self.evictable += len(node.blocks)

    def publish(
        self, namespace: str, path: list[Node], run_of: RunOf, blocks: list[int], start: int, stop: int
    ) -> list[int]:
        """Publish `blocks` as pages `start` to `stop` behind `path`, and append the nodes, referenced.

        Where a page is there already the tree keeps its own block. Returns ours, which stays with the request.
        """
        doubles: list[int] = []
        while start < stop:
            run = run_of(len(path) - 1) if path else None
            if run is None or start == run.stop:
                run = run_of(len(path))
                parent = path[-1] if path else self._roots.setdefault(namespace, Node(None, namespace))
                node = parent.children.get(run.key)
                if node is None:
                    node = parent.children[run.key] = Node(parent, run.key)
                    node.refs = 1
                else:
                    self._reference(node)
                path.append(node)
            node = path[-1]
            end = min(stop, run.stop)
            known = min(end, max(start, run.start + len(node.blocks)))
            doubles += blocks[start:known]
            node.blocks += blocks[known:end]
            self._size += end - known
            start = end
        return doubles

    def leave(self, blocks: list[int]) -> None:
        """Pages that nobody can look for any more: they are evicted in their turn, all at once."""
        node = Node(None, None)
        node.blocks = blocks
        self._idle[node] = None
        self._size += len(blocks)
        self.evictable += len(blocks)

    def evict(self, count: int) -> list[int]:
        """Forget the least recently used unreferenced pages, leaves first; their blocks are the caller's.

        They are `count`, or more where the last ones were left over. StopIteration if there are fewer.
        """
        taken: list[int] = []
        while len(taken) < count:
            node = next(iter(self._idle))
            blocks = node.blocks
            part = blocks[len(taken) - count :] if node.parent else [*blocks]
            taken += reversed(part)
            del blocks[-len(part) :]
            if not blocks:
                self._forget(node)
        self._size -= len(taken)
        self.evictable -= len(taken)
        return taken

    def check_invariants(self) -> dict[Node, int]:
        """Counts, queue and references agree. Returns the references of each node that has pages."""
        refs = {node: 0 for node in self._idle if node.parent is None}
        blocks = {block for node in refs for block in node.blocks}
        place = {node: i for i, node in enumerate(self._idle)}
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            for child in node.children.values():
                require(child.parent is node, "a child names another parent")
                require(bool(child.blocks), "a node without pages is still in the tree")
                require(
                    TRASH_BLOCK not in child.blocks and blocks.isdisjoint(child.blocks),
                    "a block is published twice",
                )
                require((child in place) == (child.refs == 0), "queue and references disagree")
                if node.parent is not None:
                    require(node.refs >= child.refs, "a referenced page has an unreferenced parent")
                    require(
                        child not in place or place[child] < place.get(node, len(place)), "parent before child"
                    )
                blocks.update(child.blocks)
                refs[child] = child.refs
                stack.append(child)
        require(sum(len(node.blocks) for node in refs) == self._size, "the tree has lost count")
        require(sum(len(node.blocks) for node in place) == self.evictable, "the queue has lost count")
        return refs

    def _forget(self, node: Node) -> None:
        del self._idle[node]
        parent = node.parent
        if parent is not None:
            del parent.children[node.key]
            if parent.parent is None and not parent.children:
                del self._roots[str(parent.key)]

    def _reference(self, node: Node) -> None:
        if not node.refs:
            del self._idle[node]
            self.evictable -= len(node.blocks)
        node.refs += 1
