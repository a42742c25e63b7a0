"""Mooncake traces: lengths and chained block ids, times in milliseconds from the start.

Source: the FAST'25 release of kvcache-ai/Mooncake (512-token blocks, the last one may be partial). Other tools
write the same keys with other block sizes, so the size is inferred from the rows and said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, as_count, as_label, mostly
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number, find_zone
from advisor.logs.trace import Unknown

_SIZES = (512, 16, 32, 64, 128, 256, 1024, 2048)  # the published size first, then others in use
_PUBLISHED_FITS = 0.9  # of the rows: the rest may be damaged


class Mooncake:
    """`timestamp`, `input_length`, `output_length`, `hash_ids`; also `session_id` and `delay`."""

    name: ClassVar[str] = "mooncake"
    cannot_tell: ClassVar[tuple[Unknown, ...]] = ()

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        unit = options.time_unit or "ms"
        self._clock = Clock.of_sample([row.get("timestamp") for row in sample], unit, find_zone(options.tz))
        self._size, self._rounding = infer_blocks(sample)
        self._latest: dict[str, int] = {}  # session -> arrival of its last turn, nanoseconds
        self._delayed = 0

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        # Qwen-Bailian writes the same keys beside `chat_id`, with times in seconds.
        return mostly(sample, lambda row: "input_length" in row and "hash_ids" in row and "chat_id" not in row)

    def parse(self, row: Row) -> Iterable[Record]:
        session = as_label(row.get("session_id"))
        arrival, think = self._arrival(row, session)
        prompt = as_count(row.get("input_length"), "prompt length")
        record = Record(
            arrival_ns=arrival,
            prompt_tokens=prompt,
            output_tokens=as_count(row.get("output_length"), "output length"),
            hash_ids=check_ids(row.get("hash_ids"), prompt, self._size),
            session=session,
        )
        if think is not None:
            record.think_s = think
        return (record,)

    def basis(self) -> Basis:
        notes = []
        if self._size != _SIZES[0] or self._rounding != "ceil":
            notes.append(
                f"blocks of {self._size} tokens, inferred from input_length and the number of hash_ids"
            )
        if self._delayed:
            notes.append(
                f"turns with only a delay: {self._delayed}; placed that long after the turn before arrived, "
                "because its service time is unknown"
            )
        return Basis(
            clock=self._clock,
            arrival=f"timestamp, {self._clock.words}",
            prefix=f"hash_ids of {self._size} tokens",
            block_size=self._size,
            rounding=self._rounding,
            notes=tuple(notes),
        )

    def _arrival(self, row: Row, session: str | None) -> tuple[int, float | None]:
        stamp = row.get("timestamp")
        delay = as_number(row.get("delay", row.get("delay_ms")))
        think = None if delay is None or delay < 0 else delay / 1e3
        if stamp is not None:
            arrival = self._clock.ns(stamp)
        elif session is not None and think is not None and session in self._latest:
            arrival = self._latest[session] + round(think * 1e9)
            self._delayed += 1
        else:
            raise UnusableError("no arrival time")
        if session is not None:
            self._latest[session] = arrival
        return arrival, think


def infer_blocks(sample: Sequence[Row]) -> tuple[int, str]:
    """Tokens per block, and whether a partial last block has an id, from lengths and numbers of ids."""
    pairs = []
    for row in sample:
        length, ids = row.get("input_length"), row.get("hash_ids")
        if isinstance(length, int) and isinstance(ids, list):
            pairs.append((length, len(ids)))

    def fit(size: int, extra: int) -> int:
        return sum((length + extra) // size == count for length, count in pairs)

    if fit(_SIZES[0], _SIZES[0] - 1) >= _PUBLISHED_FITS * len(pairs):
        return _SIZES[0], "ceil"
    choices = [(size, rounding) for rounding in ("ceil", "floor") for size in _SIZES]
    return max(choices, key=lambda choice: fit(choice[0], choice[0] - 1 if choice[1] == "ceil" else 0))


def check_ids(ids: object, prompt_tokens: int, size: int) -> Sequence[int] | None:
    """Block ids of a row as signed 64-bit integers. Raises UnusableError."""
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(number) is int for number in ids):
        raise UnusableError("hash_ids are not integers")
    if len(ids) > -(-prompt_tokens // size):
        raise UnusableError("more hash_ids than the prompt has blocks")
    if ids and not (min(ids) >= -(2**63) and max(ids) < 2**63):
        if max(ids) >= 2**64 or min(ids) < 0:
            raise UnusableError("hash_ids over 64 bits")
        return [number - 2**64 if number >= 2**63 else number for number in ids]
    return ids
