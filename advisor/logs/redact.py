"""The form of a trace that other tools take: Mooncake's four keys, blocks of one size, the last one partial.

Owns the combining of small blocks into large ones and the choice of requests that any reader accepts. Sharing
is neither invented nor lost: equal ids mean equal content after an equal prefix, so a partial last block shares
its id only with blocks of the same content and length, and one whose content the log does not show has an id of
its own. AIPerf stops where one id is a full block here and a partial one there (ai-dynamo/aiperf#1219);
GuideLLM where the ids are not as many as the prompt has blocks (vllm-project/guidellm#948).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.logs.save import write_rows
from advisor.logs.trace import Blocks, IntColumn, Trace, rank_by_first
from engine.errors import InputError

_OWN_FORM = "leave --block-size out: advise's own form keeps such requests"


@dataclass(frozen=True, slots=True)
class Standard:
    """A Trace that any Mooncake reader takes, and how many requests it lacks, by reason."""

    trace: Trace
    left_out: dict[str, int]


def standard_form(trace: Trace, block_size: int) -> Standard:
    """The requests with known lengths, times and content, in blocks of `block_size` tokens.

    Without any sharing in the log the blocks stay unknown. Raises InputError where the log's own blocks do not
    add up to `block_size`, or no request is left.
    """
    if trace.blocks is not None:
        _check_sizes(trace.blocks.size, block_size)
    left_out, kept = {}, np.full(len(trace), True)
    for reason, missing in _missing(trace).items():
        if count := int((kept & missing).sum()):
            left_out[reason] = count
        kept &= ~missing
    if not kept.any():
        reasons = ", ".join(f"{count} x {reason}" for reason, count in left_out.items())
        raise InputError("no request that other tools can replay", why=reasons or None, hint=_OWN_FORM)
    chosen = trace.take(np.flatnonzero(kept))
    blocks = None
    if chosen.blocks is not None:
        blocks = combine_blocks(chosen.blocks, chosen.prompt_tokens, block_size)
    arrival_s = chosen.arrival_s - chosen.arrival_s[0]
    return Standard(replace(chosen, arrival_s=arrival_s, blocks=blocks, novel_tokens=None), left_out)


def combine_blocks(blocks: Blocks, prompt_tokens: IntColumn, size: int) -> Blocks:
    """The blocks of `size` tokens of the same prompts, the partial last ones included (`ceil`).

    A chained id stands for everything before it, so the small block that ends a large one names it. A large
    block whose end has no id in the log is new content.
    """
    full, tail = np.divmod(prompt_tokens, size)
    counts = full + (tail > 0)
    starts = np.concatenate(([0], np.cumsum(counts)))
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(starts[-1]) - starts[row]
    partial = place == full[row]
    end = np.where(partial, prompt_tokens[row], (place + 1) * size)
    last = -(-end // blocks.size) - 1  # of the small blocks in it
    known = last < np.diff(blocks.starts)[row]
    # Equal content has equal length: the length apart, a partial block could pass for a full one.
    length = np.where(partial, tail[row], size)
    keys = -1 - np.arange(len(row))
    keys[known] = blocks.ids[(blocks.starts[row] + last)[known]] * (size + 1) + length[known]
    return replace(blocks, size=size, ids=rank_by_first(keys)[1], starts=starts, rounding="ceil", known=None)


def save_standard(trace: Trace, path: str | Path) -> None:
    """Write a Trace of `standard_form`: whole milliseconds after the first request, sorted; 0600."""
    write_rows(path, _rows(trace))


def _rows(trace: Trace) -> Iterator[dict[str, Any]]:
    stamps = np.rint(trace.arrival_s * 1e3).astype(np.int64).tolist()
    prompts, outputs = trace.prompt_tokens.tolist(), trace.output_tokens.tolist()
    for index, stamp in enumerate(stamps):
        row = {"timestamp": stamp, "input_length": prompts[index], "output_length": outputs[index]}
        if trace.blocks is not None:
            row["hash_ids"] = trace.blocks.row(index).tolist()
        yield row


def _missing(trace: Trace) -> dict[str, npt.NDArray[np.bool_]]:
    """Where a request lacks what every reader asks for, by reason."""
    missing = {
        "no arrival time": np.isnan(trace.arrival_s),
        "prompt length unknown": trace.prompt_tokens <= 0,
        "output length unknown": trace.output_tokens < 0,
        "no output": trace.output_tokens == 0,
    }
    if trace.blocks is not None and trace.blocks.known is not None:
        missing["prompt content unknown"] = ~trace.blocks.known
    return missing


def _check_sizes(own: int, wanted: int) -> None:
    if wanted % own == 0:
        return
    multiple = own * max(1, round(wanted / own))
    raise InputError(
        f"blocks of {own} tokens do not add up to blocks of {wanted}",
        why="a block can be put together from smaller ones, not cut",
        hint=f"--block-size {multiple}",
    )
