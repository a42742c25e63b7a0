"""Prefix identity: every beginning of a prompt, block by block, becomes one 64-bit number.

Prompts come as 32-bit words: token ids, or their bytes, four a word. Each block is hashed with two independent
members of a strongly universal family: sums modulo 2^47 of a key and of products of 47-bit keys and 16-bit
halves of words, of which the upper 32 bits count (Multilinear of Lemire and Kaser, "Strongly universal string
hashing is fast", The Computer Journal 57, 2014). The results are hashed along the prompt in the same way, under
keys of their place, as sums modulo 2^64 of products of keyed 32-bit halves (their Multilinear-HM). Blocks that
differ agree by chance with probability 2^-64, and so do the sums along two prompts: two different beginnings
get one number with probability 2^-63 at most, N of them anywhere with less than N^2 / 2^64 (10^8 blocks:
0.05 %).

The key lives for one run and the numbers never leave it: only ordinals do. It keeps no text and no token ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.logs.trace import FloatColumn, IntColumn

Words = npt.NDArray[np.uint32]  # [blocks, words of a block]
Hashes = npt.NDArray[np.uint64]  # [blocks]
Pages = npt.NDArray[np.uint16]  # [blocks, words of a block]

KEY_BYTES = 16
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_PAGE = np.uint64(48)  # of 64 bits, what is dropped of a word's hash
_KEY_BITS = 32 + 16 - 1  # of a block's hash and of the halves of its words, less one
_PIECE_BITS = 24  # of a key: products of a piece and a half are whole numbers of 40 bits
_EXACT = 1 << 53 - _PIECE_BITS - 16  # so many of them add up without rounding in 53 bits
_AT_ONCE = 1 << 15  # halves: what is worked on stays in a core's cache, and is too little for threads of BLAS
_FIRST_PLACES = 1024


class PrefixHasher:
    """Numbers for the beginnings of prompts, under one key. `width` is words of a block."""

    def __init__(self, key: bytes, width: int) -> None:
        streams = np.random.SeedSequence(int.from_bytes(key, "little")).spawn(7)
        drawn = _draw(streams[0], 4 * width + 2).reshape(-1, 2)
        self._first = drawn[:1].T.view(np.int64)  # [2, 1] what both sums of a block begin with
        self._keys = _pieces(drawn[1:])
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
        keys = self._keys_of_places(int(blocks.max()))
        keys = np.concatenate([keys[:, :count] for count in blocks.tolist()], axis=1)
        along = np.cumsum((keys[::2] + one) * (keys[1::2] + other), axis=1)  # two sums: [2, blocks]
        before = np.where(starts > 0, along[:, starts - 1], np.uint64(0))
        along -= np.repeat(before, blocks, axis=1)
        hashes: Hashes = (along[0] & ~_LOW) | (along[1] >> _HALF)
        return hashes

    def pages(self, words: Words) -> Pages:
        """16 bits for every word: enough to tell apart the few that follow one beginning."""
        return ((words * self._page) >> _PAGE).astype(np.uint16)

    def _blocks(self, words: Words) -> tuple[Hashes, Hashes]:
        """Two independent 32-bit hashes of every block.

        Whole numbers in floating point, as matrices of those are multiplied several times as fast.
        """
        halves = words.view(np.uint16)
        sums = np.empty((4, len(words)), dtype=np.int64)
        rows = max(1, _AT_ONCE // halves.shape[1])
        for start in range(0, len(words), rows):
            sums[:, start : start + rows] = self._sums(halves[start : start + rows]).T
        low, high = sums[:2], sums[2:]
        whole = self._first + low + (high << _PIECE_BITS)  # modulo 2^64
        hashes = (whole & (1 << _KEY_BITS) - 1) >> (_KEY_BITS - 32)
        one, other = hashes.view(np.uint64)
        return one, other

    def _sums(self, halves: npt.NDArray[np.uint16]) -> Any:
        """Sums of products with the pieces of the keys, whole numbers: [blocks, 4]."""
        width = halves.shape[1]
        if width <= _EXACT:
            return halves.astype(np.float64) @ self._keys
        stretches = [slice(first, first + _EXACT) for first in range(0, width, _EXACT)]
        return sum(
            (halves[:, some].astype(np.float64) @ self._keys[some]).astype(np.int64) for some in stretches
        )

    def _keys_of_places(self, count: int) -> Any:
        """Keys of the first `count` places, [4, places]; the same however far they were needed before."""
        have = self._places.shape[1]
        if count > have:
            more = max(count, _FIRST_PLACES, 2 * have) - have
            drawn = [stream.integers(2**64, size=more, dtype=np.uint64) for stream in self._streams]
            self._places = np.concatenate((self._places, np.stack(drawn)), axis=1)
        return self._places


def _pieces(keys: Hashes) -> FloatColumn:
    """Keys as numbers that multiply exactly: [terms, 2] become lower and then upper pieces, [terms, 4]."""
    low = keys & np.uint64((1 << _PIECE_BITS) - 1)
    high = (keys & np.uint64((1 << _KEY_BITS) - 1)) >> np.uint64(_PIECE_BITS)
    return np.concatenate((low, high), axis=1).astype(np.float64)


def _draw(stream: np.random.SeedSequence, count: int) -> Hashes:
    return np.random.Generator(np.random.Philox(stream)).integers(2**64, size=count, dtype=np.uint64)
