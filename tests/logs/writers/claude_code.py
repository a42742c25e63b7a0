"""Claude Code sessions: what the user said, then a line a content block, each with the usage of the message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.gateways import iso
from helpers.traffic import MS, Call
from logs.writers.anthropic_messages import usage

FORMAT = "claude-code"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens", "cached_tokens", "e2e_s", "model", "session"))


def write(calls: Sequence[Call], path: Path) -> None:
    """Each call has its user line before it and two or three lines of its own; failures are synthetic messages.

    A resumed session repeats the lines of the one before.
    """
    rows: list[dict[str, Any]] = [{"type": "summary", "summary": "a chat", "leafUuid": "u-1"}]
    for number, call in enumerate(calls):
        lines = _lines(number, call)
        rows += lines
        if number % 40 == 0:
            rows += lines
        if number % 30 == 0:
            rows.append({"type": "file-history-snapshot", "messageId": f"u-{call.id}", "snapshot": {}})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _lines(number: int, call: Call) -> list[dict[str, Any]]:
    said = {"role": "user", "content": call.messages[-1]["content"]}
    user = _line(call, "user", f"u-{call.id}", None, call.arrival_ns, said)
    if not call.ok:
        content = [{"type": "text", "text": "API Error: overloaded"}]
        message = {"id": f"x-{call.id}", "role": "assistant", "model": "<synthetic>", "content": content}
        line = _line(call, "assistant", f"e-{call.id}", f"u-{call.id}", call.end_ns, message)
        return [user, line | {"isApiErrorMessage": True}]
    rows, parent = [user], f"u-{call.id}"
    blocks = 2 + number % 2
    for block in range(blocks):
        last = block == blocks - 1
        counts = usage(call) | ({} if last else {"output_tokens": 1})
        message = {
            "id": f"msg_{call.id}",
            "role": "assistant",
            "model": call.model,
            "content": [{"type": "text", "text": call.answer}],
            "usage": counts,
        }
        uuid = f"a-{call.id}-{block}"
        stamp = call.end_ns - (0 if last else (blocks - block) * MS)
        row = _line(call, "assistant", uuid, parent, stamp, message)
        rows.append(row if number % 4 == 0 else row | {"requestId": f"req_{call.id}"})
        parent = uuid
    return rows


def _line(
    call: Call, kind: str, uuid: str, parent: str | None, ns: int, message: dict[str, Any]
) -> dict[str, Any]:
    return {
        "parentUuid": parent,
        "isSidechain": False,
        "userType": "external",
        "sessionId": call.session,
        "type": kind,
        "uuid": uuid,
        "timestamp": iso(ns),
        "message": message,
    }
