"""TGI's router with `--json-output`: a line at the end of each request, durations as Rust prints them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.traffic import Call

FORMAT = "tgi"
KEEPS = frozenset(("arrival_s", "output_tokens", "e2e_s"))
_WAITED_NS = 483_704  # validated and queued


def write(calls: Sequence[Call], path: Path) -> None:
    """Failures are errors, between other lines of the router and the launcher."""
    rows = [_row(call) for call in sorted(calls, key=lambda call: call.end_ns)]
    launcher = {"timestamp": "2026-09-14T08:00:00.000001Z", "level": "INFO", "fields": {"message": "Ready"}}
    rows.insert(0, launcher | {"target": "text_generation_launcher"})
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def rust(nanoseconds: int) -> str:
    """`{:?}` of a Duration: the largest unit that leaves a whole part, without trailing zeros."""
    for scale, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "µs")):
        if nanoseconds >= scale:
            whole, rest = divmod(nanoseconds, scale)
            fraction = str(rest).rjust(len(str(scale)) - 1, "0").rstrip("0")
            return f"{whole}.{fraction}{unit}" if fraction else f"{whole}{unit}"
    return f"{nanoseconds}ns"


def _row(call: Call) -> dict[str, Any]:
    moment = datetime.datetime.fromtimestamp(call.end_ns // 10**9, datetime.UTC)
    span: dict[str, Any] = {
        "name": "generate_stream" if call.ttft_ns is not None else "generate",
        "parameters": "GenerateParameters { max_new_tokens: Some(64), temperature: None }",
    }
    if call.ok:
        inference = call.e2e_ns - _WAITED_NS
        span |= {
            "total_time": rust(call.e2e_ns), "validation_time": rust(412_500), "queue_time": rust(71_204),
            "inference_time": rust(inference), "time_per_token": rust(inference // call.output_tokens),
            "seed": "None",
        }  # fmt: skip
    return {
        "timestamp": f"{moment:%Y-%m-%dT%H:%M:%S}.{call.end_ns % 10**9 // 1000:06}Z",
        "level": "INFO" if call.ok else "ERROR",
        "message": "Success" if call.ok else "Model is overloaded",
        "target": "text_generation_router::server" if call.ok else "text_generation_router::infer",
        "filename": "router/src/server.rs",
        "line_number": 424,
        "span": span,
    }
