"""A saved Trace is Mooncake's format with more keys, the same bytes every time, and reads back the same."""

from __future__ import annotations

import json
import random
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.logs import WordEncoder, read_lines, token_hit_rate

from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.save import save
from advisor.logs.trace import Blocks, Labels, Trace

_COLUMNS = (
    "arrival_s", "prompt_tokens", "output_tokens", "novel_tokens", "parent", "think_s", "cached_tokens",
    "ttft_s", "e2e_s",
)  # fmt: skip


def assert_same(one: Trace, other: Trace) -> None:
    """Every column that a saved Trace keeps."""
    for name in _COLUMNS:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-9, err_msg=name)
    for name in ("model", "route", "client", "session", "status"):
        labels, again = getattr(one, name), getattr(other, name)
        assert (labels is None) == (again is None), name
        if isinstance(labels, Labels):
            assert labels.codes.tolist() == again.codes.tolist(), name
    assert (one.blocks is None) == (other.blocks is None)
    if one.blocks is not None and other.blocks is not None:
        assert one.blocks.ids.tolist() == other.blocks.ids.tolist()
        assert one.blocks.starts.tolist() == other.blocks.starts.tolist()
        assert (one.blocks.size, one.blocks.rounding) == (other.blocks.size, other.blocks.rounding)


def rows_of_everything(seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for _ in range(60):
        row: dict[str, Any] = {
            "ts": 1_700_000_000 + rng.randrange(10**9) / 1e6,
            "prompt": " ".join(rng.choice("abc") for _ in range(rng.randrange(1, 12))),
            "model": rng.choice(["m1", "m2"]),
            "session_id": rng.choice(["secret-1", "secret-2", None]),
            "user": rng.choice(["alice", None]),
            "path": rng.choice(["/v1/completions", "/tenant/alice"]),
            "status": rng.choice([200, None]),
            "ttft_s": rng.choice([0.25, None]),
            "e2e_s": rng.random(),
        }
        if rng.random() < 0.5:
            row["usage"] = {"completion_tokens": rng.randrange(1, 50)}
        rows.append(row)
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_round_trip_of_a_text_log(tmp_path: Path, seed: int) -> None:
    options = ReadOptions(block_size=2)
    trace = read_lines(tmp_path, rows_of_everything(seed), options=options, tokenizer=WordEncoder())
    save(trace, tmp_path / "trace.jsonl")
    again = read([tmp_path / "trace.jsonl"])
    assert_same(trace, again)
    save(again, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "trace.jsonl").read_bytes()
    text = (tmp_path / "trace.jsonl").read_text()
    assert "m1" in text
    assert not any(name in text for name in ("secret", "alice", "1700000"))


def test_same_log_same_bytes_though_every_run_has_its_own_key(tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        save(read_lines(tmp_path, rows_of_everything(7), tokenizer=WordEncoder()), tmp_path / "trace.jsonl")
        written.append((tmp_path / "trace.jsonl").read_bytes())
    assert written[0] == written[1]


def test_round_trip_of_mooncake(shared: Path, tmp_path: Path) -> None:
    trace = read([shared / "traces/mooncake/conversation_trace.jsonl.gz"])
    save(trace, tmp_path / "trace.jsonl")
    again = read([tmp_path / "trace.jsonl"])
    assert_same(trace, again)
    assert token_hit_rate(again) == token_hit_rate(trace)


def test_rows_are_mooncake_rows(tmp_path: Path) -> None:
    source = {"timestamp": 3000, "input_length": 1100, "output_length": 40, "hash_ids": [7, 8, 9]}
    save(read_lines(tmp_path, [source]), tmp_path / "trace.jsonl")
    (line,) = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "timestamp": 0, "input_length": 1100, "output_length": 40, "hash_ids": [0, 1, 2],
        "rounding": "ceil", "block_size": 512, "scope": "global",
    }  # fmt: skip


def test_round_trip_without_blocks_or_times(tmp_path: Path) -> None:
    trace = read_lines(tmp_path, [{"prompt_tokens": 5}, {"prompt_tokens": 7, "completion_tokens": 2}])
    save(trace, tmp_path / "trace.jsonl")
    assert_same(trace, read([tmp_path / "trace.jsonl"]))


def test_delays_between_turns_survive(shared: Path, tmp_path: Path) -> None:
    trace = read([shared / "traces/format-examples/mooncake.jsonl"])
    save(trace, tmp_path / "trace.jsonl")
    assert_same(trace, read([tmp_path / "trace.jsonl"]))


def test_only_the_owner_reads_it_and_no_part_is_left(tmp_path: Path) -> None:
    save(read_lines(tmp_path, [{"prompt_tokens": 5}]), tmp_path / "out.jsonl")
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "out.jsonl"]


def test_totals_survive(shared: Path, tmp_path: Path) -> None:
    """A log of sums: OpenAI's usage buckets."""
    trace = read([shared / "traces/format-examples/openai_usage_completions.json"])
    assert trace.totals is not None
    assert len(trace) == 0
    save(trace, tmp_path / "trace.jsonl")
    assert read([tmp_path / "trace.jsonl"]).totals == trace.totals


def test_what_is_unknown_stays_unknown(tmp_path: Path) -> None:
    """A length and a prompt that the log does not show are neither 0 nor empty when read again."""
    trace = Trace(
        arrival_s=np.array([0.0, 1.0, 2.0]),
        prompt_tokens=np.array([40, -1, 40]),
        output_tokens=np.array([1, 2, -1]),
        blocks=Blocks(
            16, np.array([0, 1]), np.array([0, 2, 2, 2]), "floor", known=np.array([True, False, True])
        ),
    )
    save(trace, tmp_path / "trace.jsonl")
    again = read([tmp_path / "trace.jsonl"])
    assert_same(trace, again)
    assert again.blocks is not None
    assert again.blocks.known is not None
    assert again.blocks.known.tolist() == [True, False, True]
