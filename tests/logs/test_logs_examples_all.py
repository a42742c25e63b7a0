"""Every example goes to its own format without a flag; an unknown file gets the nearest formats and a hint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.logs import WordEncoder, accounted, write_lines

from advisor.logs.formats import FORMATS, choose_format
from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.record import UnusableError
from advisor.logs.rows import read_rows
from engine.errors import InputError

# By the file's name, which tells what a person sees in it: the format, and how many requests can be used.
EXAMPLES = {
    "aiperf_profile_export.jsonl": ("aiperf", 1),
    "anthropic_batch_results.jsonl": ("anthropic-batch", 1),
    "anthropic_messages_log.jsonl": ("anthropic-messages", 1),
    "azure_llm_2023.csv": ("azure", 2),
    "azure_llm_2024.csv": ("azure", 2),
    "burstgpt_1.csv": ("burstgpt", 1),
    "burstgpt_3.csv": ("burstgpt", 2),
    "claude_code_session.jsonl": ("claude-code", 1),
    "dynamo_request_trace.jsonl": ("dynamo", 1),
    "envoy_ai_gateway_access.jsonl": ("envoy-ai-gateway", 1),
    "helicone_export.jsonl": ("helicone", 1),
    "langfuse_blob_observations_v2.jsonl": ("langfuse-blob", 1),
    "langfuse_ui_export.jsonl": ("langfuse", 1),
    "langsmith_runs.jsonl": ("langsmith", 1),
    "litellm_spendlogs.jsonl": ("litellm-spend", 1),
    "litellm_standard_payload.jsonl": ("litellm-payload", 1),
    "mooncake.jsonl": ("mooncake", 4),
    "openai_batch_input.jsonl": ("openai-batch", 2),
    "openai_batch_output.jsonl": ("openai-batch", 1),
    "openai_usage_completions.json": ("openai-usage", 0),  # sums
    "openrouter_activity.csv": ("openrouter", 1),
    "otlp_genai_current.jsonl": ("otlp", 1),
    "otlp_genai_legacy_vllm.jsonl": ("otlp", 1),
    "otlp_openinference.jsonl": ("otlp", 1),
    "portkey_export.jsonl": ("portkey", 1),
    "qwen_bailian.jsonl": ("qwen-bailian", 2),
    "sglang_export_metrics.log": ("sglang-metrics", 1),
    "sglang_log_requests_json.log": ("sglang-log", 1),
    "sglang_log_requests_text.log": ("sglang-log", 1),
    "sharegpt.json": ("sharegpt", 2),
    "tgi_json_output.log": ("tgi", 1),
    "triton_perf_analyzer_profile_export.json": ("triton", 1),
    "vllm_0.11.0_info.log": ("vllm", 1),
    "vllm_0.11.2_info.log": ("vllm", 1),
    "vllm_bench_save_detailed.json": ("vllm-bench", 2),
    "weka_trace.json": ("weka", 3),
}


def test_there_is_an_expectation_for_each_of_the_36_files(shared: Path) -> None:
    assert sorted(EXAMPLES) == sorted(path.name for path in (shared / "traces/format-examples").iterdir())
    assert len(EXAMPLES) == 36


@pytest.mark.parametrize("name", EXAMPLES)
def test_detected_and_read(shared: Path, name: str) -> None:
    path = shared / "traces/format-examples" / name
    trace = read([path], tokenizer=WordEncoder())
    assert trace.info is not None
    assert (trace.info.format, len(trace)) == EXAMPLES[name]
    assert accounted(trace)


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_other_particular_format_claims_it(shared: Path, name: str) -> None:
    lines = read_rows(iter([(shared / "traces/format-examples" / name).read_bytes()]))
    rows = [line.content for line in lines if not isinstance(line.content, UnusableError)]
    claims = [kind.name for kind in FORMATS if kind.detect(rows)]
    assert set(claims) - {EXAMPLES[name][0]} <= {"openai", "generic"}
    chosen = choose_format(rows, ReadOptions())
    assert chosen is not None
    assert chosen.name == EXAMPLES[name][0]


def test_an_unknown_file_is_refused_with_three_formats_and_a_map(tmp_path: Path) -> None:
    rows = [{"ContextTokensUsed": 5, "GeneratedTokensUsed": 2, "TIMESTAMP_UTC": "2026-09-14"}] * 3
    with pytest.raises(InputError, match="no usable request") as caught:
        read([write_lines(tmp_path / "log", rows)])
    hint = str(caught.value.hint)
    assert "--map arrival=FIELD,prompt_tokens=FIELD with FIELD of ContextTokensUsed" in hint
    nearest = re.search(r"the nearest formats are (.+)", hint)
    assert nearest is not None
    names = nearest[1].split(", ")
    assert len(names) == 3
    assert names[0] == "azure"
    # And what the hint says works.
    mapped = (("arrival", "TIMESTAMP_UTC"), ("prompt_tokens", "ContextTokensUsed"))
    assert len(read([tmp_path / "log"], options=ReadOptions(field_map=mapped))) == 3
