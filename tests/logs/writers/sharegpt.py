"""ShareGPT: whole chats without times, long ones split, a row that begins with an answer, one that has none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from helpers.traffic import Call

FORMAT = "sharegpt"
FILE = "sharegpt.json"
KEEPS = frozenset(("prompt_tokens", "output_tokens", "blocks", "session"))
HAS = attrgetter("ok")  # failed requests left no trace in a chat
_MOST_TURNS = 6  # messages of one part, behind the system prompt; parts end with an answer
_NAMES = {"user": "human", "assistant": "gpt", "system": "system"}


def order(calls: Sequence[Call]) -> list[Call]:
    """Chat by chat."""
    return [call for chat in _chats(calls) for call in chat]


def write(calls: Sequence[Call], path: Path) -> None:
    rows: list[dict[str, object]] = []
    for chat in _chats([call for call in calls if call.ok]):
        last = chat[-1]
        turns = [*last.messages, {"role": "assistant", "content": last.answer}]
        if last.session is None:
            rows.append({"id": None, "conversations": _said(turns)})
            continue
        for part, start in enumerate(range(1, len(turns), _MOST_TURNS)):
            said = _said(turns[start if part else 0 : start + _MOST_TURNS])
            rows.append({"id": f"{last.session}_{part}", "conversations": said})
    rows.append({"id": "orphan_0", "conversations": [{"from": "gpt", "value": "(an answer to nothing)"}]})
    rows.append({"id": "open", "conversations": [{"from": "human", "value": "(no one answered)"}]})
    path.write_text(json.dumps(rows, indent=1))


def _chats(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """The turns of every chat, chats in the order of their first turn."""
    chats: dict[str, list[Call]] = {}
    of: dict[str, str] = {}
    for call in calls:
        of[call.id] = call.id if call.parent is None else of[call.parent]
        chats.setdefault(of[call.id], []).append(call)
    yield from chats.values()


def _said(turns: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    return [{"from": _NAMES[turn["role"]], "value": turn["content"]} for turn in turns]
