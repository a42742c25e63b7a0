"""OTLP/JSON with current GenAI names: an agent's spans and log events, in batches in no order.

Messages are in attributes, as JSON or structured, or in the log event of the call. Agents repeat the totals of
their calls, some calls are seen by a proxy too, and between the two are spans of transport.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers import otlp
from helpers.traffic import MS, Call
from logs.writers import EVERYTHING

FORMAT = "otlp"
KEEPS = EVERYTHING

Item = tuple[str, dict[str, Any]]  # which batch it belongs in, and the span or log record


def write(calls: Sequence[Call], path: Path) -> None:
    """Some batches are delivered twice."""
    items = [item for number, call in enumerate(calls) for item in _items(number, call)]
    random.Random(3).shuffle(items)
    lines = []
    for start in range(0, len(items), 9):
        some = items[start : start + 9]
        lines.append(otlp.batch(*(item for kind, item in some if kind == "span")))
        lines.append(otlp.logs(*(item for kind, item in some if kind == "log")))
    lines += lines[::17]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _items(number: int, call: Call) -> list[Item]:
    trace = f"{number:032x}"
    system, rest = call.messages[0], [_message(message) for message in call.messages[1:]]
    content: dict[str, object] = {
        "gen_ai.system_instructions": [{"type": "text", "content": system["content"]}],
        "gen_ai.input.messages": rest,
    }
    base = _call_attributes(call)
    in_event = number % 3 == 0 and call.ok
    if not in_event:
        text = number % 3 == 1
        base |= {name: json.dumps(item) if text else item for name, item in content.items()}
    items = [_span(call, "chat", base, trace, "00000000000000a1", "00000000000000a0", 0)]
    agent = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.usage.input_tokens": call.prompt_tokens,
        "gen_ai.usage.output_tokens": call.output_tokens,
    }
    items.append(_span(call, "invoke_agent", agent, trace, "00000000000000a0", "", 0))
    if in_event:
        details = content | {"gen_ai.response.id": call.id, "gen_ai.request.model": call.model}
        name = "gen_ai.client.inference.operation.details"
        items.append(("log", otlp.log(name, call.end_ns, details, span_id="00000000000000a1", trace=trace)))
    if number % 7 == 0 and call.ok:
        items += _proxy(call, trace)
    if number % 20 == 0:
        embed = {"gen_ai.operation.name": "embeddings", "gen_ai.usage.input_tokens": 8}
        items.append(_span(call, "embeddings", embed, trace, "00000000000000e0", "00000000000000a0", 0))
    return items


def _proxy(call: Call, trace: str) -> list[Item]:
    """What the service behind says of the same call: within it, and a little shorter."""
    http = {"http.request.method": "POST"}
    return [
        _span(call, "POST", http, trace, "00000000000000b1", "00000000000000a1", MS),
        _span(call, "POST /v1/chat/completions", http, trace, "00000000000000b2", "00000000000000b1", 2 * MS),
        _span(call, "chat", _call_attributes(call), trace, "00000000000000b3", "00000000000000b2", 3 * MS),
    ]


def _call_attributes(call: Call) -> dict[str, object]:
    items: dict[str, object] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": call.model,
        "gen_ai.conversation.id": call.session,
        "user.id": call.client,
    }
    if not call.ok:
        return items | {"error.type": call.error}
    return items | {
        "gen_ai.response.id": call.id,
        "gen_ai.response.model": call.model,
        "gen_ai.usage.input_tokens": call.prompt_tokens,
        "gen_ai.usage.output_tokens": call.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.cached_tokens,
        "gen_ai.response.time_to_first_chunk": None if call.ttft_ns is None else call.ttft_ns / 1e9,
    }


def _message(message: Any) -> dict[str, Any]:
    return {"role": message["role"], "parts": [{"type": "text", "content": message["content"]}]}


def _span(
    call: Call, name: str, items: dict[str, object], trace: str, span_id: str, parent: str, inside_ns: int
) -> Item:
    start, end = call.arrival_ns + inside_ns, call.end_ns - inside_ns
    failed = not call.ok and name == "chat"
    span = otlp.span(name, start, end, items, trace=trace, span_id=span_id, parent=parent, failed=failed)
    return "span", span
