"""Prompts: exact lengths, the same in every process, and as much sharing as the trace says, no more."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from helpers.replay_traces import (
    block_trace,
    branching_rows,
    hits_by_block_ids,
    hits_by_prefix_sets,
    steady_trace,
)

from advisor.validation.prompts import PromptFactory, expected_cached_tokens

VOCAB = 49_152  # SmolLM2
ROOT = Path(__file__).resolve().parents[2]


def test_lengths_are_exact_and_tokens_are_ordinary() -> None:
    trace = block_trace(branching_rows(100, size=32, seed=3), 32)
    prompts = PromptFactory(VOCAB, seed=1).build(trace)
    assert [len(prompt) for prompt in prompts] == trace.prompt_tokens.tolist()
    tokens = np.concatenate(prompts)
    assert tokens.min() >= VOCAB // 8
    assert tokens.max() < VOCAB * 7 // 8
    # Uniform: the mean of n draws lies within 4 standard errors of the middle.
    middle, deviation = VOCAB / 2, VOCAB * 0.75 / 12**0.5
    assert abs(tokens.mean() - middle) < 4 * deviation / len(np.unique(tokens)) ** 0.5


def test_an_id_is_the_same_block_wherever_it_stands_and_the_rest_is_unique() -> None:
    trace = block_trace([(40, [0, 1, 2]), (40, [0, 1, 3]), (20, [0, 1]), (50, [0])], 16)
    a, b, c, d = PromptFactory(VOCAB, seed=1).build(trace)
    assert np.array_equal(a[:32], b[:32])
    assert not np.any(a[32:] == b[32:])
    assert np.array_equal(c, a[:20])  # a partial last block is the beginning of the block
    assert np.array_equal(d[:16], a[:16])
    assert not np.array_equal(d[16:32], a[16:32])  # beyond the known blocks


def test_floor_tails_and_prompts_without_blocks_are_unique() -> None:
    same = [(40, [0, 1])] * 20
    floor = PromptFactory(VOCAB, seed=1).build(block_trace(same, 16, rounding="floor"))
    assert len({prompt[:32].tobytes() for prompt in floor}) == 1
    assert len({prompt[32:].tobytes() for prompt in floor}) == 20
    unique = PromptFactory(VOCAB, seed=1).build(steady_trace(20, 1.0, prompt=16))
    assert len({prompt.tobytes() for prompt in unique}) == 20


def test_another_seed_shares_nothing() -> None:
    trace = block_trace(branching_rows(50, size=16, seed=3), 16)
    first, second = (PromptFactory(VOCAB, seed).build(trace) for seed in (1, 2))
    alone = expected_cached_tokens(first, 16).sum()
    both = expected_cached_tokens(first + second, 16)
    assert both[50:].sum() == alone > 0


def test_two_processes_build_the_same_bytes() -> None:
    code = (
        "import hashlib\n"
        "from helpers.replay_traces import block_trace, branching_rows\n"
        "from advisor.validation.client import body_of\n"
        "from advisor.validation.prompts import PromptFactory\n"
        "from advisor.validation.window import select\n"
        "window = select(block_trace(branching_rows(50, 16, 5), 16), 'busiest:20s')\n"
        "digest = hashlib.sha256(window.due_s.tobytes())\n"
        "for prompt in PromptFactory(49152, 7).build(window.trace):\n"
        "    digest.update(body_of('m', prompt.tolist(), 3))\n"
        "print(digest.hexdigest())\n"
    )
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(digests) == 1


def test_block_content_is_pinned() -> None:
    # By hand: shake_128 over key (8 bytes), kind "b", id (8 bytes); little-endian words into [1000, 7000).
    stream = hashlib.shake_128((5).to_bytes(8, "little") + b"b" + (9).to_bytes(8, "little")).digest(64)
    words = [int.from_bytes(stream[i : i + 4], "little") for i in range(0, 64, 4)]
    (prompt,) = PromptFactory(8000, seed=5).build(block_trace([(16, [9])], 16))
    assert prompt.tolist() == [1000 + word % 6000 for word in words]


@pytest.mark.parametrize("engine_block", [16, 64])
@pytest.mark.parametrize("trace_block", [16, 32, 512])
def test_sharing_of_the_prompts_is_the_sharing_of_the_ids(trace_block: int, engine_block: int) -> None:
    rows = branching_rows(150, trace_block, seed=11)
    trace = block_trace(rows + rows, trace_block)  # repeated: whole prompts are known, but for their last token
    prompts = PromptFactory(VOCAB, seed=1).build(trace)
    reference = hits_by_prefix_sets(prompts, engine_block)
    assert expected_cached_tokens(prompts, engine_block).tolist() == reference
    assert reference == hits_by_block_ids(trace, engine_block)
    assert sum(reference) > 0


def test_mooncake_keeps_its_hit_rate(shared: Path) -> None:
    with gzip.open(shared / "traces/mooncake/conversation_trace.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in islice(file, 300)]
    trace = block_trace([(row["input_length"], row["hash_ids"]) for row in rows], 512)
    prompts = PromptFactory(VOCAB, seed=1).build(trace)
    assert [len(prompt) for prompt in prompts] == [row["input_length"] for row in rows]
    got = expected_cached_tokens(prompts, 16).sum()
    want = sum(hits_by_block_ids(trace, 16))
    tokens = sum(row["input_length"] for row in rows)
    assert got == pytest.approx(want, abs=0.001 * tokens)
    assert want > 0.05 * tokens
