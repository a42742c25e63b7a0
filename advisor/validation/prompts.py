"""Prompts with the real prefix structure of a Trace, as token ids.

A block id becomes the same tokens in every process: SHAKE-128 of (seed, id), never `hash()`. What a trace does
not show to be shared is unique to its request. Another seed gives other prompts throughout, so that a run never
meets the cache of the run before. No text exists at any point.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from advisor.logs.trace import Trace

Tokens = npt.NDArray[np.uint32]  # [tokens]


class PromptFactory:
    """Makes the prompts of one run.

    Tokens lie in the middle three quarters of the vocabulary, [vocab/8, vocab * 7/8): special tokens and raw
    bytes stand at the ends of the tokenizers in use.
    """

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._low = vocab_size // 8
        self._span = max(vocab_size * 7 // 8 - self._low, 1)
        self._key = seed.to_bytes(8, "little")
        self._blocks: dict[int, Tokens] = {}

    def build(self, trace: Trace) -> list[Tokens]:
        """One prompt a row, exactly `prompt_tokens` long.

        Known blocks come first, the last cut to the length where it is partial. The rest, everything in a trace
        without blocks, is unique to the row.
        """
        return [self._prompt(trace, row) for row in range(len(trace))]

    def unique(self, length: int, label: int) -> Tokens:
        """Tokens that no block and no other label shares."""
        return self._generate(b"u", label, length)

    def _prompt(self, trace: Trace, row: int) -> Tokens:
        length = int(trace.prompt_tokens[row])
        parts: list[Tokens] = []
        known = 0
        if trace.blocks is not None:
            size = trace.blocks.size
            parts = [self._block(int(block), size) for block in trace.blocks.row(row)]
            known = len(parts) * size
        if known < length:
            parts.append(self.unique(length - known, row))
        return np.concatenate(parts)[:length]

    def _block(self, block: int, size: int) -> Tokens:
        tokens = self._blocks.get(block)
        if tokens is None:
            tokens = self._blocks[block] = self._generate(b"b", block, size)
        return tokens

    def _generate(self, kind: bytes, label: int, count: int) -> Tokens:
        source = self._key + kind + label.to_bytes(8, "little")
        # 32 bits spread over the span: the bias of the remainder is below 1 in 10,000.
        draws = np.frombuffer(hashlib.shake_128(source).digest(4 * count), dtype="<u4")
        return (draws % self._span + self._low).astype(np.uint32)


def expected_cached_tokens(prompts: Sequence[Tokens], block_size: int) -> npt.NDArray[np.int64]:
    """Prompt tokens of each request that an unlimited prefix cache would hold when it arrives.

    A walk of its own over full blocks of the engine's `block_size`, in arrival order, as if every earlier
    prompt were already computed; at least one token of a prompt is always computed. An upper bound for a real
    engine.
    """
    seen: set[bytes] = set()  # one 16-byte digest a block, chained: equal means an equal prefix up to there
    expected = np.zeros(len(prompts), dtype=np.int64)
    for index, prompt in enumerate(prompts):
        prefix, hits = b"", 0
        for end in range(block_size, len(prompt) + 1, block_size):
            block = prompt[end - block_size : end].tobytes()
            prefix = hashlib.blake2b(block, key=prefix, digest_size=16).digest()
            if prefix in seen:
                hits += end < len(prompt)
            seen.add(prefix)
        expected[index] = hits * block_size
    return expected
