"""BurstGPT's traces 1 to 3: times, lengths and models of a campus service; 3 has sessions and durations too.

Source: HPMLL/BurstGPT. Columns go by name, since 3 inserts two. Times are seconds from midnight of a first day
that is not named. Rows without response tokens are failures. Only conversations have a session id.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, Format, as_count, as_label, mostly
from advisor.logs.formats.published import not_told
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number, find_zone
from advisor.logs.trace import Unknown

_KEYS = frozenset(("Timestamp", "Request tokens", "Response tokens"))


class BurstGPT(Format):
    """`Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,Total tokens,Log Type`."""

    name: ClassVar[str] = "burstgpt"
    fields: ClassVar[tuple[str, ...]] = ("Timestamp", "Model", "Request tokens", "Response tokens", "Log Type")
    cannot_tell: ClassVar[tuple[Unknown, ...]] = not_told(
        "BurstGPT's traces", "sharing", "latency.ttft_s", "clients"
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        stamps = [row.get("Timestamp") for row in sample]
        self._clock = Clock.of_sample(stamps, options.time_unit or "s", find_zone(options.tz))

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: row.keys() >= _KEYS)

    def parse(self, row: Row) -> Iterable[Record]:
        prompt = as_count(row.get("Request tokens"), "prompt length")
        output = as_count(row.get("Response tokens"), "output length")
        if output == 0 or prompt == 0:
            raise UnusableError("failed request")
        if prompt < 0:
            raise UnusableError("no prompt length")
        elapsed = as_number(row.get("Elapsed time"))
        record = Record(
            arrival_ns=self._clock.ns(row.get("Timestamp")),
            prompt_tokens=prompt,
            output_tokens=output,
            e2e_s=math.nan if elapsed is None or elapsed < 0 else float(elapsed),
            model=as_label(row.get("Model")),
            route=as_label(row.get("Log Type")),
            session=as_label(row.get("Session ID")),
        )
        self.counts["durations"] += not math.isnan(record.e2e_s)
        self.counts["sessions"] += record.session is not None
        return (record,)

    def basis(self) -> Basis:
        absent = [
            path
            for path, name in (("latency.e2e_s", "durations"), ("sessions", "sessions"))
            if not self.counts[name]
        ]
        return Basis(
            clock=self._clock,
            arrival="Timestamp, " + self._clock.words.replace("the start", "midnight of an unknown day"),
            notes=(
                "the route is the log type; Elapsed time, in BurstGPT 3, lasts until the end of the answer",
            ),
            unknown=not_told("BurstGPT's traces 1 and 2", *absent),
        )
