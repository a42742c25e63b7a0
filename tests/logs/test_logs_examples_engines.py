"""The invented records of engines and benchmark tools are read as a person reads them in the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.logs import WordEncoder, accounted

from advisor.logs.read import read
from advisor.logs.trace import LogInfo, Trace
from advisor.workload.measure import measure


@pytest.fixture(scope="session")
def examples(shared: Path) -> Path:
    return shared / "traces/format-examples"


def example(examples: Path, name: str) -> tuple[Trace, LogInfo]:
    trace = read([examples / name], tokenizer=WordEncoder())
    assert accounted(trace)
    assert trace.info is not None
    return trace, trace.info


def unknowns(trace: Trace) -> dict[str, str]:
    return {entry.path: entry.how_to_get for entry in trace.unknown}


def test_vllm_0_11_0_shows_the_prompt_and_the_answer(examples: Path) -> None:
    trace, info = example(examples, "vllm_0.11.0_info.log")
    assert (info.format, info.lines, info.items, info.skipped) == ("vllm", 2, 1, {})
    # "<|im_start|>system You answer questions about the Harbor ticketing system.<|im_end|>" is 9 words,
    # "<|im_start|>user Where's the badge page?<|im_end|>" 5
    assert trace.prompt_tokens.tolist() == [14]
    assert trace.output_tokens.tolist() == [2]  # 'Under Settings.'
    assert trace.arrival_s.tolist() == [0.0]
    assert trace.first_epoch_s is None  # no year
    assert trace.status is not None
    assert trace.status.names == ("ok",)
    assert (info.token_basis, info.prefix_basis) == ("tokenized with words", "prompts of the log")
    assert {"sharing", "lengths.prompt", "lengths.output"}.isdisjoint(unknowns(trace))
    assert {"latency.ttft_s", "latency.e2e_s", "sharing.cached_share", "clients"} <= unknowns(trace).keys()


def test_vllm_0_11_2_gives_null_and_says_how_to_get_the_rest(examples: Path) -> None:
    trace, info = example(examples, "vllm_0.11.2_info.log")
    assert len(trace) == 1
    # an "Added request" and an access line; the engine's statistics
    assert info.skipped == {"not a request": 2, "statistics of the engine": 1}
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([-1], [-1])
    assert trace.blocks is None
    how = unknowns(trace)
    assert "VLLM_LOGGING_LEVEL=DEBUG" in how["sharing"]
    assert "docs/collecting-logs.md" in how["sharing"]
    assert "VLLM_LOGGING_LEVEL=DEBUG" in how["lengths.prompt"]
    assert "--enable-log-outputs" in how["lengths.output"]
    workload = measure(trace)
    assert workload.lengths.prompt is None
    assert workload.sharing.hit_rate_tokens is None
    assert workload.sharing.cached_share == pytest.approx(0.415)  # "Prefix cache hit rate: 41.5%"


def test_vllm_0_11_2_statistics_are_sums(examples: Path) -> None:
    trace, info = example(examples, "vllm_0.11.2_info.log")
    assert trace.totals is not None
    assert trace.totals.source == "engine statistics, throughput x 10 s"
    assert (trace.totals.requests, trace.totals.output_tokens) == (1, 17)  # 1.7 tokens/s x 10 s
    # 4.1 tokens/s x 10 s; without the server's version it is not known whether cached tokens are among them
    assert trace.totals.prompt_tokens is None
    assert any("adds up to 41 tokens" in note for note in info.notes)


def test_vllm_bench(examples: Path) -> None:
    trace, info = example(examples, "vllm_bench_save_detailed.json")
    assert (info.format, info.items, info.skipped) == ("vllm-bench", 3, {"failed request": 1})
    assert trace.arrival_s == pytest.approx([0.0, 0.52])
    assert trace.first_epoch_s is None  # a performance counter
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41, 41], [17, 16])
    assert trace.ttft_s == pytest.approx([0.31, 0.12])
    assert trace.e2e_s == pytest.approx([0.31 + 0.02 + 0.021, 0.12 + 0.019])
    assert trace.model is not None
    assert trace.model.names == ("qwen3-8b",)
    assert info.arrival_basis == "start_times, seconds from the start"
    assert any("a benchmark, not traffic" in note for note in info.notes)
    assert {"sharing", "sharing.cached_share", "clients", "sessions"} == unknowns(trace).keys()


@pytest.mark.parametrize(("kind", "first"), [("json", 1789372800.120417), ("text", 1789372800.0)])
def test_sglang_joins_received_and_finished(examples: Path, kind: str, first: float) -> None:
    trace, info = example(examples, f"sglang_log_requests_{kind}.log")
    assert (info.format, info.lines, info.items, info.skipped) == ("sglang-log", 2, 1, {})
    assert trace.first_epoch_s == first  # of the received line
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41], [17])
    assert trace.cached_tokens is not None
    assert trace.cached_tokens.tolist() == [32]
    assert trace.e2e_s is not None
    assert trace.e2e_s.tolist() == [1.377]
    assert any("read as UTC" in note for note in info.notes)
    assert "--log-requests-level 3" in unknowns(trace)["sharing"]
    assert "docs/collecting-logs.md" in unknowns(trace)["sharing"]
    assert "--enable-metrics" in unknowns(trace)["latency.ttft_s"]


def test_sglang_metrics(examples: Path) -> None:
    trace, info = example(examples, "sglang_export_metrics.log")
    assert (info.format, info.items) == ("sglang-metrics", 1)
    assert trace.first_epoch_s == 1789372800.12
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41], [17])
    assert trace.cached_tokens is not None
    assert trace.cached_tokens.tolist() == [32]
    assert trace.e2e_s is not None
    assert trace.e2e_s.tolist() == [1.377]
    assert trace.blocks is not None  # input_ids are shown
    assert info.arrival_basis == "request_received_ts, seconds since 1970"
    assert unknowns(trace).keys() == {"clients", "sessions", "log.models", "latency.ttft_s"}


def test_tgi_arrives_before_it_is_logged(examples: Path) -> None:
    trace, info = example(examples, "tgi_json_output.log")
    assert (info.format, info.items) == ("tgi", 1)
    assert trace.first_epoch_s == pytest.approx(1789372801.5 - 1.380215, abs=1e-6)
    assert trace.e2e_s is not None
    assert trace.e2e_s.tolist() == [1.380215]
    assert trace.output_tokens.tolist() == [17]  # 1.379731 s / 81.1606 ms = 17.00001
    assert trace.prompt_tokens.tolist() == [-1]
    assert trace.ttft_s is None
    assert info.arrival_basis == "timestamp - total_time, wall-clock time"
    assert "inference_time / time_per_token" in info.token_basis
    assert {"lengths.prompt", "sharing", "latency.ttft_s"} <= unknowns(trace).keys()


def test_triton_chunks_are_no_tokens(examples: Path) -> None:
    trace, info = example(examples, "triton_perf_analyzer_profile_export.json")
    assert (info.format, info.items) == ("triton", 1)
    assert trace.first_epoch_s == 1789372800.12
    assert trace.prompt_tokens.tolist() == [20]  # <system> and 12 words, <user> and 6
    assert trace.output_tokens.tolist() == [1]  # "Open", though there are two responses
    assert trace.ttft_s == pytest.approx([0.31])
    assert trace.e2e_s == pytest.approx([1.38])
    assert trace.model is not None
    assert trace.model.names == ("qwen3-8b",)
    assert info.prefix_basis == "text of the payloads"
    assert {"clients", "sessions", "sharing.cached_share"} == unknowns(trace).keys()


def test_aiperf_drops_what_was_cancelled_before_any_output(examples: Path) -> None:
    trace, info = example(examples, "aiperf_profile_export.jsonl")
    assert (info.format, info.items, info.skipped) == ("aiperf", 2, {"failed request": 1})
    assert trace.first_epoch_s == 1789372800.12
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41], [17])
    assert trace.ttft_s == pytest.approx([0.31])  # 310 ms
    assert trace.e2e_s == pytest.approx([1.38])
    assert trace.session is not None
    assert trace.session.names == ("s-901",)
    assert {"sharing", "sharing.cached_share", "clients", "log.models"} == unknowns(trace).keys()


def test_dynamo_keeps_all_64_bits(examples: Path) -> None:
    trace, info = example(examples, "dynamo_request_trace.jsonl")
    assert (info.format, info.items, info.skipped) == ("dynamo", 2, {"tool event": 1})
    assert trace.first_epoch_s == 1789372800.12
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([130], [17])
    assert trace.cached_tokens is not None
    assert trace.cached_tokens.tolist() == [64]
    assert trace.ttft_s == pytest.approx([0.31])
    assert trace.e2e_s == pytest.approx([1.38])
    assert trace.blocks is not None
    assert (trace.blocks.size, trace.blocks.rounding) == (64, "ceil")
    assert trace.blocks.row(0).tolist() == [0, 1, 2]
    assert trace.session is not None
    assert trace.session.names == ("s-901",)
    assert info.prefix_basis == "input_sequence_hashes of 64 tokens"
    assert unknowns(trace).keys() == {"clients"}
    assert np.isfinite(trace.arrival_s).all()
