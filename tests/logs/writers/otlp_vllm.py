"""vLLM's own spans: one `llm_request` a finished request, without its content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from helpers import otlp
from helpers.traffic import Call, shuffled

FORMAT = "otlp"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s", "model"))


def write(calls: Sequence[Call], path: Path) -> None:
    """Requests that failed have no span; the spans of the API server around are transport."""
    lines = []
    for number, call in enumerate(shuffled([call for call in calls if call.ok])):
        items = {
            "gen_ai.response.model": call.model,
            "gen_ai.request.id": call.id,
            "gen_ai.request.max_tokens": 64,
            "gen_ai.usage.prompt_tokens": call.prompt_tokens,
            "gen_ai.usage.completion_tokens": call.output_tokens,
            "gen_ai.latency.time_in_queue": 0.004,
            "gen_ai.latency.time_to_first_token": None if call.ttft_ns is None else call.ttft_ns / 1e9,
            "gen_ai.latency.e2e": call.e2e_ns / 1e9,
        }
        trace = f"{number:032x}"
        # The span ends when the tracer writes it, which is later than the request.
        span = otlp.span("llm_request", call.arrival_ns, call.end_ns + 10**6, items, trace=trace, parent="c0")
        outer = otlp.span(
            "POST /v1/chat/completions", call.arrival_ns, call.end_ns, {}, trace=trace, span_id="c0"
        )
        lines.append(json.dumps(otlp.batch(span, outer)))
    path.write_text("\n".join(lines) + "\n")
