"""TraceLab's rounds: input events before output events, the provider's token counts, some rounds twice."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from helpers.traffic import MS, Call, shuffled

FORMAT = "tracelab"
KEEPS = frozenset(
    ("arrival_s", "prompt_tokens", "output_tokens", "cached_tokens", "e2e_s", "model", "client", "session")
)
HAS = attrgetter("ok")  # a round that failed has no usage and is not published


def write(calls: Sequence[Call], path: Path) -> None:
    rows = [_row(call) for call in shuffled(calls) if call.ok]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows[::50]]))


def _row(call: Call) -> dict[str, Any]:
    events = [
        ("tool_result", call.arrival_ns - 40 * MS),
        ("user_message", call.arrival_ns),
        ("reasoning", call.arrival_ns + call.e2e_ns // 2),
        ("text", call.end_ns),
        ("tool_result", call.end_ns + 500 * MS),  # of a tool that ran while the model still wrote
        ("usage_report", call.end_ns + 20 * MS),
    ]
    row: dict[str, Any] = {
        "provider": "claude",
        "session_id": call.session,
        "user": call.client,
        "round_id": call.id,
        "trace_key": f"claude:{call.session}:{call.id}",
        "model": call.model,
        "input_tokens_total": call.prompt_tokens,
        "prefix_tokens": call.cached_tokens,
        "output_tokens": call.output_tokens,
        "timing_events": [{"event_type": kind, "timestamp": _iso(stamp)} for kind, stamp in events],
        "tools": [{"tool_name": "Bash", "input": {"command": "ls"}}],
    }
    if call.cached_tokens is not None:
        row["claude_cache_read_input_tokens"] = call.cached_tokens
        row["claude_uncached_input_tokens"] = 1
        row["claude_cache_creation_input_tokens"] = call.prompt_tokens - call.cached_tokens - 1
    return row


def _iso(stamp_ns: int) -> str:
    stamp = datetime.datetime.fromtimestamp(stamp_ns / 1e9, datetime.UTC)
    return stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")
