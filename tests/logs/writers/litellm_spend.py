"""LiteLLM's spend logs as `/spend/logs` gives them: prompts in `proxy_server_request`, `messages` is `{}`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.gateways import first_token_ns, iso, mixed, openai_answer, openai_body, openai_usage
from helpers.traffic import Call
from logs.writers import EVERYTHING

FORMAT = "litellm-spend"
KEEPS = EVERYTHING
TOLERANCE_S = 2e-3  # a first token at the very end is put a millisecond before it


def write(calls: Sequence[Call], path: Path) -> None:
    """Retries are rows of their own, and answers of LiteLLM's cache, embeddings and health checks."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(calls)))


def rows(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """One row a call, and the rows that are none; pages overlap, so some are there twice."""
    good = [row(call) for call in calls]
    extra = [
        change
        for call, base in zip(calls[::25], good[::25], strict=True)
        for change in (
            {**base, "request_id": f"{base['request_id']}_cache_hit1", "cache_hit": "True"},
            {**base, "request_id": f"emb-{call.id}", "call_type": "aembedding", "completion_tokens": 0},
            {**base, "request_id": f"hc-{call.id}", "api_key": "litellm-internal-health-check"},
            {**failed(call), "request_id": f"retry-{call.id}"},
        )
    ]
    return mixed(good, [*extra, *good[::40]])


def row(call: Call) -> dict[str, Any]:
    """A row of the table. Its first token is at the end where the call was not streamed."""
    if not call.ok:
        return failed(call)
    first = first_token_ns(call)
    return {
        **failed(call),
        "completionStartTime": iso(call.end_ns if first is None else first, digits=6),
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.output_tokens,
        "total_tokens": call.prompt_tokens + call.output_tokens,
        "metadata": {"status": "success", "usage_object": openai_usage(call)},
        "response": openai_answer(call, usage=False),
        "status": "success",
    }


def failed(call: Call) -> dict[str, Any]:
    """The row of an attempt that failed, with zero tokens."""
    error = {"error_code": call.error or "503", "error_class": "ServiceUnavailableError"}
    return {
        "request_id": call.id,
        "call_type": "acompletion",
        "api_key": "",
        "spend": 0.0,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "total_tokens": 0,
        "startTime": iso(call.arrival_ns, digits=6),
        "endTime": iso(call.end_ns, digits=6),
        "completionStartTime": iso(call.end_ns, digits=6),
        "request_duration_ms": call.e2e_ns // 10**6,
        "model": f"hosted_vllm/{call.model}",
        "model_group": "chat",
        "custom_llm_provider": "hosted_vllm",
        "user": "",
        "end_user": call.client,
        "team_id": "t-1",
        "metadata": {"status": "failure", "error_information": error},
        "cache_hit": "None",
        "request_tags": '["prod"]',
        "messages": {},
        "response": {},
        "proxy_server_request": openai_body(call),
        "session_id": call.session,
        "status": "failure",
    }
