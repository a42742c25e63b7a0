"""OpenInference spans as OTLP/JSON: flattened messages, keys in text order, chains around calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers import otlp
from helpers.traffic import Call, shuffled
from logs.writers import EVERYTHING

FORMAT = "otlp"
KEEPS = EVERYTHING


def write(calls: Sequence[Call], path: Path) -> None:
    """Every call is inside a chain that repeats its totals and its input."""
    lines = [json.dumps(otlp.batch(*_spans(number, call))) for number, call in enumerate(shuffled(calls))]
    path.write_text("\n".join(lines) + "\n")


def _spans(number: int, call: Call) -> list[dict[str, Any]]:
    trace = f"{number:032x}"
    body = json.dumps({"model": call.model, "messages": list(call.messages)})
    items: dict[str, object] = {
        "openinference.span.kind": "LLM",
        "llm.model_name": call.model,
        "session.id": call.session,
        "user.id": call.client,
        "input.value": body,
        "input.mime_type": "application/json",
    }
    for place, message in enumerate(call.messages):
        items[f"llm.input_messages.{place}.message.role"] = message["role"]
        items[f"llm.input_messages.{place}.message.content"] = message["content"]
    counts: dict[str, object] = {}
    if call.ok:
        counts = {
            "llm.token_count.prompt": call.prompt_tokens,
            "llm.token_count.completion": call.output_tokens,
            "llm.token_count.total": call.prompt_tokens + call.output_tokens,
            "llm.token_count.prompt_details.cache_read": call.cached_tokens,
        }
    events = []
    if call.ttft_ns is not None:
        events.append(otlp.event("First Token Stream Event", call.arrival_ns + call.ttft_ns, {}))
    chain = {"openinference.span.kind": "CHAIN", "input.value": body, **counts}
    sorted_items = dict(sorted((items | counts).items()))  # 10 comes before 2
    start, end = call.arrival_ns, call.end_ns
    return [
        otlp.span(
            "ChatCompletion",
            start,
            end,
            sorted_items,
            trace=trace,
            span_id="a1",
            parent="a0",
            failed=not call.ok,
            events=events,
        ),
        otlp.span("agent", start - 10**6, end + 10**6, chain, trace=trace, span_id="a0"),
    ]
