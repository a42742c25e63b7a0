"""Langfuse's export to blob storage, JSON lines: objects in texts, UTC without a zone, empty texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.gateways import first_token_ns, iso, mixed
from helpers.traffic import Call
from logs.writers import EVERYTHING, langfuse

FORMAT = "langfuse-blob"
KEEPS = EVERYTHING
TOLERANCE_S = 2e-3  # a first token at the very end is put a millisecond before it


def write(calls: Sequence[Call], path: Path) -> None:
    """The windows of the export overlap, so that some rows are there twice."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(calls)))


def rows(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Generations, and the observations that are none."""
    good = [_row(call) for call in calls]
    spans = [
        {**base, "id": f"s-{base['id']}", "type": kind} for base in good[::20] for kind in ("SPAN", "EVENT")
    ]
    return mixed(good, [*spans, *good[::30]])


def _row(call: Call) -> dict[str, Any]:
    first = first_token_ns(call)
    return {
        "id": call.id,
        "trace_id": f"trace-{call.session}",
        "project_id": "p",
        "type": "GENERATION",
        "parent_observation_id": "",
        "start_time": _stamp(call.arrival_ns),
        "end_time": _stamp(call.end_ns),
        "completion_start_time": None if first is None else _stamp(first),
        "name": "answer",
        "level": "DEFAULT" if call.ok else "ERROR",
        "status_message": call.error or "",
        "user_id": call.client or "",
        "session_id": call.session or "",
        "input": json.dumps({"messages": list(call.messages)}),
        "output": json.dumps({"role": "assistant", "content": call.answer}) if call.ok else "",
        "provided_model_name": call.model,
        "usage_details": langfuse.usage(call),
        "latency": call.e2e_ns / 1e6,
        "time_to_first_token": None if first is None else (first - call.arrival_ns) / 1e6,
    }


def _stamp(ns: int) -> str:
    return iso(ns, zone="", separator=" ", digits=6)
