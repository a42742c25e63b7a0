"""Logs of engines and benchmark tools, damaged anywhere, never crash the reader, and every loss is counted."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from helpers.logs import WordEncoder, accounted
from helpers.traffic import make_calls
from logs.writers import (
    aiperf,
    dynamo,
    sglang_log,
    sglang_log_text,
    sglang_metrics,
    tgi,
    triton,
    vllm_bench,
    vllm_log,
    vllm_log_later,
)

from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.save import save
from engine.errors import InputError

WRITERS = [
    aiperf, dynamo, sglang_log, sglang_log_text, sglang_metrics, tgi, triton, vllm_bench, vllm_log,
    vllm_log_later,
]  # fmt: skip
JUNK: list[Any] = [
    None, True, -1, 0, 1.5, 10**30, 2**64, "", "x", "NaN", "\ud800", "{", [], [None], [[]], {}, {"a": [{}]},
    [1, -2],
]  # fmt: skip


def _damage(value: Any, rng: random.Random) -> Any:
    """The same JSON with junk at one random place at any depth."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        return {**value, name: _damage(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        return [*value[:place], _damage(value[place], rng), *value[place + 1 :]]
    if isinstance(value, str) and value.startswith("{") and rng.random() < 0.9:
        return json.dumps(_damage(json.loads(value), rng))
    return rng.choice(JUNK)


def _mutate(line: str, rng: random.Random) -> bytes:
    if line.startswith("{") and rng.random() < 0.7:
        return json.dumps(_damage(json.loads(line), rng)).encode()
    data = bytearray(line.encode("utf-8", "surrogatepass"))
    kind = rng.random()
    if kind < 0.3:
        return bytes(data[: rng.randrange(len(data))])
    if kind < 0.4:
        return bytes(data[rng.randrange(len(data)) :])
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(len(data))] = rng.choice(b"'\"()[]{},=: \\0x\x00\xff")
    return bytes(data)


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__.rpartition(".")[2])
def test_damaged_logs(writer: Any, tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    writer.write(make_calls(30), clean)
    text = clean.read_text(encoding="utf-8")
    lines = [json.dumps(json.loads(text))] if text.startswith("{\n") else text.splitlines()
    path = tmp_path / "damaged"
    for seed in range(12):
        rng = random.Random(seed)
        share = rng.choice([0.1, 0.5, 1.0])
        damaged = [_mutate(line, rng) if rng.random() < share else line.encode() for line in lines]
        path.write_bytes(b"\n".join(damaged))
        try:
            trace = read([path], options=ReadOptions(block_size=1), tokenizer=WordEncoder())
        except InputError:
            continue
        assert accounted(trace), seed
        assert (trace.prompt_tokens[trace.prompt_tokens >= 0] > 0).all()
        assert not (trace.arrival_s < 0).any()
        if len(trace):
            save(trace, tmp_path / "trace")
            assert len(read([tmp_path / "trace"])) == len(trace)
