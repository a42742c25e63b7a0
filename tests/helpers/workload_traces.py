"""Traces for the workload tests: made in memory, or read from the public traces beside the checkout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from advisor.logs.read import read
from advisor.logs.trace import Blocks, Labels, Trace


def make_trace(
    prompts: Sequence[int],
    outputs: Sequence[int] | None = None,
    *,
    arrivals: Sequence[float] | None = None,
    blocks: Sequence[Sequence[int]] | None = None,
    size: int = 1,
    sessions: Sequence[str] | None = None,
    **columns: Any,
) -> Trace:
    """A Trace of the given rows; one request a second and unknown outputs unless given."""
    count = len(prompts)
    return Trace(
        arrival_s=np.asarray(range(count) if arrivals is None else arrivals, dtype=np.float64),
        prompt_tokens=np.asarray(prompts, dtype=np.int64),
        output_tokens=np.asarray([-1] * count if outputs is None else outputs, dtype=np.int64),
        blocks=None if blocks is None else make_blocks(blocks, size),
        session=None if sessions is None else make_labels(sessions),
        **columns,
    )


def make_blocks(rows: Sequence[Sequence[int]], size: int) -> Blocks:
    """Ragged rows of block ids as columns."""
    starts = np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64)))
    return Blocks(size, np.array([b for row in rows for b in row], dtype=np.int64), starts)


def make_labels(values: Sequence[str]) -> Labels:
    """A label column; the empty string is unknown."""
    names = sorted(set(values) - {""})
    return Labels(tuple(names), np.array([names.index(v) if v else -1 for v in values], dtype=np.int64))


def chain(paths: Sequence[Sequence[int]]) -> list[list[int]]:
    """Chained block ids for rows of content: equal only where the content and all before it are equal."""
    ids: dict[tuple[int, ...], int] = {}
    return [[ids.setdefault(tuple(p[: i + 1]), len(ids)) for i in range(len(p))] for p in paths]


def mooncake(shared: Path) -> Trace:
    """The public Mooncake conversation trace."""
    return read([shared / "traces/mooncake/conversation_trace.jsonl.gz"])


def azure(shared: Path, kind: str) -> Trace:
    """The public Azure 2023 trace of `kind` "code" or "conv"."""
    return read([shared / f"traces/azure-llm-2023/AzureLLMInferenceTrace_{kind}.csv"])
