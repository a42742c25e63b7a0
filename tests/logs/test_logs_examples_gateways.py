"""The invented records of gateways and observability products (shared/traces/format-examples), as a person
reads them. What these products get wrong is in tests of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.gateways import info, said, unknown
from helpers.logs import WordEncoder

from advisor.logs.read import read

WORDS = WordEncoder()
USER = [{"role": "user", "content": "a b c"}]  # four tokens: one for the role
ARRIVAL = 1789372800.12  # 2026-09-14T08:00:00.120Z
CALL = {
    "arrival": ARRIVAL, "prompt": 41, "output": 17, "cached": 32, "ttft": 0.31, "e2e": 1.38,
    "model": "qwen3-8b", "route": None, "client": "c-3", "session": "s-901", "status": "ok", "blocks": [0],
}  # fmt: skip
CHAT = "/v1/chat/completions"
INSIDE = "logged counts (rows that hold the cached tokens: 1)"
ADDED = "logged counts (rows to which cached tokens were added: 1)"
EXAMPLES: dict[str, dict[str, Any]] = {
    "litellm_spendlogs.jsonl": {
        "format": "litellm-spend", "first": {"route": "acompletion"}, "skipped": {"failed request": 1},
        "arrival": "startTime, wall-clock time", "tokens": INSIDE, "unknown": [],
    },
    "litellm_standard_payload.jsonl": {
        "format": "litellm-payload", "first": {"route": "acompletion", "session": "tr-5"}, "skipped": {},
        "arrival": "startTime, seconds since 1970", "tokens": INSIDE, "unknown": [],
    },
    "langfuse_ui_export.jsonl": {
        "format": "langfuse", "first": {}, "skipped": {}, "arrival": "startTime, wall-clock time",
        "tokens": ADDED, "unknown": [],
    },
    "langfuse_blob_observations_v2.jsonl": {
        "format": "langfuse-blob", "first": {}, "skipped": {}, "arrival": "start_time, wall-clock time",
        "tokens": ADDED, "unknown": [],
    },
    "helicone_export.jsonl": {
        "format": "helicone", "first": {"route": CHAT}, "skipped": {},
        "arrival": "request_created_at, wall-clock time", "tokens": INSIDE, "unknown": [],
    },
    "portkey_export.jsonl": {
        "format": "portkey", "first": {"cached": None, "ttft": None, "session": None}, "skipped": {},
        "arrival": "created_at, wall-clock time", "tokens": "logged counts",
        "unknown": ["latency.ttft_s", "sharing.cached_share", "sessions"],
    },
    "openrouter_activity.csv": {
        "format": "openrouter", "skipped": {"failed request": 1},
        "first": {"model": "qwen/qwen3-8b", "client": "prod", "session": None, "blocks": None},
        "arrival": "created_at, wall-clock time", "tokens": "logged counts, as OpenRouter counts",
        "unknown": ["sharing", "sessions"],
    },
    "langsmith_runs.jsonl": {
        "format": "langsmith", "first": {"client": None}, "skipped": {}, "tokens": INSIDE,
        "arrival": "start_time, wall-clock time", "unknown": ["clients"],
    },
    "envoy_ai_gateway_access.jsonl": {
        "format": "envoy-ai-gateway", "skipped": {"failed request": 1}, "tokens": "logged counts",
        "first": {"cached": None, "ttft": None, "route": CHAT, "client": None, "session": None, "blocks": None},
        "arrival": "start_time, wall-clock time",
        "unknown": ["sharing", "latency.ttft_s", "sharing.cached_share", "clients", "sessions"],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_read_as_a_person_reads_it(shared: Path, name: str) -> None:
    expected = EXAMPLES[name]
    trace = read([shared / "traces/format-examples" / name], tokenizer=WORDS)
    first = {
        "arrival": trace.first_epoch_s,
        "prompt": trace.prompt_tokens[0],
        "output": trace.output_tokens[0],
        "cached": None if trace.cached_tokens is None else trace.cached_tokens[0],
        "ttft": None if trace.ttft_s is None else pytest.approx(trace.ttft_s[0], abs=1e-6),
        "e2e": None if trace.e2e_s is None else pytest.approx(trace.e2e_s[0], abs=1e-6),
        "model": said(trace.model),
        "route": said(trace.route),
        "client": said(trace.client),
        "session": said(trace.session),
        "status": said(trace.status),
        "blocks": None if trace.blocks is None else trace.blocks.row(0).tolist(),
    }
    assert len(trace) == 1
    assert first == CALL | expected["first"]
    assert info(trace).format == expected["format"]
    assert info(trace).skipped == expected["skipped"]
    assert info(trace).arrival_basis == expected["arrival"]
    assert info(trace).token_basis == expected["tokens"]
    assert list(unknown(trace)) == expected["unknown"]
