"""Azure's public LLM inference traces of 2023 and 2024: times and lengths.

Source: Azure/AzurePublicDataset. 2023 writes naive times with seven fractional digits, 2024 an offset and, on
whole seconds, no fraction; one reader takes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, as_count, mostly
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row
from advisor.logs.times import Clock, find_zone
from advisor.logs.trace import Unknown


class Azure:
    """`TIMESTAMP,ContextTokens,GeneratedTokens`."""

    name: ClassVar[str] = "azure"
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown(
            "sharing",
            "Azure's traces hold no prompts and no block ids",
            "log prompts, or block hashes, on your own service: docs/collecting-logs.md",
        ),
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        stamps = [row.get("TIMESTAMP") for row in sample]
        self._clock = Clock.of_sample(stamps, options.time_unit, find_zone(options.tz))

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: row.keys() == {"TIMESTAMP", "ContextTokens", "GeneratedTokens"})

    def parse(self, row: Row) -> Iterable[Record]:
        return (
            Record(
                arrival_ns=self._clock.ns(row.get("TIMESTAMP")),
                prompt_tokens=as_count(row.get("ContextTokens"), "prompt length"),
                output_tokens=as_count(row.get("GeneratedTokens"), "output length"),
            ),
        )

    def basis(self) -> Basis:
        return Basis(clock=self._clock, arrival=f"TIMESTAMP, {self._clock.words}")
