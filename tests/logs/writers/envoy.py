"""Envoy AI Gateway's access log with the documented keys: no prompts, no users, no cached tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.gateways import iso, mixed
from helpers.traffic import Call
from logs.writers import EVERYTHING

FORMAT = "envoy-ai-gateway"
KEEPS = EVERYTHING - {"blocks", "session", "client", "cached_tokens", "ttft_s"}


def write(calls: Sequence[Call], path: Path) -> None:
    """Lines are written at the end of requests; streams that the client left have no tokens."""
    good = [_row(call) for call in sorted(calls, key=lambda call: call.end_ns)]
    extra = [{**base, "x-envoy-origin-path": "/v1/embeddings"} for base in good[::30]]
    extra += [{**base, "x-envoy-origin-path": "/mcp", "mcp_method": "tools/call"} for base in good[::40]]
    path.write_text("".join(json.dumps(row) + "\n" for row in mixed(good, extra)))


def _row(call: Call) -> dict[str, Any]:
    left = call.error == "503"
    return {
        "start_time": iso(call.arrival_ns),
        "method": "POST",
        "x-envoy-origin-path": "/v1/chat/completions",
        "response_code": 0 if left else int(call.error or 200),
        "response_flags": "DC" if left else "-",
        "duration": call.e2e_ns // 10**6,
        "x-envoy-upstream-service-time": None if left else "300",
        "bytes_received": 412,
        "bytes_sent": 2210,
        "x-request-id": call.id,
        "gen_ai.request.model": call.model,
        "gen_ai.provider.name": "default/pool",
        "gen_ai.usage.input_tokens": call.prompt_tokens if call.ok else None,
        "gen_ai.usage.output_tokens": call.output_tokens if call.ok else None,
        "gen_ai.usage.total_tokens": call.prompt_tokens + call.output_tokens if call.ok else None,
    }
