"""Anthropic's batch: the requests, then the results in another order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.traffic import Call, shuffled
from logs.writers.anthropic_messages import answer, body

FORMAT = "anthropic-batch"
KEEPS = frozenset(("prompt_tokens", "output_tokens", "cached_tokens", "blocks", "model"))
_FAILURES = {"429": "canceled", "500": "errored", "503": "expired"}


def write(calls: Sequence[Call], path: Path) -> None:
    """A line a request and a line a result."""
    rows = [{"custom_id": call.id, "params": body(call)} for call in calls]
    rows += [{"custom_id": call.id, "result": _result(call)} for call in shuffled(calls)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _result(call: Call) -> dict[str, Any]:
    if call.error is None:
        return {"type": "succeeded", "message": answer(call)}
    kind = _FAILURES[call.error]
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    return {"type": kind, "error": error} if kind == "errored" else {"type": kind}
