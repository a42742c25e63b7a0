"""Journals of replays, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from advisor.validation.journal import Header, Journal
from advisor.validation.record import Record


def write_journal(folder: Path, *parts: tuple[int, Sequence[Record]]) -> Path:
    """`requests.jsonl` in `folder`, of these replays: the seed of each, and its records."""
    path = folder / "requests.jsonl"
    with Journal(path) as journal:
        for seed, records in parts:
            journal.begin(
                Header(
                    url="http://127.0.0.1:1", model="m", traffic_digest="d", window="all", from_s=0.0,
                    length_s=10.0, seed=seed, factor=1.0, turns="open", cache="cold", slo={"ttft_s": 1.0},
                    start_unix_s=0.0,
                )
            )  # fmt: skip
            journal.add_all(records)
    return path
