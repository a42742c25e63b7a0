"""BurstGPT 3: whole seconds from a midnight, failures without tokens, sessions on conversation rows only."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from helpers.traffic import Call

FORMAT = "burstgpt"
FILE = "BurstGPT_3.csv"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens", "e2e_s", "model", "session"))
RELATIVE = True
RESOLUTION_NS = 10**9
TOLERANCE_S = 0.51  # Elapsed time is in whole seconds
_FIRST_DAY_NS = 1_769_990_400 * 10**9  # a midnight 225 days before the calls
_HEADER = (
    "Timestamp", "Session ID", "Elapsed time", "Model", "Request tokens", "Response tokens", "Total tokens",
    "Log Type",
)  # fmt: skip


def write(calls: Sequence[Call], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_HEADER)
        writer.writerows(_row(call) for call in calls)


def _row(call: Call) -> list[object]:
    return [
        f"{(call.arrival_ns - _FIRST_DAY_NS) // 10**9}.0",
        call.session or "",
        round(call.e2e_ns / 1e9),
        call.model,
        call.prompt_tokens,
        call.output_tokens,
        call.prompt_tokens + call.output_tokens,
        "API log" if call.session is None else "Conversation log",
    ]
