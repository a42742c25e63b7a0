"""Damaged logs never crash the reader, and every line that is lost is counted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.logs import WordEncoder, accounted

from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.save import save
from engine.errors import InputError

Mutation = Callable[[bytes, random.Random], bytes]

_VALUES: list[bytes] = [
    b"null", b"NaN", b"-Infinity", b"1e400", b"-1", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b'"x"', b"0",
    b"1e30", b"18446744073709551616", b"9" * 400, b'"2026-13-45"', b'"9999-12-31T23:59:59.9999999Z"',
    b"[[[[1]]]]",
    b'[{"role": 3, "content": {"a": []}}]', b'{"messages": [null]}', b"[1, -2]", b'["a", "b"]',
]  # fmt: skip


def _replace_value(line: bytes, rng: random.Random) -> bytes:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(row, dict) or not row:
        return line
    name = rng.choice(list(row))
    rest = {key: value for key, value in row.items() if key != name}
    return json.dumps(rest).encode()[:-1].rstrip(b"{") + b"".join(
        [b"{" if not rest else b", ", json.dumps(name).encode(), b": ", rng.choice(_VALUES), b"}"]
    )


def _flip(line: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(line)
    for _ in range(rng.randrange(1, 4)):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged)


MUTATIONS: list[Mutation] = [
    _replace_value,
    _replace_value,
    _flip,
    lambda line, rng: line[: rng.randrange(len(line))],
    lambda line, rng: line[rng.randrange(len(line)) :],
    lambda line, _: line + line,
    lambda line, _: b"\xef\xbb\xbf" + line,
    lambda line, _: line + b"\r",
    lambda line, rng: line.replace(b",", b"\x00", rng.randrange(1, 3)),
    lambda line, rng: b"[" * rng.randrange(1, 10_000) + line,
    lambda line, rng: b'{"a":' * rng.randrange(1, 10_000) + line,
    lambda line, rng: line.replace(b'"', b"", rng.randrange(1, 3)),
    lambda line, rng: b"".join(rng.sample([line[i : i + 7] for i in range(0, len(line), 7)], len(line) // 7)),
]


def _requests(kind: str) -> list[Any]:
    now = 1_700_000_000
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello there"}]
    if kind == "mooncake":
        return [
            {"timestamp": i * 3000, "input_length": 600 + i, "output_length": 5, "hash_ids": [0, i]}
            for i in range(40)
        ]
    if kind == "lmcache":
        return [
            {"timestamp": (now + i) * 10**6, "input": f"a b {i}", "output": "c d", "session_id": f"s{i % 5}"}
            for i in range(40)
        ]
    if kind == "openai":
        return [
            {
                "ts": now + i,
                "request": {"model": "m", "messages": messages},
                "response": {"usage": {"output_tokens": 2}},
            }
            for i in range(40)
        ]
    return [
        {"ts": now + i, "prompt_tokens": 5, "completion_tokens": 2, "status": 200, "ttft": 0.2}
        for i in range(40)
    ]


def _damaged(lines: list[bytes], rng: random.Random, share: float) -> list[bytes]:
    return [rng.choice(MUTATIONS)(line, rng) if rng.random() < share else line for line in lines]


@pytest.mark.parametrize("kind", ["mooncake", "lmcache", "openai", "generic"])
def test_damaged_lines(tmp_path: Path, kind: str) -> None:
    clean = [json.dumps(row).encode() for row in _requests(kind)]
    for seed in range(40):  # 1,600 lines of each kind
        rng = random.Random(seed)
        path = tmp_path / "log"
        path.write_bytes(b"\n".join(_damaged(clean, rng, rng.choice([0.1, 0.5, 1.0]))))
        try:
            trace = read([path], options=ReadOptions(block_size=1), tokenizer=WordEncoder())
        except InputError:
            continue
        assert accounted(trace), seed
        assert (trace.prompt_tokens > 0).all()
        assert (trace.arrival_s >= 0).all()
        save(trace, tmp_path / "trace")
        assert len(read([tmp_path / "trace"])) == len(trace)


def test_damaged_csv(tmp_path: Path) -> None:
    clean = [
        b"ts,prompt_tokens,completion_tokens,note",
        *(b"%d,%d,2,x" % (1_700_000_000 + i, i + 1) for i in range(40)),
    ]
    for seed in range(100):
        rng = random.Random(seed)
        path = tmp_path / "log.csv"
        path.write_bytes(b"\n".join(clean[:1] + _damaged(clean[1:], rng, 0.3)))
        try:
            trace = read([path])
        except InputError:
            continue
        assert accounted(trace), seed


def test_undamaged_rows_are_never_lost(tmp_path: Path) -> None:
    clean = [json.dumps(row).encode() for row in _requests("generic")]
    for seed in range(40):
        rng = random.Random(seed)
        lines = [
            line for row in clean for line in (row, rng.choice(MUTATIONS)(row.replace(b"1700", b"1600"), rng))
        ]
        path = tmp_path / "log"
        path.write_bytes(b"\n".join(lines))
        trace = read([path], options=ReadOptions(since="1690000000"))
        assert set(range(40)) <= set(np_round(trace.arrival_s)), seed


def np_round(column: Any) -> list[int]:
    return [round(value) for value in column.tolist()]
