"""SGLang with `--log-requests --log-requests-format json --log-requests-level 3 --enable-metrics`.

Prompts are text for some requests and token ids for others; refused ones finish with an abort.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.traffic import Call, shuffled
from helpers.vllm_lines import render

FORMAT = "sglang-log"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens", "cached_tokens", "blocks", "ttft_s", "e2e_s"))


def write(calls: Sequence[Call], path: Path) -> None:
    """Received and finished lines about in the order of their times; a health check now and then."""
    rows: list[tuple[int, dict[str, Any]]] = []
    for call in shuffled(calls):
        if call.error == "503":
            continue  # refused before the logger
        rows.append((call.arrival_ns, _event(call.arrival_ns, "received", call)))
        rows.append((call.end_ns, _event(call.end_ns, "finished", call) | {"out": output(call)}))
    for call in calls[::50]:
        health = {"rid": f"HEALTH_CHECK_{call.arrival_ns}", "obj": {"rid": f"HEALTH_CHECK_{call.arrival_ns}"}}
        rows.append((call.arrival_ns, _event(call.arrival_ns, "received", call) | health))
    rows.sort(key=lambda row: row[0] // (30 * 10**9))
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for _, row in rows))


def request(call: Call) -> dict[str, Any]:
    """The parameters of a request, as the server has them."""
    ids = call.turn % 2 == 0
    return {
        "rid": call.id,
        "text": None if ids else render(call),
        "input_ids": list(call.tokens) if ids else None,
        "sampling_params": {"max_new_tokens": 64, "temperature": 0.2, "stop": ["\n", "it's"]},
        "stream": call.ttft_ns is not None,
        "log_metrics": True,
    }


def output(call: Call) -> dict[str, Any]:
    """What came back, with the account of it."""
    meta: dict[str, Any] = {
        "id": call.id,
        "finish_reason": {"type": "stop", "matched": 151645} if call.ok else {"type": "abort", "message": "x"},
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.output_tokens,
        "e2e_latency": call.e2e_ns / 1e9,
        "weight_version": "default",
    }
    if call.cached_tokens is not None:
        meta["cached_tokens"] = call.cached_tokens
    if call.ttft_ns is not None:
        meta["request_received_ts"] = call.arrival_ns / 1e9
        meta["prefill_finished_ts"] = (call.arrival_ns + call.ttft_ns) / 1e9
    return {"text": call.answer if call.ok else "", "output_ids": [1], "meta_info": meta}


def _event(time_ns: int, kind: str, call: Call) -> dict[str, Any]:
    moment = datetime.datetime.fromtimestamp(time_ns // 10**9, datetime.UTC).replace(tzinfo=None)
    stamp = (moment + datetime.timedelta(microseconds=time_ns % 10**9 // 1000)).isoformat()
    return {"timestamp": stamp, "event": f"request.{kind}", "rid": call.id, "obj": request(call)}
