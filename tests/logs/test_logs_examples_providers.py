"""The example records of OpenTelemetry and of providers' APIs, read as a person reads them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from helpers.gateways import cached, info, said, unknown
from helpers.logs import WordEncoder
from helpers.reading import names

from advisor.logs.read import read
from advisor.logs.trace import Totals, Trace

SYSTEM = "<system> You answer questions about the Harbor ticketing system. Reply in one sentence."
QUESTION = "<user> Where do I reset a badge?"
WORDS = len(f"{SYSTEM} {QUESTION}".split())  # with one for each role
ARRIVAL = 1_789_372_800.12  # 2026-09-14 08:00:00.120 UTC


@pytest.fixture(scope="session")
def examples(shared: Path) -> Path:
    return shared / "traces/format-examples"


def example(folder: Path, *files: str, tokenizer: bool = True) -> Trace:
    trace = read([folder / file for file in files], tokenizer=WordEncoder() if tokenizer else None)
    info(trace)
    return trace


def lengths(trace: Trace) -> tuple[list[int], list[int], list[int]]:
    return trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), cached(trace)


def seconds(column: object) -> list[float]:
    assert isinstance(column, np.ndarray)
    return [float(value) for value in column]


class TestOTLP:
    def test_current_names(self, examples: Path) -> None:
        trace = example(examples, "otlp_genai_current.jsonl")
        assert info(trace).format == "otlp"
        assert lengths(trace) == ([41], [17], [32])
        assert trace.first_epoch_s == ARRIVAL
        assert (seconds(trace.ttft_s), seconds(trace.e2e_s)) == ([0.31], [1.38])
        assert (said(trace.model), said(trace.session), said(trace.client)) == ("qwen3-8b", "s-901", None)
        assert info(trace).token_basis.startswith("GenAI current names (gen_ai.usage.input_tokens")
        assert info(trace).arrival_basis == "start of the span, nanoseconds since 1970"
        assert set(unknown(trace)) == {"clients"}
        assert (info(trace).lines, info(trace).skipped) == (1, {})
        assert f"{WORDS / 41:.1%}" in " ".join(info(trace).notes)  # system instructions and messages, as words

    def test_vllm(self, examples: Path) -> None:
        trace = example(examples, "otlp_genai_legacy_vllm.jsonl")
        assert lengths(trace) == ([41], [17], [-1])
        assert trace.first_epoch_s == ARRIVAL
        assert (seconds(trace.ttft_s), seconds(trace.e2e_s)) == ([0.31], [1.377])  # not the span's 1.38
        assert said(trace.model) == "qwen3-8b"
        assert info(trace).token_basis.startswith("vLLM's spans")
        assert trace.blocks is None
        assert set(unknown(trace)) == {"sharing", "sharing.cached_share", "clients", "sessions"}
        assert "docs/collecting-logs.md" in unknown(trace)["sharing"]

    def test_openinference(self, examples: Path) -> None:
        trace = example(examples, "otlp_openinference.jsonl")
        assert lengths(trace) == ([41], [17], [32])
        assert seconds(trace.e2e_s) == [1.38]
        assert (said(trace.model), said(trace.session), said(trace.client)) == ("qwen3-8b", "s-901", "c-3")
        assert info(trace).token_basis.startswith("OpenInference (llm.token_count.prompt)")
        assert set(unknown(trace)) == {"latency.ttft_s"}
        assert f"{WORDS / 41:.1%}" in " ".join(info(trace).notes)

    def test_three_families_in_one_log(self, examples: Path) -> None:
        files = ("otlp_genai_current.jsonl", "otlp_genai_legacy_vllm.jsonl", "otlp_openinference.jsonl")
        trace = example(examples, *files)
        # All three invented files use one span id: they are one call, told three times.
        assert (len(trace), info(trace).files, info(trace).lines) == (1, 3, 3)
        assert all(word in info(trace).token_basis for word in ("current names", "vLLM", "OpenInference"))

    def test_spans_of_inference_perf(self, shared: Path) -> None:
        trace = example(shared / "traces/otel-examples", "prefix_sharing_example.json")
        assert lengths(trace)[:2] == ([50, 45, 100, 180, 270, 380, 40], [20, 15, 50, 60, 70, 55, 10])
        assert trace.arrival_s.tolist() == [0, 2, 4, 6, 8, 10, 12]
        assert seconds(trace.e2e_s) == pytest.approx([1, 1, 1, 1.5, 1.8, 1.5, 1])
        assert trace.blocks is not None
        # Four turns of one conversation, each parent of the next: none of them is a part of another.
        turns = [trace.blocks.row(row).tolist() for row in range(2, 6)]
        assert all(later[: len(turn)] == turn for turn, later in itertools.pairwise(turns))

    def test_spans_of_inference_perf_without_counts_and_zones(self, shared: Path) -> None:
        trace = example(shared / "traces/otel-examples", "parallel_requests.json", tokenizer=False)
        assert trace.arrival_s.tolist() == [0, 2.5, 3, 6, 8.5]
        assert lengths(trace)[:2] == ([-1] * 5, [-1] * 5)
        assert (said(trace.session), said(trace.model)) == ("session_002", "gpt-4")
        assert any("read as UTC" in note for note in info(trace).notes)
        assert {"lengths.prompt", "lengths.output"} <= set(unknown(trace))


class TestOpenAIBatch:
    def test_input_alone(self, examples: Path) -> None:
        trace = example(examples, "openai_batch_input.jsonl", tokenizer=False)
        assert info(trace).format == "openai-batch"
        assert lengths(trace) == ([-1, -1], [-1, -1], [-1, -1])  # unknown, never 0
        assert np.isnan(trace.arrival_s).all()
        assert names(trace.model) == ["qwen3-8b", "qwen3-8b"]
        assert names(trace.route) == ["/v1/chat/completions"] * 2
        assert info(trace).arrival_basis == "none"
        ways = unknown(trace)
        assert ways["lengths.prompt"] == "give the batch's output file too, or --tokenizer NAME"
        assert ways["lengths.output"] == "give the batch's output file too"
        assert "docs/collecting-logs.md" in ways["arrivals"]
        assert {"sharing.cached_share", "latency.ttft_s", "latency.e2e_s", "clients"} <= set(ways)

    def test_input_with_a_tokenizer(self, examples: Path) -> None:
        trace = example(examples, "openai_batch_input.jsonl")
        assert trace.prompt_tokens.tolist() == [WORDS, len(f"{SYSTEM} <user> Who owns a ticket?".split())]
        assert trace.blocks is not None

    def test_output_alone(self, examples: Path) -> None:
        trace = example(examples, "openai_batch_output.jsonl")
        assert lengths(trace) == ([39], [4], [0])
        assert np.isnan(trace.arrival_s).all()  # `created` is when it was done
        assert info(trace).skipped == {"failed request": 1}
        assert unknown(trace)["sharing"].startswith("give the batch's input file too")

    @pytest.mark.parametrize(
        "turned",
        [False, True],
        ids=["input first", "output first"],
    )
    def test_both(self, examples: Path, turned: bool) -> None:
        files = ["openai_batch_input.jsonl", "openai_batch_output.jsonl"]
        trace = example(examples, *(files[::-1] if turned else files))
        assert lengths(trace) == ([39], [4], [0])  # job-2; job-1 expired
        assert trace.blocks is not None
        assert trace.blocks.known is None
        assert set(info(trace).skipped) == {"failed request"}
        assert info(trace).lines == 4
        assert "sharing" not in unknown(trace)


def test_openai_usage(examples: Path) -> None:
    trace = example(examples, "openai_usage_completions.json")
    assert (len(trace), info(trace).format, info(trace).arrival_basis) == (0, "openai-usage", "none")
    assert trace.totals == Totals(
        source="organization usage buckets",
        requests=100,
        prompt_tokens=4100,
        output_tokens=1700,
        cached_tokens=3200,
        cached_share=3200 / 4100,
        span_s=3600,
        model="qwen3-8b",
    )
    assert {"arrivals", "sharing", "latency.ttft_s", "clients", "sessions"} <= set(unknown(trace))


def test_anthropic_messages(examples: Path) -> None:
    trace = example(examples, "anthropic_messages_log.jsonl")
    assert info(trace).format == "anthropic-messages"
    assert lengths(trace) == ([41], [17], [32])  # 9 and 32
    assert trace.first_epoch_s == ARRIVAL
    assert said(trace.model) == "claude-example"
    assert "rows that count cached tokens apart from the prompt, so they were added: 1" in info(trace).notes
    assert f"{WORDS / 41:.1%}" in " ".join(info(trace).notes)  # `system` is a part of the prompt


def test_anthropic_batch(examples: Path) -> None:
    trace = example(examples, "anthropic_batch_results.jsonl")
    assert info(trace).format == "anthropic-batch"
    assert lengths(trace) == ([41], [17], [32])
    assert np.isnan(trace.arrival_s).all()
    assert info(trace).skipped == {"failed request": 1}
    assert {"arrivals", "sharing", "log.models"} <= set(unknown(trace))


def test_claude_code(examples: Path) -> None:
    trace = example(examples, "claude_code_session.jsonl")
    assert info(trace).format == "claude-code"
    assert lengths(trace) == ([2 + 410 + 18200], [211], [18200])  # of the last line; its first says 2
    assert trace.first_epoch_s == 1_789_372_800.0  # when the user's line was written
    assert seconds(trace.e2e_s) == [7.9]
    assert (said(trace.model), said(trace.session)) == ("claude-example", "cc-1")
    assert (info(trace).lines, info(trace).skipped) == (3, {"not a request": 1})
    assert {"sharing", "latency.ttft_s", "clients"} == set(unknown(trace))
