"""Steps that run before an engine is ready, so that no request pays for a kernel that is made at its first use.

A fixed list, so that every rank runs the same (vllm#43009: compiling while serving). All rows read and write
the trash block alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.request import SamplingParams
from engine.step import Step, StepRow

_GREEDY = SamplingParams()
_DRAWN = SamplingParams(temperature=1.0, top_k=2, top_p=0.5)


def decode_sizes(max_seqs: int) -> tuple[int, ...]:
    """Batches that stand for all up to `max_seqs`: 1, 2, 4, 8, 16, then every 16, and the last."""
    sizes = [1, 2, 4, 8, *range(16, max_seqs, 16), max_seqs]
    return tuple(sorted({size for size in sizes if size <= max_seqs}))


def trash_row(
    tokens: int = 1, *, start: int = 0, prefill: bool = False, sampling: SamplingParams = _GREEDY
) -> StepRow:
    """A row whose keys and values all go to the trash block; start + tokens is at most a block."""
    return StepRow("warm-up", (0,) * tokens, start, (0,), True, prefill, sampling)


def warm_up_steps(*, block_size: int, max_seqs: int) -> Iterator[Step]:
    """A prefill with and without a context, decodes of each size, both at once, and a token that is drawn."""
    half = max(1, block_size // 2)
    first, later = trash_row(block_size, prefill=True), trash_row(half, start=block_size - half, prefill=True)
    yield Step(0, (first,))
    yield Step(0, (later,))
    for size in reversed(decode_sizes(max_seqs)):
        yield Step(0, (trash_row(),) * size)
    yield Step(0, (trash_row(), trash_row(), later))
    yield Step(0, (trash_row(sampling=_DRAWN),))
