"""The invented record of each format (shared/traces/format-examples) is read as its description says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.logs import WordEncoder, accounted

from advisor.logs.read import read
from advisor.logs.trace import Trace


@pytest.fixture(scope="session")
def examples(shared: Path) -> Path:
    return shared / "traces/format-examples"


def example(examples: Path, name: str) -> Trace:
    trace = read([examples / name], tokenizer=WordEncoder())
    assert accounted(trace)
    return trace


@pytest.mark.parametrize("year", ["2023", "2024"])
def test_azure(examples: Path, year: str) -> None:
    trace = example(examples, f"azure_llm_{year}.csv")
    assert trace.arrival_s.tolist() == [0.0, 1.88]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41, 40], [17, 12])
    assert trace.info is not None
    assert any("read as UTC" in note for note in trace.info.notes) == (year == "2023")


def test_mooncake_with_sessions_and_delays(examples: Path) -> None:
    trace = example(examples, "mooncake.jsonl")
    assert trace.blocks is not None
    assert trace.parent is not None
    assert trace.think_s is not None
    assert trace.arrival_s.tolist() == [0.0, 3.0, 3.0, 4.5]
    assert [trace.blocks.row(row).tolist() for row in range(4)] == [[0, 1, 2], [0, 1, 3], [0, 4], [0, 5]]
    assert trace.parent.tolist() == [-1, -1, -1, 2]
    assert trace.think_s[3] == 1.5


def test_openai_batch_input_has_no_times(examples: Path) -> None:
    trace = example(examples, "openai_batch_input.jsonl")
    assert np.isnan(trace.arrival_s).all()
    assert trace.model is not None
    assert trace.model.names == ("qwen3-8b",)
    assert trace.prompt_tokens.tolist() == [20, 18]  # words, with one for each role
    assert trace.output_tokens.tolist() == [-1, -1]
    assert trace.info is not None
    assert trace.info.arrival_basis == "none"


def test_openai_batch_output_drops_the_failure(examples: Path) -> None:
    trace = example(examples, "openai_batch_output.jsonl")
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([39], [4])
    assert trace.info is not None
    assert trace.info.skipped == {"failed request": 1}


def test_anthropic_usage_excludes_the_cache(examples: Path) -> None:
    trace = example(examples, "anthropic_messages_log.jsonl")
    assert trace.cached_tokens is not None
    assert (trace.prompt_tokens.tolist(), trace.cached_tokens.tolist()) == ([41], [32])  # 9 + 32


def test_litellm_payload(examples: Path) -> None:
    trace = example(examples, "litellm_standard_payload.jsonl")
    assert trace.client is not None
    assert trace.cached_tokens is not None
    assert trace.first_epoch_s == 1789372800.12
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41], [17])
    assert (trace.cached_tokens.tolist(), trace.client.names) == ([32], ("c-3",))
