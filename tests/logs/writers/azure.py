"""Azure's CSV of 2023: naive times with seven fractional digits."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from helpers.traffic import Call, shuffled

FORMAT = "azure"
FILE = "trace.csv"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens"))
HAS = attrgetter("ok")  # only answered requests are published


def write(calls: Sequence[Call], path: Path) -> None:
    rows = [_row(call) for call in shuffled(calls) if call.ok]
    path.write_text("\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))


def _row(call: Call) -> str:
    stamp = datetime.datetime.fromtimestamp(call.arrival_ns // 10**9, datetime.UTC)
    fraction = call.arrival_ns % 10**9 // 100
    return f"{stamp:%Y-%m-%d %H:%M:%S}.{fraction:07},{call.prompt_tokens},{call.output_tokens}"
