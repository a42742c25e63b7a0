"""Our own trace as `save` documents it, but for the names of clients and sessions, which it makes ordinals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from helpers.traffic import Call
from logs.writers import EVERYTHING
from logs.writers.mooncake import chained_ids

FORMAT = "advise-trace"
KEEPS = EVERYTHING
HAS = attrgetter("ok")  # a Trace has no failed requests without output
RELATIVE = True
BLOCK_TOKENS = 4


def write(calls: Sequence[Call], path: Path) -> None:
    """Whole milliseconds are whole numbers; what a call does not have has no key."""
    answered = [call for call in calls if call.ok]
    ids: dict[tuple[int, ...], int] = {}
    path.write_text("".join(json.dumps(_row(call, answered[0].arrival_ns, ids)) + "\n" for call in answered))


def _row(call: Call, first_ns: int, ids: dict[tuple[int, ...], int]) -> dict[str, Any]:
    row = {
        "timestamp": (call.arrival_ns - first_ns) / 1e6,
        "input_length": call.prompt_tokens,
        "output_length": call.output_tokens,
        "hash_ids": chained_ids(call.tokens, ids, size=BLOCK_TOKENS, partial=False),
        "rounding": "floor",
        "block_size": BLOCK_TOKENS,
        "scope": "global",
        "model": call.model,
        "client": call.client,
        "session": call.session,
        "cached_tokens": call.cached_tokens,
        "ttft_s": None if call.ttft_ns is None else call.ttft_ns / 1e9,
        "e2e_s": call.e2e_ns / 1e9,
    }
    return {name: value for name, value in row.items() if value is not None}
