"""Portkey's log export, JSON lines: the usage is in the response, there is no time to first token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.gateways import iso, mixed, openai_answer, openai_body
from helpers.traffic import Call
from logs.writers import EVERYTHING

FORMAT = "portkey"
KEEPS = EVERYTHING - {"ttft_s"}


def write(calls: Sequence[Call], path: Path) -> None:
    """Some bodies are texts, some are wrapped with their URL; a cache answers some calls; pages overlap."""
    good = [_row(index, call) for index, call in enumerate(calls)]
    hits = [{**base, "id": f"hit-{base['id']}", "cache_status": "SEMANTIC HIT"} for base in good[::25]]
    path.write_text("".join(json.dumps(row) + "\n" for row in mixed(good, [*hits, *good[::40]])))


def _row(index: int, call: Call) -> dict[str, Any]:
    body: Any = openai_body(call)
    if index % 3 == 1:
        body = json.dumps(body)
    elif index % 3 == 2:
        body = {"url": "https://api.example/v1/chat/completions", "method": "POST", "body": body}
    names = {"_user": call.client, "session_id": call.session}
    return {
        "id": call.id,
        "trace_id": f"trace-{call.id}",
        "created_at": iso(call.arrival_ns),
        "request": body,
        "response": openai_answer(call) if call.ok else {"error": {"message": "overloaded"}},
        "is_success": call.ok,
        "ai_org": "openai",
        "ai_model": call.model,
        "req_units": call.prompt_tokens,
        "res_units": call.output_tokens,
        "total_units": call.prompt_tokens + call.output_tokens,
        "cost": 0.0,
        "response_time": call.e2e_ns // 10**6,
        "response_status_code": int(call.error or 200),
        "cache_status": "SEMANTIC MISS",
        "mode": "fallback",
        "metadata": {name: value for name, value in names.items() if value is not None},
    }
