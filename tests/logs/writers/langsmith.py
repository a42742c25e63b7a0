"""LangSmith runs, JSON lines: naive UTC, zero counts at the top, LangChain's messages, chains above calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.gateways import first_token_ns, iso, mixed
from helpers.traffic import Call
from logs.writers import EVERYTHING

FORMAT = "langsmith"
KEEPS = EVERYTHING
TOLERANCE_S = 2e-3  # a first token at the very end is put a millisecond before it
_CLASSES = {"system": "SystemMessage", "user": "HumanMessage", "assistant": "AIMessage"}


def write(calls: Sequence[Call], path: Path) -> None:
    """Every call has a chain above it that repeats its tokens."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(calls)))


def rows(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """The runs of the calls, and those around them."""
    good = [_row(index, call) for index, call in enumerate(calls)]
    chains = [{**base, "id": f"chain-{base['id']}", "run_type": "chain", "prompt_tokens": 99} for base in good]
    tools = [{**base, "id": f"tool-{base['id']}", "run_type": "tool"} for base in good[::10]]
    return mixed(good, [*chains, *tools, *good[::40]])


def _row(index: int, call: Call) -> dict[str, Any]:
    first = first_token_ns(call)
    named = {"thread_id": call.session, "user_id": call.client, "ls_model_name": call.model}
    events: list[dict[str, Any]] = [{"name": "start", "time": _stamp(call.arrival_ns)}]
    by_event = index % 2 == 0
    if first is not None and by_event:
        events += [{"name": "new_token", "time": _stamp(at)} for at in (first, call.end_ns)]
    return {
        "id": call.id,
        "trace_id": f"chain-{call.id}",
        "parent_run_id": f"chain-{call.id}",
        "dotted_order": f"20260914T080000000000Z{call.id}",
        "name": "ChatOpenAI",
        "run_type": "llm",
        "session_id": "7a000000-0000-4000-8000-00000000000a",
        "start_time": _stamp(call.arrival_ns),
        "end_time": _stamp(call.end_ns),
        "first_token_time": None if first is None or by_event else _stamp(first),
        "status": "success" if call.ok else "error",
        "error": None if call.ok else "RateLimitError()",
        "inputs": {"messages": _serialised(call.messages) if index % 3 else list(call.messages)},
        "outputs": _outputs(call) if call.ok else None,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "total_tokens": 0,
        "extra": {"metadata": {name: value for name, value in named.items() if value is not None}},
        "events": events,
    }


def _serialised(messages: Sequence[Mapping[str, str]]) -> list[list[dict[str, Any]]]:
    """As LangChain's tracer logs them."""
    path = ["langchain", "schema", "messages"]
    return [
        [
            {
                "lc": 1,
                "type": "constructor",
                "id": [*path, _CLASSES[message["role"]]],
                "kwargs": {"content": message["content"], "additional_kwargs": {}},
            }
            for message in messages
        ]
    ]


def _outputs(call: Call) -> dict[str, Any]:
    usage: dict[str, Any] = {"input_tokens": call.prompt_tokens, "output_tokens": call.output_tokens}
    if call.cached_tokens is not None:
        usage["input_token_details"] = {"cache_read": call.cached_tokens}
    return {"generations": [[{"text": call.answer}]], "usage_metadata": usage}


def _stamp(ns: int) -> str:
    return iso(ns, zone="", digits=6)
