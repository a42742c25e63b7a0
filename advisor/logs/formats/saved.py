"""Our own `trace.jsonl` (see `advisor.logs.save`): Mooncake's keys, with the block size on every row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, as_count, as_label, mostly
from advisor.logs.formats.mooncake import check_ids
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number, find_zone
from advisor.logs.trace import Unknown


class SavedTrace:
    """A Trace as `save` writes it. All rows have the block size of the first."""

    name: ClassVar[str] = "advise-trace"
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown("sharing", "the log this trace was made from gave no prefixes", "analyze a log that has them"),
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        timed = any(row.get("timestamp") is not None for row in sample)
        self._clock = Clock("ms", False, find_zone(options.tz)) if timed else None
        first = next((row for row in sample if type(size := row.get("block_size")) is int and size > 0), {})
        self._size: int | None = first.get("block_size")
        self._rounding = "floor" if first.get("rounding") == "floor" else "ceil"
        self._scope = as_label(first.get("scope")) or "global"

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        keys = {"timestamp", "input_length", "block_size", "scope"}
        return mostly(sample, lambda row: keys <= row.keys())

    def parse(self, row: Row) -> Iterable[Record]:
        if row.get("block_size") != self._size:
            raise UnusableError("another block size than the first row's")
        prompt = as_count(row.get("input_length"), "prompt length")
        return (
            Record(
                arrival_ns=None if self._clock is None else self._clock.ns(row.get("timestamp")),
                prompt_tokens=prompt,
                output_tokens=as_count(row.get("output_length"), "output length"),
                cached_tokens=as_count(row.get("cached_tokens"), "cached tokens"),
                novel_tokens=as_count(row.get("novel_tokens"), "novel tokens"),
                ttft_s=_seconds(row.get("ttft_s")),
                e2e_s=_seconds(row.get("e2e_s")),
                think_s=_seconds(row.get("think_s")),
                hash_ids=None if self._size is None else check_ids(row.get("hash_ids"), prompt, self._size),
                model=as_label(row.get("model")),
                route=as_label(row.get("route")),
                client=as_label(row.get("client")),
                session=as_label(row.get("session")),
                status=as_label(row.get("status")),
            ),
        )

    def basis(self) -> Basis:
        return Basis(
            clock=self._clock,
            arrival="none" if self._clock is None else "timestamp, milliseconds from the start",
            tokens="as in the log this trace was made from",
            prefix=None if self._size is None else f"block ids of {self._size} tokens",
            block_size=self._size,
            rounding=self._rounding,
            scope=self._scope,
        )


def _seconds(value: object) -> float:
    number = as_number(value)
    return math.nan if number is None else float(number)
