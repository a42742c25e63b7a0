"""The prefix tree: which KV blocks hold which prompt prefix, for reuse by later requests.

One page (a full block) an edge, a namespace at each root. A page enters once the step that wrote it has
completed (`insert`), is referenced while requests use it, then waits in the eviction queue for reuse or
eviction. Keys are opaque and compared exactly, so two prefixes are never confused; nodes never split.

A request references whole paths from the root, hence a referenced node has only referenced ancestors, and
every unreferenced node can be evicted in turn. Paths are released tail first, hence in the queue a child
always precedes its parent and the head is a leaf: eviction is exact LRU of leaves in O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from engine.invariants import require
from engine.kv.blocks import TRASH_BLOCK


class Node:
    """One published page. `block` is the trash block once the page has been evicted, and for roots."""

    __slots__ = ("block", "children", "key", "parent", "refs")

    def __init__(self, parent: Node | None, key: Hashable, block: int) -> None:
        self.parent = parent
        self.key = key
        self.block = block
        self.refs = 0
        self.children: dict[Hashable, Node] = {}


class PrefixTree:
    """All published pages of one KV pool."""

    def __init__(self) -> None:
        self._roots: dict[str, Node] = {}
        self._idle: OrderedDict[Node, None] = OrderedDict()  # unreferenced nodes, next to evict first
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def evictable(self) -> int:
        """Published pages that no request references."""
        return len(self._idle)

    def match(self, namespace: str, path: list[Node], key: Callable[[int], Hashable], limit: int) -> None:
        """Bring `path` up to date in place: the longest published prefix of at most `limit` pages.

        `path` is empty or an earlier match of the same request, so that a repeated match costs only what
        changed: evicted pages leave at the tail, pages published since are appended. References nothing.
        """
        while path and path[-1].block == TRASH_BLOCK:
            path.pop()
        node = path[-1] if path else self._roots.get(namespace)
        while node and len(path) < limit:
            node = node.children.get(key(len(path)))
            if node:
                path.append(node)

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

    def insert(self, namespace: str, path: list[Node], key: Hashable, block: int) -> None:
        """Publish `block` as the page after `path` and append its node, referenced.

        If the page is already there the node keeps its own block, and ours stays private to its request.
        """
        parent = path[-1] if path else self._roots.setdefault(namespace, Node(None, namespace, TRASH_BLOCK))
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = Node(parent, key, block)
            self._size += 1
            node.refs = 1
        else:
            self._reference(node)
        path.append(node)

    def evict(self) -> int:
        """Forget the least recently used unreferenced leaf; its block is the caller's. KeyError if none."""
        node, _ = self._idle.popitem(last=False)
        block, node.block = node.block, TRASH_BLOCK
        self._size -= 1
        parent = node.parent
        if parent is not None:
            del parent.children[node.key]
            if parent.parent is None and not parent.children:
                del self._roots[str(parent.key)]
        return block

    def check_invariants(self) -> dict[int, int]:
        """Counts, queue and references agree. Returns the references of each published block."""
        refs: dict[int, int] = {}
        place = {node: i for i, node in enumerate(self._idle)}
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            for child in node.children.values():
                require(child.parent is node, "a child names another parent")
                require(child.block != TRASH_BLOCK and child.block not in refs, "a block is published twice")
                require((child in place) == (child.refs == 0), "queue and references disagree")
                if node.parent is not None:
                    require(node.refs >= child.refs, "a referenced page has an unreferenced parent")
                    require(
                        child not in place or place[child] < place.get(node, len(place)), "parent before child"
                    )
                refs[child.block] = child.refs
                stack.append(child)
        require(len(refs) == self._size, "the tree has lost count")
        return refs

    def _reference(self, node: Node) -> None:
        if not node.refs:
            del self._idle[node]
        node.refs += 1
