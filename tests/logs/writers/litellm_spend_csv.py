"""LiteLLM's spend logs as `psql` dumps the table: CSV, JSON in texts, times of three digits without a zone."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.traffic import Call
from logs.writers import EVERYTHING, litellm_spend

FORMAT = "litellm-spend"
KEEPS = EVERYTHING
TOLERANCE_S = litellm_spend.TOLERANCE_S
FILE = "spend.csv"


def write(calls: Sequence[Call], path: Path) -> None:
    """The rows of the other writer."""
    rows = litellm_spend.rows(calls)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({name: _cell(name, value) for name, value in row.items()} for row in rows)


def _cell(name: str, value: Any) -> Any:
    if name.endswith("Time"):
        return value.replace("T", " ").removesuffix("000Z")
    return json.dumps(value) if isinstance(value, dict) else value
