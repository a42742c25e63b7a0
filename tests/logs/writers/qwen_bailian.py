"""Qwen-Bailian's traces: chats as chains, seconds from the start, an id for what each 16-token block holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from helpers.traffic import START_NS, Call

FORMAT = "qwen-bailian"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens", "blocks", "session"))
HAS = attrgetter("ok")  # failed requests have no row
RELATIVE = True
BLOCK_TOKENS = 16


def session(calls: Sequence[Call]) -> list[str | None]:
    """A conversation is named after its first request; every request is in one."""
    numbers = _numbers(calls)
    first: dict[str, str | None] = {}
    for call in calls:
        first[call.id] = str(numbers[call.id]) if call.parent is None else first[call.parent]
    return [first[call.id] for call in calls]


def write(calls: Sequence[Call], path: Path) -> None:
    answered = [call for call in calls if call.ok]
    numbers = _numbers(answered)
    ids: dict[tuple[int, ...], int] = {}
    path.write_text("".join(json.dumps(_row(call, numbers, ids)) + "\n" for call in answered))


def _numbers(calls: Sequence[Call]) -> dict[str, int]:
    """The id of every request, and of the chat that it ends."""
    return {call.id: 3 * place + 1 for place, call in enumerate(calls)}


def _row(call: Call, numbers: dict[str, int], ids: dict[tuple[int, ...], int]) -> dict[str, Any]:
    blocks = [call.tokens[start : start + BLOCK_TOKENS] for start in range(0, len(call.tokens), BLOCK_TOKENS)]
    return {
        "chat_id": numbers[call.id],
        "parent_chat_id": -1 if call.parent is None else numbers[call.parent],
        "timestamp": (call.arrival_ns - START_NS) / 1e9,
        "input_length": call.prompt_tokens,
        "output_length": call.output_tokens,
        "type": "text",
        "turn": call.turn,
        "hash_ids": [ids.setdefault(tuple(block), len(ids)) for block in blocks],
    }
