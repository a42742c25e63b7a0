"""Which instance probably holds which prompt prefix: the router's approximate copy of the prefix caches.

A tree of runs of pages, each with the set of instances that were sent it. Approximate: nothing tells it what
an instance evicted; instead each instance is given as many pages as its KV cache has, least recently sent out
first (SGLang, section 3, data parallel). Wrong entries cost a poor choice, never a wrong answer.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence

from engine.fleet.roster import Instance
from engine.invariants import require
from engine.kv.identity import runs_of
from engine.request import Request, Run

PAGES = 16_384  # ours: of an instance whose KV size is not known; 262,144 tokens at the default block size


class _Node:
    """A run at one place of the tree, in its longest form seen; a namespace at a root. `mask`: who has it."""

    __slots__ = ("children", "key", "mask", "parent", "start", "stop")

    def __init__(self, parent: _Node | None, key: Hashable) -> None:
        self.parent = parent
        self.key = key
        self.mask = 0
        self.start = self.stop = 0
        self.children: dict[Hashable, _Node] = {}


class PrefixIndex:
    """The prefixes that each of `instances` was sent."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._block = instances[0].pool.block_size
        self._pages = [(one.pool.kv_tokens or PAGES * self._block) // self._block for one in instances]
        self._used = [0] * len(instances)
        self._recent: list[OrderedDict[_Node, int]] = [OrderedDict() for _ in instances]
        self._roots: dict[str, _Node] = {}

    def match(self, request: Request, among: int) -> tuple[int, int]:
        """Who of `among` holds most of the prompt, as bits, and how many tokens; never the last token."""
        limit = (len(request.prompt) - 1) // self._block
        found = pages = 0
        root = self._roots.get(request.namespace)
        children = root.children if root else {}
        for key, start, stop in self._runs(request):
            node = children.get(key)
            if node is None or start >= limit:
                break
            holders = node.mask & among
            if not holders:
                break
            found, children = holders, node.children
            if node.stop < stop:
                pages = node.stop
                break
            pages = stop
        return found, min(pages, limit) * self._block

    def record(self, request: Request, instance: Instance) -> None:
        """`instance` is sent the request; it will hold all pages that the request's runs name."""
        bit, recent, used = instance.bit, self._recent[instance.index], self._used[instance.index]
        node = self._roots.get(request.namespace)
        if node is None:
            node = self._roots[request.namespace] = _Node(None, request.namespace)
        path = []
        for key, start, stop in self._runs(request):
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node(node, key)
            node = child
            if stop > node.stop:
                node.start, node.stop = start, stop
            path.append(node)
        # The tail first: it leaves before what it builds on.
        path.reverse()
        for node in path:
            if node.mask & bit:
                recent.move_to_end(node)
            else:
                node.mask |= bit
                recent[node] = pages = node.stop - node.start
                used += pages
        self._used[instance.index] = used
        while self._used[instance.index] > self._pages[instance.index]:
            self._forget(instance)

    def forget(self, instance: Instance) -> None:
        """The instance lost its cache."""
        while self._recent[instance.index]:
            self._forget(instance)

    def check_invariants(self) -> None:
        """Sizes are exact and within bounds; who holds a run holds what it builds on."""
        held: Counter[_Node] = Counter()
        for bit, (recent, used, pages) in enumerate(zip(self._recent, self._used, self._pages, strict=True)):
            require(sum(recent.values()) == used <= pages, "the index has lost count")
            for node in recent:
                held[node] |= 1 << bit
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            for child in node.children.values():
                require(child.mask == held.pop(child, 0) != 0, "a run's holders are wrong")
                require(node.parent is None or child.mask & ~node.mask == 0, "a run without its parent")
                stack.append(child)
        require(not held, "a run is not in the tree")

    def _runs(self, request: Request) -> Sequence[Run]:
        if request.runs is not None:
            return request.runs
        run_of = runs_of(request, request.prompt, self._block)
        return [run_of(page) for page in range(len(request.prompt) // self._block)]

    def _forget(self, instance: Instance) -> None:
        """Drop what was least recently sent."""
        node, pages = self._recent[instance.index].popitem(last=False)
        self._used[instance.index] -= pages
        node.mask &= ~instance.bit
        while not (node.mask or node.children):
            parent = node.parent
            if parent is None:
                del self._roots[str(node.key)]
                break
            del parent.children[node.key]
            node = parent
