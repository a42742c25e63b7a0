"""OpenRouter's activity CSV: lengths, times and keys, no prompts and no sessions."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from helpers.gateways import first_token_ns, iso
from helpers.traffic import Call, shuffled
from logs.writers import EVERYTHING

FORMAT = "openrouter"
KEEPS = EVERYTHING - {"blocks", "session"}
TOLERANCE_S = 2e-3  # a first token at the very end is put a millisecond before it
FILE = "activity.csv"
HEADER = [
    "generation_id",
    "created_at",
    "cost_total",
    "cost_web_search",
    "cost_cache",
    "cost_file_processing",
    "byok_usage_inference",
    "tokens_prompt",
    "tokens_completion",
    "tokens_reasoning",
    "tokens_cached",
    "model_permaslug",
    "provider_name",
    "variant",
    "cancelled",
    "streamed",
    "user",
    "finish_reason_raw",
    "finish_reason_normalized",
    "generation_time_ms",
    "time_to_first_token_ms",
    "api_key_disabled",
    "api_key_name",
    "app_name",
]


def write(calls: Sequence[Call], path: Path) -> None:
    """A call that the client left has no output; some rows are in two exports that were joined."""
    rows = shuffled(calls)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEADER, restval="0")
        writer.writeheader()
        writer.writerows(_row(call) for call in [*rows, *rows[::40]])


def _row(call: Call) -> dict[str, object]:
    first = first_token_ns(call)
    return {
        "generation_id": call.id,
        "created_at": iso(call.arrival_ns, zone="", separator=" "),
        "tokens_prompt": call.prompt_tokens,
        "tokens_completion": call.output_tokens,
        "tokens_cached": "" if call.cached_tokens is None else call.cached_tokens,
        "model_permaslug": call.model,
        "provider_name": "ExampleCo",
        "variant": "standard",
        "cancelled": "false" if call.ok else "true",
        "streamed": "true",
        "user": call.client or "",
        "finish_reason_raw": "stop" if call.ok else "",
        "finish_reason_normalized": "stop" if call.ok else "",
        "generation_time_ms": call.e2e_ns // 10**6,
        "time_to_first_token_ms": "" if first is None else (first - call.arrival_ns) // 10**6,
        "api_key_disabled": "false",
        "api_key_name": "",
        "app_name": "Harbor",
    }
