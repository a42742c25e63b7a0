"""Langfuse's UI export: one JSON array, buckets that exclude each other, spans and agents among the calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.gateways import first_token_ns, iso, mixed
from helpers.traffic import Call
from logs.writers import EVERYTHING

FORMAT = "langfuse"
KEEPS = EVERYTHING
TOLERANCE_S = 2e-3  # a first token at the very end is put a millisecond before it


def write(calls: Sequence[Call], path: Path) -> None:
    """Agents repeat the tokens of their calls; embeddings and retries are observations too."""
    good = [row(call) for call in calls]
    extra = [
        change
        for base in good[::20]
        for change in (
            {**base, "id": f"agent-{base['id']}", "type": "AGENT"},
            {**base, "id": f"span-{base['id']}", "type": "SPAN", "usageDetails": {}},
            {**base, "id": f"emb-{base['id']}", "type": "EMBEDDING"},
            {**base, "id": f"try-{base['id']}", "level": "ERROR", "usageDetails": {}, "output": None},
        )
    ]
    path.write_text(json.dumps(mixed(good, [*extra, *good[::40]])))


def row(call: Call) -> dict[str, Any]:
    """An observation: its latency is in milliseconds and its first token in seconds, as in some versions."""
    first = first_token_ns(call)
    return {
        "id": call.id,
        "traceId": f"trace-{call.session}",
        "type": "GENERATION",
        "parentObservationId": None,
        "startTime": iso(call.arrival_ns),
        "endTime": iso(call.end_ns),
        "completionStartTime": None if first is None else iso(first),
        "model": call.model,
        "input": {"messages": list(call.messages)},
        "output": {"role": "assistant", "content": call.answer} if call.ok else None,
        "usageDetails": usage(call),
        "latency": call.e2e_ns / 1e6,
        "timeToFirstToken": None if first is None else (first - call.arrival_ns) / 1e9,
        "level": "DEFAULT" if call.ok else "ERROR",
        "statusMessage": call.error,
        "sessionId": call.session,
        "userId": call.client,
    }


def usage(call: Call) -> dict[str, int]:
    """Buckets; a failed call has none."""
    if not call.ok:
        return {}
    total = call.prompt_tokens + call.output_tokens
    if call.cached_tokens is None:
        return {"input": call.prompt_tokens, "output": call.output_tokens, "total": total}
    buckets = {"input": call.prompt_tokens - call.cached_tokens, "input_cached_tokens": call.cached_tokens}
    return buckets | {"output": call.output_tokens, "total": total}
