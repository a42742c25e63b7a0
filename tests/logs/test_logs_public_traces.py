"""Public traces give the statistics that others computed from them (shared/traces, README.md and JSON).

Lengths, arrivals and Mooncake's block ids. `test_logs_public_weka` has Weka's, and `test_logs_public_text`
what needs a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.logs import accounted, token_hit_rate
from helpers.reading import check_lengths, leading_hits, unknown

from advisor.logs.read import read
from advisor.logs.trace import Trace
from advisor.workload.arrivals import window_counts
from advisor.workload.measure import measure

FILES = {  # key of expected_stats.json -> file or folder under shared/traces
    "azure-llm-2023/code": "azure-llm-2023/AzureLLMInferenceTrace_code.csv",
    "azure-llm-2023/conv": "azure-llm-2023/AzureLLMInferenceTrace_conv.csv",
    "mooncake/conversation": "mooncake/conversation_trace.jsonl.gz",
    "etalon-lengths/sharegpt_8k_filtered_stats_llama2_tokenizer": (
        "etalon-lengths/sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz"
    ),
    "vidur-lengths/arxiv_summarization_stats_llama2_tokenizer_filtered_v2": (
        "vidur-lengths/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz"
    ),
    "vidur-lengths/splitwise_code": "vidur-lengths/splitwise_code.csv.gz",
    "vidur-lengths/splitwise_conv": "vidur-lengths/splitwise_conv.csv.gz",
    "aibrix-sharegpt": "aibrix-sharegpt/8min_up_and_down.jsonl.gz",
    "lmcache-agent/miniswe": "lmcache-agent/miniswe",
}
FORMATS = {"azure": "azure", "mooncake": "mooncake", "aibrix": "aibrix", "lmcache": "lmcache"}
TIMELESS = ("etalon", "vidur-lengths/arxiv")


@pytest.fixture(scope="module")
def expected(shared: Path) -> dict[str, Any]:
    stats: dict[str, Any] = json.loads((shared / "traces/expected_stats.json").read_text())
    return stats


@pytest.fixture(scope="module")
def traces(shared: Path) -> Callable[[str], Trace]:
    """Each trace by its key, read once."""
    known: dict[str, Trace] = {}

    def get(name: str) -> Trace:
        if name not in known:
            known[name] = read([shared / "traces" / FILES[name]])
        return known[name]

    return get


@pytest.mark.parametrize("name", [name for name in FILES if "miniswe" not in name])
class TestEveryTrace:
    def test_prompt_lengths(self, traces: Callable[[str], Trace], expected: dict[str, Any], name: str) -> None:
        check_lengths(traces(name).prompt_tokens, expected[name]["prompt"])

    def test_output_lengths(self, traces: Callable[[str], Trace], expected: dict[str, Any], name: str) -> None:
        check_lengths(traces(name).output_tokens, expected[name]["output"])

    def test_format_and_account(self, traces: Callable[[str], Trace], name: str) -> None:
        trace = traces(name)
        assert trace.info is not None
        assert trace.info.format == FORMATS.get(name.partition("-")[0].partition("/")[0], "generic")
        assert trace.info.skipped == {}
        assert accounted(trace)
        assert np.isnan(trace.arrival_s).all() == name.startswith(TIMELESS)


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith(TIMELESS)])
def test_arrivals(traces: Callable[[str], Trace], expected: dict[str, Any], name: str) -> None:
    stats, stamps = expected[name]["arrival"], traces(name).arrival_s
    gaps = np.diff(stamps)
    assert stamps[-1] == pytest.approx(stats["span_s"], abs=1e-6)
    assert len(stamps) / stamps[-1] == pytest.approx(stats["rate_rps"], abs=1e-6)
    assert np.mean(gaps == 0) == pytest.approx(stats["zero_gap_fraction"], abs=5e-4)
    assert gaps.std() / gaps.mean() == pytest.approx(stats["cv_interarrival"], abs=1e-4)
    for window in (1, 10, 60):
        counts = window_counts(stamps, window)
        assert counts.var() / counts.mean() == pytest.approx(stats[f"iod_{window}s"], abs=1e-4)
        assert counts.max() == stats[f"peak_count_{window}s"]
        assert counts.max() / counts.mean() == pytest.approx(stats[f"peak_over_mean_{window}s"], abs=1e-4)


def test_azure_code_is_on_and_off(traces: Callable[[str], Trace]) -> None:
    gaps = np.sort(np.diff(traces("azure-llm-2023/code").arrival_s))
    assert np.mean(gaps < 0.01) == pytest.approx(0.387, abs=5e-4)
    assert gaps[-5:].round().tolist() == [139, 144, 168, 174, 217]
    shorter = gaps[: int(len(gaps) * 0.995)]
    assert shorter.std() / shorter.mean() == pytest.approx(3.01, abs=5e-3)


def test_azure_code_is_capped(traces: Callable[[str], Trace]) -> None:
    trace = traces("azure-llm-2023/code")
    (cap,) = measure(trace).lengths.caps
    assert cap.share == pytest.approx(322 / 8819, abs=1e-9)  # prompts of 7,435 to 7,437 tokens
    assert 7435 <= cap.at <= 7437


def test_azure_keeps_hundreds_of_nanoseconds(traces: Callable[[str], Trace]) -> None:
    """kubernetes-sigs/inference-perf#782: cut to hundredths, distinct arrivals become a burst."""
    trace = traces("azure-llm-2023/code")
    # The file's first two stamps are 18:17:03.9799600 and 18:17:04.0319600 of 2023-11-16.
    assert trace.arrival_s[1] == pytest.approx(0.052, abs=1e-12)
    assert trace.first_epoch_s == pytest.approx(1_700_158_623.97996, abs=1e-6)


