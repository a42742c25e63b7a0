"""OpenAI's batch files one after another: input, output in another order, errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.gateways import openai_answer, openai_body
from helpers.traffic import Call, shuffled

FORMAT = "openai-batch"
KEEPS = frozenset(("prompt_tokens", "output_tokens", "cached_tokens", "blocks", "model"))


def write(calls: Sequence[Call], path: Path) -> None:
    """Two batches that number their requests alike; failures are in the error file, some expired."""
    half = len(calls) // 2
    rows: list[dict[str, Any]] = []
    for part in (calls[:half], calls[half:]):
        ids = {call.id: f"request-{number}" for number, call in enumerate(part)}
        rows += [_input(call, ids[call.id]) for call in part]
        done = shuffled(part)
        rows += [_output(call, ids[call.id]) for call in done if call.ok]
        rows += [_error(call, ids[call.id]) for call in done if not call.ok]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _input(call: Call, custom_id: str) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": openai_body(call)}


def _output(call: Call, custom_id: str) -> dict[str, Any]:
    body = openai_answer(call) | {"created": call.end_ns // 10**9}
    response = {"status_code": 200, "request_id": f"r-{call.id}", "body": body}
    return {"id": f"batch_req_{call.id}", "custom_id": custom_id, "response": response, "error": None}


def _error(call: Call, custom_id: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": f"batch_req_{call.id}",
        "custom_id": custom_id,
        "response": None,
        "error": None,
    }
    if call.error == "503":
        return row | {"error": {"code": "batch_expired", "message": "not run in time"}}
    body = {"error": {"message": "it broke", "type": "server_error"}}
    return row | {"response": {"status_code": int(call.error or 0), "request_id": "r", "body": body}}
