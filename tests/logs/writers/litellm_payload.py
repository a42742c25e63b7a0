"""LiteLLM's StandardLoggingPayload, one a line: float seconds, the response as an object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.gateways import first_token_ns, mixed, openai_answer, openai_usage
from helpers.traffic import Call
from logs.writers import EVERYTHING

FORMAT = "litellm-payload"
KEEPS = EVERYTHING
TOLERANCE_S = 2e-3  # a first token at the very end is put a millisecond before it


def write(calls: Sequence[Call], path: Path) -> None:
    """Fallbacks are rows of their own with the trace of the call; embeddings go through the same callback."""
    extra = [
        row
        for call in calls[::25]
        for row in (
            _failed(call) | {"id": f"first-try-{call.id}"},
            _row(call) | {"call_type": "aembedding", "completion_tokens": 0},
            _row(call) | {"cache_hit": True},
        )
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in mixed([_row(call) for call in calls], extra)))


def _row(call: Call) -> dict[str, Any]:
    if not call.ok:
        return _failed(call)
    first = first_token_ns(call)
    return _failed(call) | {
        "status": "success",
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.output_tokens,
        "completionStartTime": (call.end_ns if first is None else first) / 1e9,
        "response_time": ((call.end_ns if first is None else first) - call.arrival_ns) / 1e9,
        "metadata": {"user_api_key_hash": None, "usage_object": openai_usage(call)},
        "response": openai_answer(call),
        "error_str": None,
        "error_information": None,
    }


def _failed(call: Call) -> dict[str, Any]:
    return {
        "id": call.id,
        "trace_id": call.session,
        "call_type": "acompletion",
        "stream": call.ttft_ns is not None,
        "status": "failure",
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "startTime": call.arrival_ns / 1e9,
        "endTime": call.end_ns / 1e9,
        "completionStartTime": call.end_ns / 1e9,
        "model": call.model,
        "model_group": "chat",
        "custom_llm_provider": "hosted_vllm",
        "metadata": {"user_api_key_hash": None},
        "cache_hit": None,
        "end_user": call.client,
        "messages": list(call.messages),
        "model_parameters": {"stream": call.ttft_ns is not None},
        "response": None,
        "error_str": "ServiceUnavailableError",
        "error_information": {"error_code": call.error or "503"},
    }
