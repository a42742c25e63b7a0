"""A redacted slice of the Mooncake trace, loaded by the trace readers of AIPerf, GuideLLM and vLLM."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.embedded import embedded_folder
from helpers.logs import write_lines
from readers.conftest import Run

from advisor.redact import RedactOptions, redact

pytestmark = pytest.mark.readers
ROWS = 300
MOST_TOKENS = 8_000  # of a prompt: the readers make up the text


def slice_of_mooncake(shared: Path, folder: Path) -> Path:
    """Rows in the middle of the trace, where much is shared, of moderate length."""
    lines = gzip.decompress((shared / "traces/mooncake/conversation_trace.jsonl.gz").read_bytes()).splitlines()
    short = [line for line in lines[5000:] if json.loads(line)["input_length"] <= MOST_TOKENS]
    return write_lines(folder / "log.jsonl", short[:ROWS])


@pytest.fixture(params=[False, True], ids=["plain", "share-safe"])
def trace(shared: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The slice in the form for other tools."""
    options = RedactOptions(tmp_path / "trace.jsonl", block_size=512, share_safe=request.param)
    assert redact([slice_of_mooncake(shared, tmp_path)], options).requests == ROWS
    return options.out


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("program", ["aiperf", "guidellm", "vllm"])
def test_a_redacted_slice_loads(trace: Path, run_in: Run, program: str) -> None:
    found = run_in(program, f"{program}_loads.py", trace, embedded_folder())
    rows = read_rows(trace)
    assert found["rows"] == ROWS
    for name, key in (("input_tokens", "input_length"), ("output_tokens", "output_length")):
        assert found[name] == [row[key] for row in rows]
    assert found["timestamps"] == pytest.approx([row["timestamp"] for row in rows], abs=1e-6)
    check_prefixes(rows, found["prompts"])


def check_prefixes(rows: list[dict[str, Any]], prompts: list[Any]) -> None:
    """Prompts with equal leading ids begin alike, for about as many tokens, and go on apart."""
    shared = 0
    for one in range(1, len(rows)):
        ids, before = rows[one]["hash_ids"], rows[one - 1]["hash_ids"]
        common = alike(ids, before)
        per_token = len(prompts[one]) / rows[one]["input_length"]
        assert abs(alike(prompts[one], prompts[one - 1]) / per_token - 512 * common) < 256
        shared += common
    assert shared > 50


def alike(one: Sequence[object], other: Sequence[object]) -> int:
    """Items before the first difference."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_aiperf_stops_at_an_id_of_two_lengths(tmp_path: Path, run_in: Run) -> None:
    """ai-dynamo/aiperf#1219, so that the test above can fail; redacted, the same log loads."""
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 9, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
    ]
    log = write_lines(tmp_path / "log.jsonl", rows)
    with pytest.raises(AssertionError, match="must map to a single fixed block size"):
        run_in("aiperf", "aiperf_loads.py", log, embedded_folder())
    redact([log], RedactOptions(tmp_path / "trace.jsonl", block_size=512))
    found = run_in("aiperf", "aiperf_loads.py", tmp_path / "trace.jsonl", embedded_folder())
    assert found["input_tokens"] == [600, 1100]


def test_guidellm_stops_at_too_many_ids(tmp_path: Path, run_in: Run) -> None:
    """vllm-project/guidellm#948: the other half of the same check."""
    rows = [{"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [0, 1]}]
    with pytest.raises(AssertionError, match="does not match given 2 blocks"):
        run_in("guidellm", "guidellm_loads.py", write_lines(tmp_path / "log.jsonl", rows), embedded_folder())


def test_litellm_calls_the_recorder_once_a_call(tmp_path: Path, run_in: Run) -> None:
    """litellm's own callbacks, sync and async, streamed or not, with its mock answers."""
    path = tmp_path / "trace.jsonl"
    counts = run_in("litellm", "litellm_calls.py", path)
    assert counts == {"recorded": 32, "failed before the first token": 1}
    rows = read_rows(path)
    assert len(rows) == 32
    assert sum("ttft_s" in row for row in rows) == 16
    assert all(row["output_length"] > 0 and row["input_length"] > 0 for row in rows)
    assert "canary" not in path.read_text()