def test_azure_has_no_prefixes(traces: Callable[[str], Trace]) -> None:
    trace = traces("azure-llm-2023/conv")
    assert trace.blocks is None
    assert "sharing" in unknown(trace)  # Azure/AzurePublicDataset#53


class TestMooncake:
    def test_prefix_hits(self, traces: Callable[[str], Trace], expected: dict[str, Any]) -> None:
        trace, stats = traces("mooncake/conversation"), expected["mooncake/conversation"]["prefix"]
        assert trace.blocks is not None
        assert (trace.blocks.size, trace.blocks.rounding) == (stats["block_tokens"], "ceil")
        ids, counts, hits = trace.blocks.ids, np.diff(trace.blocks.starts), leading_hits(trace)
        assert len(ids) == stats["total_blocks"]
        assert ids.max() + 1 == stats["unique_blocks"]
        assert hits.sum() == stats["prefix_hit_blocks"]
        assert hits.sum() / len(ids) == pytest.approx(stats["infinite_cache_prefix_hit"], abs=1e-6)
        assert 1 - (ids.max() + 1) / len(ids) == pytest.approx(stats["infinite_cache_set_hit"], abs=1e-6)
        assert np.mean(hits > 0) == pytest.approx(stats["requests_with_hit"], abs=1e-6)
        assert np.mean(hits / counts) == pytest.approx(stats["mean_per_request_hit"], abs=1e-6)
        assert token_hit_rate(trace) == pytest.approx(stats["token_hit"], abs=1e-6)

    def test_the_published_ratio_under_other_definitions(self, traces: Callable[[str], Trace]) -> None:
        """README: published 40 %; 38.2 % over full blocks only, 40.9 % as the mean of each request's tokens."""
        trace = traces("mooncake/conversation")
        hits, full = leading_hits(trace), trace.prompt_tokens // 512
        assert hits.sum() / full.sum() == pytest.approx(0.382, abs=5e-4)
        tokens = np.minimum(hits * 512, trace.prompt_tokens)
        assert np.mean(np.minimum(hits * 512, trace.prompt_tokens) / trace.prompt_tokens) == pytest.approx(
            0.409, abs=5e-4
        )
        assert tokens.sum() / trace.prompt_tokens.sum() == pytest.approx(0.374, abs=5e-4)

    def test_ticks_and_the_block_that_all_share(self, traces: Callable[[str], Trace]) -> None:
        trace = traces("mooncake/conversation")
        assert trace.blocks is not None
        stamps = np.unique(trace.arrival_s)
        assert len(stamps) == 1180
        assert np.median(np.diff(stamps)) == pytest.approx(3.0, abs=0.01)
        first = trace.blocks.ids[trace.blocks.starts[:-1]]
        assert (first == 0).all()
        assert (len(trace) - 1) / leading_hits(trace).sum() == pytest.approx(0.114, abs=5e-4)

    def test_the_implied_span_and_rate_are_shown(self, traces: Callable[[str], Trace]) -> None:
        info = traces("mooncake/conversation").info
        assert info is not None
        assert "59 minutes at 3.40 requests/s" in info.notes[0]  # B16: an error of a factor 1000 is seen
