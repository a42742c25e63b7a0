"""Mooncake's form with sessions: milliseconds from the start, an id for every 16 tokens and what is left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from helpers.traffic import MS, START_NS, Call, shuffled

FORMAT = "mooncake"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens", "blocks", "session"))
HAS = attrgetter("ok")  # failed requests have no row
RELATIVE = True
BLOCK_TOKENS = 16


def write(calls: Sequence[Call], path: Path) -> None:
    ids: dict[tuple[int, ...], int] = {}
    rows = [_row(call, ids) for call in shuffled(calls) if call.ok]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def chained_ids(
    tokens: Sequence[int], ids: dict[tuple[int, ...], int], *, size: int, partial: bool
) -> list[int]:
    """An id for every block and all before it; the last one may be partial."""
    stop = len(tokens) + (size if partial and len(tokens) % size else 1)
    return [ids.setdefault(tuple(tokens[:end]), len(ids) + 100) for end in range(size, stop, size)]


def _row(call: Call, ids: dict[tuple[int, ...], int]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "timestamp": (call.arrival_ns - START_NS) // MS,
        "input_length": call.prompt_tokens,
        "output_length": call.output_tokens,
        "hash_ids": chained_ids(call.tokens, ids, size=BLOCK_TOKENS, partial=True),
    }
    if call.session is not None:
        row["session_id"] = call.session
    return row
