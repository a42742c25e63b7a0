"""LMCache's agent traces: the whole prompt as text, epoch microseconds, not in time order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from helpers.traffic import Call, shuffled

FORMAT = "lmcache"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens", "blocks", "session"))
HAS = attrgetter("ok")  # failed requests have no row


def prompt_text(call: Call) -> str:
    """The chat as one text, of the same words that the chat template of tests makes of it."""
    return "\n".join(f"<{message['role']}> {message['content']}" for message in call.messages)


def write(calls: Sequence[Call], path: Path) -> None:
    rows = [
        {
            "timestamp": call.arrival_ns // 1000,
            "input": prompt_text(call),
            "output": call.answer,
            "session_id": call.session,
        }
        for call in shuffled(calls)
        if call.ok
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
