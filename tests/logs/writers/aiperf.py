"""AIPerf's `profile_export.jsonl`: warm-up first, several units, cancelled and failed requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.traffic import Call, shuffled

FORMAT = "aiperf"
KEEPS = frozenset(
    ("arrival_s", "prompt_tokens", "output_tokens", "cached_tokens", "ttft_s", "e2e_s", "session")
)


def write(calls: Sequence[Call], path: Path) -> None:
    """Records come as workers finish them."""
    rows = [_row(call, "warmup") for call in calls[:20]] + [_row(call, "profiling") for call in shuffled(calls)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _row(call: Call, phase: str) -> dict[str, Any]:
    about: dict[str, Any] = {
        "session_num": call.turn, "x_request_id": call.id, "turn_index": call.turn - 1,
        "request_start_ns": call.arrival_ns, "request_ack_ns": None, "request_end_ns": call.end_ns,
        "worker_id": "w0", "record_processor_id": "p0", "benchmark_phase": phase,
        "was_cancelled": call.error == "429",
    }  # fmt: skip
    if call.session is not None:
        about |= {"x_correlation_id": call.session, "conversation_id": "template-1"}
    if not call.ok:
        failed = {"error_isl": {"value": len(call.tokens), "unit": "tokens"}}
        error = {"code": int(call.error or 0), "type": "RequestCancellationError", "message": "x"}
        return {"metadata": about, "metrics": failed, "error": error}
    metrics: dict[str, Any] = {
        "input_sequence_length": {"value": call.prompt_tokens, "unit": "tokens"},
        "output_sequence_length": {"value": call.output_tokens, "unit": "tokens"},
        "request_latency": _duration(call.e2e_ns, call.turn),
        "inter_chunk_latency": {"value": [20.1, 19.5], "unit": "ms"},
    }
    if call.ttft_ns is not None:
        metrics["time_to_first_token"] = _duration(call.ttft_ns, call.turn)
    if call.cached_tokens is not None:
        metrics["usage_prompt_cache_read_tokens"] = {"value": call.cached_tokens, "unit": "tokens"}
    return {"metadata": about, "metrics": metrics}


def _duration(nanoseconds: int, turn: int) -> dict[str, Any]:
    unit, scale = (("ms", 1e6), ("sec", 1e9), ("us", 1e3))[turn % 3]
    return {"value": nanoseconds / scale, "unit": unit}
