"""GenAI-Perf's `profile_export.json`: two experiments, chats streamed in chunks that are no tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.traffic import Call, shuffled

FORMAT = "triton"
FILE = "profile_export.json"
KEEPS = frozenset(
    (
        "arrival_s", "prompt_tokens", "output_tokens", "cached_tokens", "blocks", "ttft_s", "e2e_s", "model",
        "session",
    )
)  # fmt: skip


def HAS(call: Call) -> bool:  # noqa: N802
    """A client always knows when the first response came."""
    return call.ttft_ns is not None


def write(calls: Sequence[Call], path: Path) -> None:
    """Failed requests have no responses; those that would lack a first token are written as such."""
    requests = [_request(call) for call in shuffled(calls)]
    half = len(requests) // 2
    experiments = [
        {"experiment": {"mode": "request_rate", "value": rate}, "requests": part, "window_boundaries": []}
        for rate, part in ((1.0, requests[:half]), (2.0, requests[half:]))
    ]
    document = {"service_kind": "openai", "endpoint": "v1/chat/completions", "experiments": experiments}
    path.write_text(json.dumps(document | {"version": "2.59.0"}, indent=1))


def _request(call: Call) -> dict[str, Any]:
    inputs = {"payload": json.dumps({"model": call.model, "messages": call.messages, "stream": True})}
    row: dict[str, Any] = {"timestamp": call.arrival_ns, "sequence_id": 0, "request_inputs": inputs}
    if call.session is not None:
        inputs["session_id"] = call.session
    if not call.ok or call.ttft_ns is None:
        return row | {"response_timestamps": [], "response_outputs": []}
    words = call.answer.split(" ")
    chunks = [_chunk(" ".join(words[:1])), _chunk(" " + " ".join(words[1:]) if words[1:] else "")]
    usage: dict[str, Any] = {"prompt_tokens": call.prompt_tokens, "completion_tokens": call.output_tokens}
    if call.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": call.cached_tokens}
    if call.turn % 3:  # the others' server sends no usage
        chunks.append("data: " + json.dumps({"choices": [], "usage": usage}) + "\n\n")
    elif call.cached_tokens is not None:
        chunks.append("data: " + json.dumps({"choices": [], "usage": usage | {"prompt_tokens": None}}) + "\n\n")
    whole = "".join(chunks) + "data: [DONE]\n\n"
    cut = len(chunks[0]) + 9  # splintered in the middle of an event, as it happens
    times = [call.arrival_ns + call.ttft_ns, call.arrival_ns + call.e2e_ns]
    return row | {
        "response_timestamps": times,
        "response_outputs": [{"response": whole[:cut]}, {"response": whole[cut:]}],
    }


def _chunk(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) + "\n\n"
