"""Public traces give the statistics that others computed from them (shared/traces/expected_stats.json)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.embedded import embedded_folder
from helpers.logs import accounted, token_hit_rate

from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.trace import IntColumn
from engine.text import Tokenizer


@pytest.fixture(scope="module")
def expected(shared: Path) -> dict[str, Any]:
    stats: dict[str, Any] = json.loads((shared / "traces/expected_stats.json").read_text())
    return stats


def has_lengths(column: IntColumn, stats: dict[str, float]) -> bool:
    assert len(column) == stats["n"]
    assert (column.min(), column.max()) == (stats["min"], stats["max"])
    assert column.mean() == pytest.approx(stats["mean"], abs=1e-3)
    return bool(
        np.allclose(np.percentile(column, (50, 90, 99)), [stats["p50"], stats["p90"], stats["p99"]], atol=0.05)
    )


@pytest.mark.parametrize(("file", "name"), [("code", "code"), ("conv", "conv")])
def test_azure_lengths_and_gaps(shared: Path, expected: dict[str, Any], file: str, name: str) -> None:
    trace = read([shared / f"traces/azure-llm-2023/AzureLLMInferenceTrace_{file}.csv"])
    stats = expected[f"azure-llm-2023/{name}"]
    assert has_lengths(trace.prompt_tokens, stats["prompt"])
    assert has_lengths(trace.output_tokens, stats["output"])
    gaps = np.diff(trace.arrival_s)
    assert trace.arrival_s[-1] == pytest.approx(stats["arrival"]["span_s"], abs=1e-6)
    assert gaps.std() / gaps.mean() == pytest.approx(stats["arrival"]["cv_interarrival"], abs=1e-4)
    assert accounted(trace)
    assert trace.blocks is None
    assert [entry.path for entry in trace.unknown] == ["sharing"]


def test_azure_keeps_hundreds_of_nanoseconds(shared: Path) -> None:
    trace = read([shared / "traces/azure-llm-2023/AzureLLMInferenceTrace_code.csv"])
    # The file's first two stamps are 18:17:03.9799600 and 18:17:04.0319600 of 2023-11-16.
    assert trace.arrival_s[1] == pytest.approx(0.052, abs=1e-12)
    assert trace.first_epoch_s == pytest.approx(1_700_158_623.97996, abs=1e-6)


def test_mooncake_lengths_and_blocks(shared: Path, expected: dict[str, Any]) -> None:
    trace = read([shared / "traces/mooncake/conversation_trace.jsonl.gz"])
    stats = expected["mooncake/conversation"]
    assert has_lengths(trace.prompt_tokens, stats["prompt"])
    assert has_lengths(trace.output_tokens, stats["output"])
    assert trace.blocks is not None
    assert trace.info is not None
    assert (trace.blocks.size, trace.blocks.rounding) == (512, "ceil")
    assert len(trace.blocks.ids) == stats["prefix"]["total_blocks"]
    assert trace.blocks.ids.max() + 1 == stats["prefix"]["unique_blocks"]
    assert token_hit_rate(trace) == pytest.approx(stats["prefix"]["token_hit"], abs=1e-6)
    assert trace.info.skipped == {}
    # Magnitudes table, B16: the sentence that shows a person an error of a factor 1000.
    assert "59 minutes at 3.40 requests/s" in trace.info.notes[0]


class Remembering:
    """A tokenizer that works once for the three block sizes."""

    has_chat_template = False

    def __init__(self, inner: Tokenizer) -> None:
        self.name = inner.name
        self._inner = inner
        self._known: dict[int, list[int]] = {}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        new = [text for text in texts if hash(text) not in self._known]
        self._known.update(zip(map(hash, new), self._inner.encode_batch(new), strict=True))
        return [self._known[hash(text)] for text in texts]

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], *, tools: Any = None) -> list[int]:
        raise AssertionError(f"these prompts are plain text, not {len(messages)} messages, {tools}")


@pytest.fixture(scope="module")
def smollm2() -> Remembering:
    return Remembering(Tokenizer.load(embedded_folder()))


# Token hit rates of the miniswe folder with this vocabulary, computed elsewhere.
@pytest.mark.parametrize(("size", "rate"), [(16, 0.9348), (64, 0.9317), (512, 0.9019)])
def test_lmcache_hit_rate(shared: Path, smollm2: Remembering, size: int, rate: float) -> None:
    trace = read(
        [shared / "traces/lmcache-agent/miniswe"], options=ReadOptions(block_size=size), tokenizer=smollm2
    )
    assert token_hit_rate(trace) == pytest.approx(rate, abs=2e-4)
    assert trace.session is not None
    assert (len(trace), len(trace.session.names)) == (402, 20)  # traces/README.md
    assert trace.arrival_s[-1] == pytest.approx(552.13151, abs=1e-4)  # expected_stats.json
    assert (trace.output_tokens > 0).all()
    assert trace.novel_tokens is not None
    optimal = 1 - trace.novel_tokens.sum() / trace.prompt_tokens.sum()
    assert rate - 2e-4 < optimal < 0.9365  # above every block size, by less than a 16-token block a request
    assert accounted(trace)


# Token hit rates of the same prompts in this model's chat template.
@pytest.mark.slow  # tokenizes chats one by one
@pytest.mark.parametrize(("size", "rate"), [(16, 0.9343), (64, 0.9310), (512, 0.9015)])
def test_the_same_prompts_as_chats(shared: Path, tmp_path: Path, size: int, rate: float) -> None:
    path = tmp_path / "chats.jsonl"
    with path.open("w") as log:
        for file in sorted((shared / "traces/lmcache-agent/miniswe").iterdir()):
            for row in map(json.loads, gzip.decompress(file.read_bytes()).splitlines()):
                messages = [{"role": "user", "content": row["input"]}]
                request = {"ts": row["timestamp"], "request": {"messages": messages}}
                log.write(json.dumps(request) + "\n")
    options = ReadOptions(block_size=size)
    trace = read([path], options=options, tokenizer=Tokenizer.load(embedded_folder()))
    assert token_hit_rate(trace) == pytest.approx(rate, abs=2e-4)
