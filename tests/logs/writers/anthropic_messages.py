"""Requests and responses of Anthropic's Messages API, streamed ones as the events that came."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.gateways import iso
from helpers.traffic import Call, shuffled
from logs.writers import EVERYTHING

FORMAT = "anthropic-messages"
KEEPS = EVERYTHING


def write(calls: Sequence[Call], path: Path) -> None:
    """Failures have an error object; every third answer is a list of events, every sixth their text."""
    rows = [_row(number, call) for number, call in enumerate(shuffled(calls))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def body(call: Call) -> dict[str, Any]:
    """The request: `system` is beside the messages, and what may be cached is marked."""
    system, *messages = call.messages
    block = {"type": "text", "text": system["content"], "cache_control": {"type": "ephemeral"}}
    return {
        "model": call.model,
        "max_tokens": 64,
        "system": [block],
        "messages": [
            {"role": message["role"], "content": [{"type": "text", "text": message["content"]}]}
            for message in messages
        ],
    }


def usage(call: Call) -> dict[str, Any]:
    """What was read from the cache and written to it is not part of `input_tokens`."""
    rest = call.prompt_tokens - (call.cached_tokens or 0)
    written = rest // 3
    return {
        "input_tokens": rest - written,
        "cache_read_input_tokens": call.cached_tokens,
        "cache_creation_input_tokens": written,
        "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
        "output_tokens": call.output_tokens,
        "service_tier": "standard",
    }


def answer(call: Call) -> dict[str, Any]:
    """The response."""
    return {
        "id": f"msg_{call.id}",
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "content": [{"type": "text", "text": call.answer}],
        "stop_reason": "end_turn",
        "usage": usage(call),
    }


def _row(number: int, call: Call) -> dict[str, Any]:
    row: dict[str, Any] = {
        "ts": iso(call.arrival_ns),
        "duration_ms": call.e2e_ns // 10**6,
        "user_id": call.client,
        "session_id": call.session,
        "request": body(call),
    }
    if call.ttft_ns is not None:
        row["ttft_ms"] = call.ttft_ns / 1e6
    if not call.ok:
        return row | {"response": {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}}
    if number % 3:
        return row | {"response": answer(call)}
    events = _events(call)
    text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return row | {"response": events if number % 2 else text}


def _events(call: Call) -> list[dict[str, Any]]:
    """The first event has the counts of the prompt, the last but one that of the output."""
    start = answer(call) | {"content": [], "usage": usage(call) | {"output_tokens": 1}}
    delta = {"type": "text_delta", "text": call.answer}
    return [
        {"type": "message_start", "message": start},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": call.output_tokens},
        },
        {"type": "message_stop"},
    ]
