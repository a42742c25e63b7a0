"""Azure's public LLM inference traces of 2023 and 2024: times and lengths.

Source: Azure/AzurePublicDataset. 2023 writes naive times with seven fractional digits, 2024 an offset and, on
whole seconds, no fraction; one reader takes both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, Format, as_count, mostly
from advisor.logs.formats.published import not_told
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row
from advisor.logs.times import Clock, find_zone
from advisor.logs.trace import Unknown


class Azure(Format):
    """`TIMESTAMP,ContextTokens,GeneratedTokens`."""

    name: ClassVar[str] = "azure"
    fields: ClassVar[tuple[str, ...]] = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    cannot_tell: ClassVar[tuple[Unknown, ...]] = not_told(
        "Azure's traces", "sharing", "latency.ttft_s", "latency.e2e_s", "log.models", "clients", "sessions"
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
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
