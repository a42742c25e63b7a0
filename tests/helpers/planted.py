"""Logs with a trait planted in them, and the same logs without it: one a trait of the design's section 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from helpers.workload_traces import azure, make_trace

from advisor.logs.trace import Trace

SIZE = 16  # tokens a block


def arrivals(n: int, rate: float, rng: np.random.Generator) -> list[float]:
    """Poisson arrivals."""
    return np.cumsum(rng.exponential(1 / rate, n)).tolist()


def blocks_of(prompts: Sequence[int], shared: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Blocks of each prompt: the first tokens those of a document, (which, tokens), the rest its own."""
    seen: dict[tuple[int, int], int] = {}
    rows, used = [], 0
    for prompt, (document, tokens) in zip(prompts, shared, strict=True):
        row = []
        for i in range(-(-prompt // SIZE)):
            key = (document, i)
            if (i + 1) * SIZE <= tokens and key in seen:
                row.append(seen[key])
                continue
            if (i + 1) * SIZE <= tokens:
                seen[key] = used
            row.append(used)
            used += 1
        rows.append(row)
    return rows


def documents(n: int, rate: float, *, shared: bool, kinds: int = 40, seed: int = 0) -> Trace:
    """Questions of 200 tokens about one of `kinds` documents of 6,000; not `shared`: each about its own."""
    rng = np.random.default_rng(seed)
    which = rng.integers(kinds, size=n) if shared else np.arange(n)
    prompts = [6000 + int(x) for x in rng.integers(100, 300, n)]
    return make_trace(
        prompts, rng.integers(20, 80, n).tolist(), arrivals=arrivals(n, rate, rng),
        blocks=blocks_of(prompts, [(int(w), 6000) for w in which]), size=SIZE,
    )  # fmt: skip


def independent(
    n: int, rate: float, *, prompt: tuple[int, int], output: tuple[int, int], seed: int = 0
) -> Trace:
    """Prompts and outputs uniform in a range; nothing is shared."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(*prompt, n).tolist()
    return make_trace(
        prompts, rng.integers(*output, n).tolist(), arrivals=arrivals(n, rate, rng),
        blocks=blocks_of(prompts, [(i, 0) for i in range(n)]), size=SIZE,
    )  # fmt: skip


def streams(n: int, rate: float, *, long_share: float, seed: int = 0) -> Trace:
    """Chats of 200 tokens in and 300 out; a share of prompts of 8,000 tokens and 20 out beside them."""
    rng = np.random.default_rng(seed)
    long = rng.random(n) < long_share
    prompts = np.where(long, rng.integers(7000, 9000, n), rng.integers(100, 300, n)).tolist()
    outputs = np.where(long, 20, rng.integers(200, 400, n)).tolist()
    return make_trace(
        prompts, outputs, arrivals=arrivals(n, rate, rng),
        blocks=blocks_of(prompts, [(i, 0) for i in range(n)]), size=SIZE,
    )  # fmt: skip


def spikes(n: int, rate: float, *, share: float, seed: int = 0) -> Trace:
    """Chats at a mean rate, of which a share comes within single minutes, one every twenty minutes."""
    rng = np.random.default_rng(seed)
    span = n / rate
    calm = rng.uniform(0, span, n - round(share * n))
    starts = np.arange(300.0, span, 1200.0)
    burst = rng.choice(starts, round(share * n)) + rng.uniform(0, 60, round(share * n))
    prompts = rng.integers(500, 1500, n).tolist()
    return make_trace(
        prompts, rng.integers(50, 150, n).tolist(), arrivals=np.sort(np.concatenate((calm, burst))).tolist(),
        blocks=blocks_of(prompts, [(i, 0) for i in range(n)]), size=SIZE,
    )  # fmt: skip


def agents(n: int, rate: float, *, prompt: int = 33_600, reuse: float = 0.71, seed: int = 0) -> Trace:
    """Turns of agents: prompts of `prompt` tokens in the mean, of which earlier turns show a share `reuse`.

    Every session starts with tools and a task and grows; turns of sessions are interleaved.
    """
    rng = np.random.default_rng(seed)
    turns = 8
    step = int(prompt * (1 - reuse))  # new tokens a turn, so that the means come out
    first = int(prompt - step * (turns - 1) / 2)
    sessions = -(-n // turns)
    rows: list[tuple[float, int, int]] = []
    starts = np.sort(rng.uniform(0, n / rate, sessions))
    for session in range(sessions):
        gaps = np.cumsum(rng.exponential(20.0, turns))
        rows += [(float(starts[session] + gaps[t]), session, first + t * step) for t in range(turns)]
    rows = sorted(rows)[:n]
    prompts = [length for _, _, length in rows]
    return make_trace(
        prompts, rng.integers(200, 600, n).tolist(), arrivals=[at for at, _, _ in rows],
        blocks=blocks_of(prompts, [(session, length) for _, session, length in rows]), size=SIZE,
        sessions=[f"s{session}" for _, session, _ in rows],
    )  # fmt: skip


def azure_code_at(shared: Path, requests: int, rate_rps: float) -> Trace:
    """The first requests of the public Azure code log, all times between them divided to come at a rate."""
    trace = azure(shared, "code").take(np.arange(requests))
    first, last = float(trace.arrival_s[0]), float(trace.arrival_s[-1])
    factor = rate_rps * (last - first) / requests
    return replace(trace, arrival_s=first + (trace.arrival_s - first) / factor)
