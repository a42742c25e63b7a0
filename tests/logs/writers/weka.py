"""Weka's conversations, one JSON document a line: a clock and block ids of their own each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.traffic import Call
from logs.writers.mooncake import chained_ids

FORMAT = "weka"
KEEPS = frozenset(("prompt_tokens", "output_tokens", "ttft_s", "e2e_s", "blocks", "model", "session"))
BLOCK_TOKENS = 64


def _in_conversation(call: Call) -> bool:
    return call.ok and call.session is not None


HAS = _in_conversation


def scope(call: Call) -> str | None:
    """Ids of one conversation mean nothing in another."""
    return call.session


def order(calls: Sequence[Call]) -> list[Call]:
    """By the time since the own conversation began."""
    began: dict[str | None, int] = {}
    return sorted(calls, key=lambda call: call.arrival_ns - began.setdefault(call.session, call.arrival_ns))


def write(calls: Sequence[Call], path: Path) -> None:
    chats: dict[str | None, list[Call]] = {}
    for call in calls:
        if HAS(call):
            chats.setdefault(call.session, []).append(call)
    documents = [_conversation(name, turns) for name, turns in chats.items()]
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))


def _conversation(name: str | None, turns: Sequence[Call]) -> dict[str, Any]:
    ids: dict[tuple[int, ...], int] = {}
    return {
        "id": name,
        "models": sorted({call.model for call in turns}),
        "block_size": BLOCK_TOKENS,
        "hash_id_scope": "local",
        "tool_tokens": 0,
        "system_tokens": 40,
        "requests": [_request(call, turns[0].arrival_ns, ids) for call in turns],
        "totals": {},
    }


def _request(call: Call, began_ns: int, ids: dict[tuple[int, ...], int]) -> dict[str, Any]:
    request = {
        "t": (call.arrival_ns - began_ns) / 1e9,
        "type": "n" if call.ttft_ns is None else "s",
        "model": call.model,
        "in": call.prompt_tokens,
        "out": call.output_tokens,
        "hash_ids": chained_ids(call.tokens, ids, size=BLOCK_TOKENS, partial=False),
        "stop": "end_turn",
        "api_time": call.e2e_ns / 1e9,
        "think_time": 0.0,
    }
    if call.ttft_ns is not None:
        request["ttft"] = call.ttft_ns / 1e9
    return request
