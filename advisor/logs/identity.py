"""Prompt identity: token ids become block ids, and the text is forgotten.

Owns the chain of keyed digests: a block's digest covers its tokens and everything before them, under the
model's own root, with a key that lives for one run. Only small integers leave. For the optimal hit rate it also
keeps one 64-bit digest for every token position of a *new* block, so repeated blocks cost nothing.

It never keeps text or token ids.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.logs.trace import IntColumn
from engine.invariants import require

NO_TAIL = -1
_TOKEN_BYTES = 4
_DIGEST_BYTES = 16
_NODE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Path:
    """One prompt's way through the tree of blocks: ids of its full blocks, and of what is left, or NO_TAIL."""

    blocks: Sequence[int]
    tail: int


class BlockIndex:
    """Gives equal prefixes equal ids, in order of first use. One for a whole log."""

    def __init__(self, size: int, key: bytes) -> None:
        self._size = size
        self._key = key
        self._ids: dict[bytes, int] = {}
        self._nodes = array("Q")  # digests of the one-token pages of new blocks
        self._pages = array("q")  # how many of them each block has, in the order of ids

    def add(self, model: str, tokens: Sequence[int]) -> Path:
        """Ids of a prompt's blocks; prompts of different models never share."""
        data = np.asarray(tokens, dtype="<u4").tobytes()
        parent = self._digest(model.encode("utf-8", "replace"))
        width = self._size * _TOKEN_BYTES
        path = []
        for start in range(0, len(data), width):
            block = data[start : start + width]
            digest = self._digest(parent + block)
            identifier = self._ids.get(digest)
            if identifier is None:
                identifier = self._ids[digest] = len(self._ids)
                self._add_pages(parent, block)
            path.append(identifier)
            parent = digest
        tail = path.pop() if len(data) % width else NO_TAIL
        return Path(path, tail)

    def novel_tokens(self, rows: int, ids: IntColumn, row_of_id: IntColumn) -> IntColumn:
        """Prompt tokens whose prefix no earlier row had, for each row.

        Their sum is the number of nodes of a radix tree with one-token pages: the least prefill work of any
        schedule (SGLang, NeurIPS'24, Theorem 3.1). `ids` are all rows' blocks and tails, `row_of_id` [ids] the
        rows, in order of arrival.
        """
        first_row = np.full(len(self._ids), rows, dtype=np.int64)
        np.minimum.at(first_row, ids, row_of_id)
        nodes = np.frombuffer(self._nodes, dtype=np.uint64)
        seen_by = np.repeat(first_row, np.frombuffer(self._pages, dtype=np.int64))
        order = np.lexsort((seen_by, nodes))
        nodes, seen_by = nodes[order], seen_by[order]
        first = np.concatenate(([True], nodes[1:] != nodes[:-1]))
        return np.bincount(seen_by[first], minlength=rows)[:rows].astype(np.int64)

    def check_invariants(self) -> None:
        """Every page is in one block, and every block has at least one page and no more than fit."""
        require(len(self._pages) == len(self._ids), "a block without pages")
        require(sum(self._pages) == len(self._nodes), "a page outside of all blocks")
        require(all(0 < pages <= self._size for pages in self._pages), "a block of an impossible length")

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, digest_size=_DIGEST_BYTES).digest()

    def _add_pages(self, parent: bytes, block: bytes) -> None:
        state = hashlib.blake2b(parent, key=self._key, digest_size=_NODE_BYTES)
        for start in range(0, len(block), _TOKEN_BYTES):
            state.update(block[start : start + _TOKEN_BYTES])
            self._nodes.frombytes(state.digest())
        self._pages.append(len(block) // _TOKEN_BYTES)
