"""Small traces for replays, and a prefix cache that shares no code with the product."""

from __future__ import annotations

import numpy as np

from advisor.logs.trace import Blocks, Trace


def steady_trace(requests: int, rate: float, prompt: int = 64, output: int = 8) -> Trace:
    """Equal requests at equal distances, without blocks."""
    return Trace(
        arrival_s=np.arange(requests) / rate,
        prompt_tokens=np.full(requests, prompt, dtype=np.int64),
        output_tokens=np.full(requests, output, dtype=np.int64),
    )


def block_trace(rows: list[tuple[int, list[int]]], size: int, rounding: str = "ceil") -> Trace:
    """One request a second for each (prompt tokens, block ids), 4 output tokens each."""
    lengths = [len(ids) for _, ids in rows]
    return Trace(
        arrival_s=np.arange(len(rows), dtype=np.float64),
        prompt_tokens=np.array([prompt for prompt, _ in rows], dtype=np.int64),
        output_tokens=np.full(len(rows), 4, dtype=np.int64),
        blocks=Blocks(
            size=size,
            ids=np.array([block for _, ids in rows for block in ids], dtype=np.int64),
            starts=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            rounding=rounding,
        ),
    )


def branching_rows(requests: int, size: int, seed: int) -> list[tuple[int, list[int]]]:
    """Prompts that fork from earlier prompts at random blocks; the last block is partial (ceil)."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, list[int]]] = []
    new_id = 0
    for _ in range(requests):
        full: list[int] = []
        if rows and rng.random() < 0.7:
            prompt, ids = rows[rng.integers(len(rows))]
            complete = ids[: prompt // size]
            full = complete[: rng.integers(len(complete) + 1)]
        fresh = int(rng.integers(1, 5))
        ids = full + list(range(new_id, new_id + fresh))
        new_id += fresh
        last = int(rng.integers(1, size + 1))
        rows.append(((len(ids) - 1) * size + last, ids))
    return rows


def hits_by_prefix_sets(prompts: list[np.ndarray], block_size: int) -> list[int]:
    """Cached tokens of each prompt in an unlimited cache kept as a set of whole prefixes, block by block."""
    seen: set[bytes] = set()
    hits = []
    for prompt in prompts:
        tokens = 0
        while tokens + block_size < len(prompt) and prompt[: tokens + block_size].tobytes() in seen:
            tokens += block_size
        hits.append(tokens)
        for end in range(block_size, len(prompt) + 1, block_size):
            seen.add(prompt[:end].tobytes())
    return hits


def hits_by_block_ids(trace: Trace, block_size: int) -> list[int]:
    """The same from the trace's ids alone: leading ids seen before, rounded down to the engine's block."""
    assert trace.blocks is not None
    seen: set[int] = set()
    hits = []
    for row in range(len(trace)):
        ids = trace.blocks.row(row).tolist()
        leading = next((i for i, block in enumerate(ids) if block not in seen), len(ids))
        prompt = int(trace.prompt_tokens[row])
        known = min(leading * trace.blocks.size, prompt - 1)  # the last token is always computed
        hits.append(known // block_size * block_size)
        seen.update(ids)
    return hits
