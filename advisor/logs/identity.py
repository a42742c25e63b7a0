"""Prefix identity: every beginning of a prompt, block by block, becomes one 64-bit number.

Prompts come as 32-bit words: token ids, or their bytes, four a word. Each block is hashed with two independent
members of a strongly universal family, sums of products of keyed 32-bit halves modulo 2^64, of which the upper
32 bits count (Multilinear-HM of Lemire and Kaser, "Strongly universal string hashing is fast", The Computer
Journal 57, 2014); the results are hashed along the prompt in the same way, under keys of their place. Blocks
that differ agree by chance with probability 2^-64, and so do the sums along two prompts: two different
beginnings get one number with probability 2^-63 at most, N of them anywhere with less than N^2 / 2^64 (10^8
blocks: 0.05 %).

The key lives for one run and the numbers never leave it: only ordinals do. It keeps no text and no token ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.logs.trace import IntColumn

Words = npt.NDArray[np.uint32]  # [blocks, words of a block]
Hashes = npt.NDArray[np.uint64]  # [blocks]
Pages = npt.NDArray[np.uint16]  # [blocks, words of a block]

KEY_BYTES = 16
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_PAGE = np.uint64(48)  # of 64 bits, what is dropped of a word's hash
_AT_ONCE = 4096  # blocks: what is worked on stays in a core's cache
_FIRST_PLACES = 1024


class PrefixHasher:
    """Numbers for the beginnings of prompts, under one key. `width` is words of a block."""

    def __init__(self, key: bytes, width: int) -> None:
        pairs = (width + 1) // 2
        streams = np.random.SeedSequence(int.from_bytes(key, "little")).spawn(7)
        self._keys = _draw(streams[0], 4 * pairs).reshape(4, pairs, 1)
        self._fill = _draw(streams[1], width + 1) >> _HALF  # what tells a block of so many words from full ones
        self._fill[width] = 0
        self._page = _draw(streams[2], width)
        self._streams = [np.random.Generator(np.random.Philox(stream)) for stream in streams[3:]]
        self._places = np.zeros((4, 0), dtype=np.uint64)  # keys of the places along a prompt, as far as needed

    def prefixes(self, words: Words, blocks: IntColumn, fill: IntColumn | None = None) -> Hashes:
        """A number for every block and all before it in its prompt.

        `words` are the blocks of all prompts, one prompt after another; `blocks` [prompts] says how many each
        has, `fill` [prompts] how many words of its last one are its own (None: all); the others must be 0.
        """
        if len(words) == 0:
            return np.zeros(0, dtype=np.uint64)
        one, other = self._blocks(words)
        if fill is not None:
            last = np.cumsum(blocks)[blocks > 0] - 1
            one[last] = (one[last] + self._fill[fill[blocks > 0]]) & _LOW
        starts = np.cumsum(blocks) - blocks
        place = np.arange(len(words)) - np.repeat(starts, blocks)
        keys = self._keys_of_places(int(blocks.max()))
        halves = []
        for first, second in (keys[:2], keys[2:]):
            along = np.cumsum((one + first[place]) * (other + second[place]))
            before = np.where(starts > 0, along[starts - 1], np.uint64(0))
            halves.append((along - np.repeat(before, blocks)) >> _HALF)
        hashes: Hashes = (halves[0] << _HALF) | halves[1]
        return hashes

    def pages(self, words: Words) -> Pages:
        """16 bits for every word: enough to tell apart the few that follow one beginning."""
        return ((words * self._page) >> _PAGE).astype(np.uint16)

    def _blocks(self, words: Words) -> tuple[Hashes, Hashes]:
        """Two independent 32-bit hashes of every block."""
        if words.shape[1] % 2:
            words = np.pad(words, ((0, 0), (0, 1)))
        pairs = words.view("<u8")
        sums = np.empty((2, len(pairs)), dtype=np.uint64)
        for start in range(0, len(pairs), _AT_ONCE):
            chunk = np.ascontiguousarray(pairs[start : start + _AT_ONCE].T)  # [pairs of a block, blocks]
            low, high = chunk & _LOW, chunk >> _HALF
            for index in (0, 1):
                product = (low + self._keys[2 * index]) * (high + self._keys[2 * index + 1])
                np.add.reduce(product, axis=0, out=sums[index, start : start + _AT_ONCE])
        sums >>= _HALF
        return sums[0], sums[1]

    def _keys_of_places(self, count: int) -> Any:
        """Keys of the first `count` places, [4, places]; the same however far they were needed before."""
        have = self._places.shape[1]
        if count > have:
            more = max(count, _FIRST_PLACES, 2 * have) - have
            drawn = [stream.integers(2**64, size=more, dtype=np.uint64) for stream in self._streams]
            self._places = np.concatenate((self._places, np.stack(drawn)), axis=1)
        return self._places


def _draw(stream: np.random.SeedSequence, count: int) -> Hashes:
    return np.random.Generator(np.random.Philox(stream)).integers(2**64, size=count, dtype=np.uint64)
