"""LMCache agent traces: whole prompts and answers as text, epoch microseconds, one file a session.

Source: LMCache/lmcache-agent-trace. Rows inside a file are not in time order. The agent's system prompt and
tool list are not part of `input`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, Format, as_label, mostly
from advisor.logs.formats.published import not_told
from advisor.logs.options import ReadOptions
from advisor.logs.record import Prompt, Record, Row, UnusableError
from advisor.logs.times import Clock, find_zone
from advisor.logs.trace import Unknown

_KEYS = frozenset(("timestamp", "input", "output", "session_id"))  # a row with more is of another format


class LMCache(Format):
    """`timestamp`, `input`, `output`, `session_id`."""

    name: ClassVar[str] = "lmcache"
    fields: ClassVar[tuple[str, ...]] = ("timestamp", "input", "output", "session_id")
    cannot_tell: ClassVar[tuple[Unknown, ...]] = not_told(
        "LMCache's traces",
        "sharing.cached_share", "latency.ttft_s", "latency.e2e_s", "log.models", "clients",
    )  # fmt: skip

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        stamps = [row.get("timestamp") for row in sample]
        self._clock = Clock.of_sample(stamps, options.time_unit, find_zone(options.tz))

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: row.keys() == _KEYS and isinstance(row["input"], str))

    def parse(self, row: Row) -> Iterable[Record]:
        text, answer = row.get("input"), row.get("output")
        if not isinstance(text, str):
            raise UnusableError("no prompt text")
        return (
            Record(
                arrival_ns=self._clock.ns(row.get("timestamp")),
                prompt=Prompt(text=text),
                output_text=answer if isinstance(answer, str) else None,
                session=as_label(row.get("session_id")),
            ),
        )

    def basis(self) -> Basis:
        return Basis(
            clock=self._clock,
            arrival=f"timestamp, {self._clock.words}",
            prefix="text of the prompts",
            notes=("the agent's system prompt and tool list are not part of `input`",),
        )
