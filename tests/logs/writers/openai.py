"""Requests and responses of an OpenAI-compatible service, one object a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.traffic import Call, shuffled
from logs.writers import EVERYTHING

FORMAT = "openai"
KEEPS = EVERYTHING


def write(calls: Sequence[Call], path: Path) -> None:
    """Times are epoch seconds; a failed call has a status and no usage."""
    path.write_text("".join(json.dumps(_row(call)) + "\n" for call in shuffled(calls)))


def _row(call: Call) -> dict[str, Any]:
    row: dict[str, Any] = {
        "ts": call.arrival_ns / 1e9,
        "duration_ms": call.e2e_ns / 1e6,
        "user": call.client,
        "session_id": call.session,
        "status": int(call.error or 200),
        "request": {"model": call.model, "messages": call.messages},
    }
    if call.ttft_ns is not None:
        row["ttft_ms"] = call.ttft_ns / 1e6
    if call.ok:
        usage: dict[str, Any] = {"prompt_tokens": call.prompt_tokens, "completion_tokens": call.output_tokens}
        if call.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": call.cached_tokens}
        row["response"] = {
            "usage": usage,
            "choices": [{"message": {"role": "assistant", "content": call.answer}}],
        }
    return row
