"""Our own `trace.jsonl` (see `advisor.logs.save`): Mooncake's keys, with the block size on every row.

What the log did not say is null or has no key: a length, a time, the blocks of a prompt that it did not show. A
first row may hold `totals`, what the log said of requests only in sum. The recorder (`advisor.logs.recorder`)
writes times since 1970, a `scope` for each of its runs, and in `token_basis` where a prompt length is from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from advisor.logs.formats.base import Basis, Format, as_count, as_label, mostly
from advisor.logs.formats.mooncake import check_ids
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number, find_zone
from advisor.logs.trace import Totals, Unknown

_LENGTHS_FROM = {  # how `token_basis` starts -> what it means
    "usage": "as the server counted them",
    "tokens": "counted by the recorder's tokenizer",
    "bytes": "estimated from bytes",
}
_NO_PREFIXES = Unknown(
    "sharing", "the log this trace was made from gave no prefixes", "analyze a log that has them"
)


class SavedTrace(Format):
    """A Trace as `save` writes it. All rows have the block size of the first."""

    name: ClassVar[str] = "advise-trace"
    fields: ClassVar[tuple[str, ...]] = (
        "timestamp",
        "input_length",
        "output_length",
        "hash_ids",
        "block_size",
        "scope",
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        stamps = [stamp for row in sample if (stamp := row.get("timestamp")) is not None]
        self._clock = Clock.of_sample(stamps, "ms", find_zone(options.tz)) if stamps else None
        first = next((row for row in sample if type(size := row.get("block_size")) is int and size > 0), {})
        self._size: int | None = first.get("block_size")
        self._rounding = "floor" if first.get("rounding") == "floor" else "ceil"
        self._scope = as_label(first.get("scope")) or "global"
        self._totals = next((totals for row in sample if (totals := _totals(row.get("totals")))), None)

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        keys = {"timestamp", "input_length", "block_size", "scope"}
        return mostly(sample, lambda row: keys <= row.keys() or _totals(row.get("totals")) is not None)

    def parse(self, row: Row) -> Iterable[Record]:
        if _totals(row.get("totals")) is not None:
            return ()
        if row.get("block_size") != self._size:
            raise UnusableError("another block size than the first row's")
        self._count_basis(row.get("token_basis"))
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
                hash_ids=self._ids(row.get("hash_ids"), prompt),
                scope=as_label(row.get("scope")),
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
            arrival="none" if self._clock is None else f"timestamp, {self._clock.words}",
            tokens="as in the log this trace was made from",
            prefix=None if self._size is None else f"block ids of {self._size} tokens",
            block_size=self._size,
            rounding=self._rounding,
            scope=self._scope,
            unknown=() if self._size is not None else (_NO_PREFIXES,),
            totals=self._totals,
            notes=tuple(
                f"prompt lengths {words}: {count}"
                for kind, words in _LENGTHS_FROM.items()
                if (count := self.counts[kind])
            ),
        )

    def _count_basis(self, basis: object) -> None:
        if isinstance(basis, str):
            self.counts[next((kind for kind in _LENGTHS_FROM if basis.startswith(kind)), "other")] += 1

    def _ids(self, ids: object, prompt_tokens: int) -> Sequence[int] | None:
        if self._size is None:
            return None
        checked = check_ids(ids)
        if checked is not None and 0 <= prompt_tokens <= (len(checked) - 1) * self._size:
            raise UnusableError("more hash_ids than the prompt has blocks")
        return checked


def _totals(value: object) -> Totals | None:
    """Totals as `save` writes them; None for anything else."""
    if not isinstance(value, Mapping) or not isinstance(value.get("source"), str):
        return None
    known: dict[str, Any] = {field.name: value.get(field.name) for field in fields(Totals)}
    for name in ("source", "model"):
        known[name] = as_label(known[name])
    for name in ("requests", "prompt_tokens", "output_tokens", "cached_tokens"):
        known[name] = int(known[name]) if as_number(known[name]) is not None else None
    for name in ("cached_share", "span_s"):
        known[name] = as_number(known[name])
    return Totals(**known)


def _seconds(value: object) -> float:
    number = as_number(value)
    return math.nan if number is None else float(number)
