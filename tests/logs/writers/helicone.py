"""Helicone's export with bodies, JSON lines; numbers are null where it did not see them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.gateways import first_token_ns, iso, mixed, openai_answer, openai_body
from helpers.traffic import Call
from logs.writers import EVERYTHING

FORMAT = "helicone"
KEEPS = EVERYTHING
TOLERANCE_S = 2e-3  # a first token at the very end is put a millisecond before it


def write(calls: Sequence[Call], path: Path) -> None:
    """Failures have internal codes too; answers of Helicone's cache name the request that they repeat."""
    good = [_row(call) for call in calls]
    extra = [
        change
        for base in good[::25]
        for change in (
            {**base, "request_id": f"hit-{base['request_id']}", "cache_reference_id": base["request_id"]},
            {
                **base,
                "request_id": f"emb-{base['request_id']}",
                "request_path": "https://api.example/v1/embeddings",
            },
        )
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in mixed(good, [*extra, *good[::40]])))


def _row(call: Call) -> dict[str, Any]:
    first = first_token_ns(call)
    properties = {"App": "demo"} if call.session is None else {"Helicone-Session-Id": call.session}
    status = {None: 200, "500": -3}.get(call.error, int(call.error or 0))
    return {
        "request_id": call.id,
        "request_created_at": iso(call.arrival_ns),
        "response_created_at": iso(call.end_ns),
        "request_path": "https://api.example/v1/chat/completions",
        "request_user_id": call.client or "",
        "request_properties": properties,
        "request_model": call.model,
        "provider": "OPENAI",
        "response_status": status,
        "delay_ms": call.e2e_ns // 10**6,
        "time_to_first_token": None if first is None else (first - call.arrival_ns) // 10**6,
        "prompt_tokens": call.prompt_tokens if call.ok else None,
        "completion_tokens": call.output_tokens if call.ok else None,
        "total_tokens": call.prompt_tokens + call.output_tokens if call.ok else None,
        "prompt_cache_read_tokens": call.cached_tokens,
        "prompt_cache_write_tokens": 0,
        "cache_reference_id": "00000000-0000-0000-0000-000000000000",
        "request_body": openai_body(call),
        "response_body": openai_answer(call) if call.ok else {"error": {"message": "overloaded"}},
    }
