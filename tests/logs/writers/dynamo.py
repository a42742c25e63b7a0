"""Dynamo's request trace: one event a request at its end, tool events between, some in a sink's envelope."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.traffic import Call, shuffled

FORMAT = "dynamo"
KEEPS = frozenset(
    (
        "arrival_s", "prompt_tokens", "output_tokens", "cached_tokens", "blocks", "ttft_s", "e2e_s", "model",
        "session",
    )
)  # fmt: skip
SIZE = 8  # tokens per block


def write(calls: Sequence[Call], path: Path) -> None:
    """Shards were merged, so the order is any."""
    rows = [_event(call) for call in shuffled(calls)]
    rows += [{"schema": rows[0]["schema"], "event_type": "tool_end", "event_time_unix_ms": 1, "tool": {}}] * 10
    wrapped = [{"timestamp": 17, "event": row} if number % 5 == 0 else row for number, row in enumerate(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in wrapped))


def _event(call: Call) -> dict[str, Any]:
    request: dict[str, Any] = {
        "request_id": call.id, "model": call.model, "output_tokens": call.output_tokens,
        "request_received_ms": call.arrival_ns // 10**6, "total_time_ms": call.e2e_ns / 1e6,
        "finish_reason_metadata": {"finish_reason": "stop" if call.ok else "error"},
    }  # fmt: skip
    if call.ok:
        request["input_tokens"] = call.prompt_tokens
        request["replay"] = {
            "trace_block_size": SIZE, "input_length": len(call.tokens), "input_sequence_hashes": _hashes(call),
        }  # fmt: skip
    if call.cached_tokens is not None:
        request["cached_tokens"] = call.cached_tokens
    if call.ttft_ns is not None:
        request["ttft_ms"] = call.ttft_ns / 1e6
    event: dict[str, Any] = {
        "schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_source": "dynamo",
        "event_time_unix_ms": call.end_ns // 10**6, "request": request,
    }  # fmt: skip
    if call.session is not None:
        event["agent_context"] = {"session_id": call.session}
    return event


def _hashes(call: Call) -> list[int]:
    """Each block's hash covers everything before it; unsigned 64-bit, half of them with the highest bit set."""
    ends = [min(end, len(call.tokens)) for end in range(SIZE, len(call.tokens) + SIZE, SIZE)]
    prefixes = (repr(call.tokens[:end]).encode() for end in ends)
    return [int.from_bytes(hashlib.blake2b(prefix, digest_size=8).digest(), "big") for prefix in prefixes]
