"""From the token ids or bytes of a batch of prompts to the numbers of their blocks.

Owns how prompts are laid out for `identity`: all blocks of the batch one after another, hashed in one go.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from advisor.logs.guess import guess_tokens
from advisor.logs.identity import PrefixHasher
from advisor.logs.ordinals import Ids, distinct
from advisor.logs.part import NO_CONTENT, Content
from advisor.logs.token_blocks import BLOCK_BYTES
from advisor.logs.trace import IntColumn

WORDS_OF_BYTES = BLOCK_BYTES // 4


def content_of_tokens(
    hasher: PrefixHasher, prompts: Sequence[Sequence[int] | None], whole: Sequence[bool], size: int
) -> Content:
    """Blocks of `size` tokens, with a partial last one. None stands for a prompt that is not known."""
    lengths = _lengths(prompts)
    counts = -(-lengths // size)
    starts = np.cumsum(counts) - counts
    words = np.zeros((int(counts.sum()), size), dtype=np.uint32)
    flat = words.reshape(-1)
    for ids, start, length in zip(prompts, (starts * size).tolist(), lengths.tolist(), strict=True):
        if ids is not None:
            flat[start : start + length] = ids
    last = lengths - (counts - 1) * size  # tokens in the last block
    values, one, place = distinct(hasher.prefixes(words, counts, last))
    fill = np.full(len(words), size, dtype=np.int32)
    fill[(starts + counts - 1)[counts > 0]] = last[counts > 0]
    return Content(
        unit="tokens",
        counts=_or_unknown(counts, prompts),
        lengths=lengths,
        place=place,
        hashes=values,
        whole=np.array(whole),
        fill=fill[one],
        pages=hasher.pages(words[one]),
    )


def content_of_bytes(
    hasher: PrefixHasher, prompts: Sequence[bytes | None], whole: Sequence[bool], counted: Sequence[bool]
) -> Content:
    """Full blocks of bytes, with a guess of their tokens in prompts that are not `counted` by the log."""
    lengths = _lengths(prompts)
    counts = lengths // BLOCK_BYTES
    sizes = (counts * BLOCK_BYTES).tolist()
    data = b"".join([memoryview(prompt or b"")[:size] for prompt, size in zip(prompts, sizes, strict=True)])
    words = np.frombuffer(data, dtype="<u4").reshape(-1, WORDS_OF_BYTES)
    values, _, place = distinct(hasher.prefixes(words, counts))
    return Content(
        unit="bytes",
        counts=_or_unknown(counts, prompts),
        lengths=lengths,
        place=place,
        hashes=values,
        whole=np.array(whole),
        guess=_guess(data, counts, np.array(counted) & whole, place, len(values)),
    )


def _guess(
    data: bytes, counts: IntColumn, counted: npt.NDArray[np.bool_], place: Ids, distinct_blocks: int
) -> npt.NDArray[np.uint16] | None:
    """Guessed tokens of each distinct block; 0 in prompts with a count, None where all have one."""
    if counted.all():
        return None
    starts = (np.cumsum(counts) - counts)[counts > 0] * BLOCK_BYTES
    guess = np.where(np.repeat(counted, counts), 0, np.maximum(guess_tokens(data, starts, BLOCK_BYTES), 1))
    most = np.zeros(distinct_blocks, dtype=np.uint16)
    np.maximum.at(most, place, guess.astype(np.uint16))  # equal blocks have equal guesses, or none
    return most


def _lengths(prompts: Sequence[Sequence[int] | bytes | None]) -> IntColumn:
    return np.array([0 if prompt is None else len(prompt) for prompt in prompts], dtype=np.int64)


def _or_unknown(counts: IntColumn, prompts: Sequence[object]) -> Ids:
    return np.where([prompt is not None for prompt in prompts], counts, NO_CONTENT).astype(np.int32)
