"""Old GenAI names with a log event a message, as OpenAI's instrumentation wrote it up to convention 1.36."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers import otlp
from helpers.traffic import Call, shuffled
from logs.writers import EVERYTHING

FORMAT = "otlp"
KEEPS = EVERYTHING - {"ttft_s", "client"}


def write(calls: Sequence[Call], path: Path) -> None:
    """The events of a call come before its span, those of some calls long before."""
    early, late = [], []
    for number, call in enumerate(shuffled(calls)):
        trace = f"{number:032x}"
        (early if number % 10 == 0 else late).append(otlp.logs(*_events(call, trace)))
        late.append(otlp.batch(_span(call, trace)))
    path.write_text("".join(json.dumps(line) + "\n" for line in early + late))


def _events(call: Call, trace: str) -> list[dict[str, Any]]:
    if not call.ok:
        return []
    records = [
        otlp.log(
            f"gen_ai.{message['role']}.message",
            call.arrival_ns + place,
            {"gen_ai.system": "openai", "event.name": f"gen_ai.{message['role']}.message"},
            body={"content": message["content"]},
            span_id="a1",
            trace=trace,
        )
        for place, message in enumerate(call.messages)
    ]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": call.answer}}
    records.append(otlp.log("gen_ai.choice", call.end_ns, {}, body=choice, span_id="a1", trace=trace))
    return records


def _span(call: Call, trace: str) -> dict[str, Any]:
    items: dict[str, object] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.system": "openai",
        "gen_ai.request.model": call.model,
        "session.id": call.session,
    }
    if call.ok:
        items |= {
            "gen_ai.usage.prompt_tokens": call.prompt_tokens,
            "gen_ai.usage.completion_tokens": call.output_tokens,
            "gen_ai.usage.cache_read_input_tokens": call.cached_tokens,
        }
    return otlp.span(
        "chat", call.arrival_ns, call.end_ns, items, trace=trace, span_id="a1", parent="", failed=not call.ok
    )
