"""Mooncake traces: lengths and chained block ids, times in milliseconds from the start.

Source: the FAST'25 release of kvcache-ai/Mooncake (512-token blocks, the last one may be partial). Other tools
write the same keys with other block sizes, in seconds, with sessions and delays, or with text in place of ids
(AIPerf, Dynamo, GuideLLM); what the rows do not say is inferred from them and said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from advisor.logs.formats.base import Basis, Format, as_count, as_label, mostly
from advisor.logs.formats.published import not_told
from advisor.logs.options import ReadOptions
from advisor.logs.prompts import as_prompt
from advisor.logs.record import Prompt, Record, Row, UnusableError
from advisor.logs.times import Clock, as_number, find_zone
from advisor.logs.trace import Unknown

_SIZES = (512, 16, 32, 64, 128, 256, 1024, 2048, 8, 4, 2, 1, 4096)  # published first, then others in use
_PUBLISHED_FITS = 0.9  # of the rows: the rest may be damaged
_INTEGERS = frozenset((int,))  # a truth value is none
_EPOCH_FROM = 3e8  # larger numbers are times since 1970, which tell their unit
# Mean gaps between requests, in the unit of the log, up to which it must be the second: as milliseconds they
# would mean over 1000 requests/s, or over 100 in numbers with a fraction, which tools write for seconds (ours).
_WHOLE_SECONDS_GAP = 1.0
_FRACTION_SECONDS_GAP = 10.0


class Mooncake(Format):
    """`timestamp`, `input_length`, `output_length`, `hash_ids`; also `session_id`, `delay`, `text_input`."""

    name: ClassVar[str] = "mooncake"
    ordered: ClassVar[bool] = True  # a delay counts from the turn before
    fields: ClassVar[tuple[str, ...]] = ("timestamp", "input_length", "output_length", "hash_ids")
    cannot_tell: ClassVar[tuple[Unknown, ...]] = not_told(
        "Mooncake's traces",
        "sharing.cached_share", "latency.ttft_s", "latency.e2e_s", "log.models", "clients",
    )  # fmt: skip

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        stamps = [_stamp(row) for row in sample if _stamp(row) is not None]
        guess = infer_unit(stamps)
        self._guessed = guess == "s" and options.time_unit is None
        zone = find_zone(options.tz)
        self._clock = Clock.of_sample(stamps, options.time_unit or guess, zone) if stamps else None
        self._delay_ms = 1e3 if (options.time_unit or guess) == "s" else 1.0  # of one unit of `delay`
        self._size, self._rounding = infer_blocks(sample)
        self._has_ids = any(row.get("hash_ids") for row in sample)
        self._latest: dict[str, int] = {}  # session -> arrival of its last turn, nanoseconds

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, _is_mooncake)

    def parse(self, row: Row) -> Iterable[Record]:
        session = as_label(row.get("session_id"))
        arrival, think = self._arrival(row, session)
        prompt = as_count(row.get("input_length", row.get("input_tokens")), "prompt length")
        record = Record(
            arrival_ns=arrival,
            prompt_tokens=prompt,
            output_tokens=as_count(row.get("output_length", row.get("output_tokens")), "output length"),
            session=session,
        )
        if self._has_ids:
            record.hash_ids = self._ids(row.get("hash_ids"), prompt)
        else:
            record.prompt = _text(row)
        if prompt < 0 and record.prompt is None:
            raise UnusableError("no prompt length")
        if think is not None:
            record.think_s = think
        self.counts["sessions"] += session is not None
        self.counts["texts"] += record.prompt is not None
        return (record,)

    def basis(self) -> Basis:
        unknown: list[Unknown] = []
        if self._clock is None:
            unknown += not_told("Rows of this log", "arrivals")
        if not self.counts["sessions"]:
            unknown += not_told("Rows of this log", "sessions")
        if not self._has_ids and not self.counts["texts"]:
            unknown += not_told("Rows of this log", "sharing")
        elif self._has_ids and self._size is None:
            why = "the block size cannot be inferred: hash_ids do not fit input_length for any usual size"
            unknown.append(Unknown("sharing", why, "write one id per 16, 64 or 512 tokens of input_length"))
        ids = f"hash_ids of {self._size} tokens" if self._has_ids else "text of the prompts"
        return Basis(
            clock=self._clock,
            arrival="none" if self._clock is None else f"timestamp, {self._clock.words}",
            prefix=ids,
            block_size=self._size if self._has_ids else None,
            rounding=self._rounding,
            notes=tuple(self._notes()),
            unknown=tuple(unknown),
        )

    def _notes(self) -> Iterable[str]:
        if self._guessed:
            yield "times are read as seconds: as milliseconds they would mean over 100 requests/s"
        if self._has_ids and self._size is not None and (self._size, self._rounding) != (_SIZES[0], "ceil"):
            yield f"blocks of {self._size} tokens, inferred from input_length and the number of hash_ids"
        if unfit := self.counts["unfit"]:
            yield f"rows with more hash_ids than their prompt has blocks, their content left unknown: {unfit}"
        if delayed := self.counts["delayed"]:
            yield (
                f"turns with only a delay: {delayed}; placed that long after the turn before arrived, "
                "because its service time is unknown"
            )

    def _ids(self, ids: object, prompt_tokens: int) -> Sequence[int] | None:
        """The ids of a row; None, and counted, where they cannot be those of a prompt of this length."""
        if self._size is None:
            return None
        checked = check_ids(ids)
        if checked is not None and 0 <= prompt_tokens <= (len(checked) - 1) * self._size:
            self.counts["unfit"] += 1
            return None
        return checked

    def _arrival(self, row: Row, session: str | None) -> tuple[int | None, float | None]:
        stamp, think = _stamp(row), self._delay(row)
        if self._clock is None:
            return None, think
        if stamp is not None:
            arrival = self._clock.ns(stamp)
        elif session is not None and think is not None and session in self._latest:
            arrival = self._latest[session] + round(think * 1e9)
            self.counts["delayed"] += 1
        else:
            raise UnusableError("no arrival time")
        if session is not None:
            self._latest[session] = arrival
        return arrival, think

    def _delay(self, row: Row) -> float | None:
        """Seconds between the end of the turn before and this one, where the row says."""
        delay, unit_ms = as_number(row.get("delay")), self._delay_ms
        if delay is None:
            delay, unit_ms = as_number(row.get("delay_ms")), 1.0
        return None if delay is None or delay < 0 else delay * unit_ms / 1e3


def infer_unit(stamps: Sequence[object]) -> str | None:
    """Milliseconds, as published, unless requests would then come too fast; None for times since 1970."""
    numbers = [number for stamp in stamps if (number := as_number(stamp)) is not None]
    if not numbers or max(numbers) >= _EPOCH_FROM:
        return None if numbers else "ms"
    gap = (max(numbers) - min(numbers)) / max(1, len(numbers) - 1)
    whole = all(number == int(number) for number in numbers)
    return "s" if 0 < gap <= (_WHOLE_SECONDS_GAP if whole else _FRACTION_SECONDS_GAP) else "ms"


def infer_blocks(sample: Sequence[Row]) -> tuple[int | None, str]:
    """Tokens per block, and whether a partial last block has an id, from lengths and numbers of ids.

    The size is None where no usual one fits half of the rows.
    """
    pairs = []
    for row in sample:
        length, ids = row.get("input_length", row.get("input_tokens")), row.get("hash_ids")
        if isinstance(length, int) and isinstance(ids, list) and ids:
            pairs.append((length, len(ids)))

    def fit(size: int, rounding: str) -> int:
        extra = size - 1 if rounding == "ceil" else 0
        return sum((length + extra) // size == count for length, count in pairs)

    if fit(_SIZES[0], "ceil") >= _PUBLISHED_FITS * len(pairs):
        return _SIZES[0], "ceil"
    choices = [(size, rounding) for rounding in ("ceil", "floor") for size in _SIZES]
    best = max(choices, key=lambda choice: fit(*choice))
    return best if fit(*best) * 2 >= len(pairs) else (None, "ceil")


def check_ids(ids: object) -> Sequence[int] | None:
    """Block ids of a row as signed 64-bit integers. Raises UnusableError."""
    if ids is None:
        return None
    if not isinstance(ids, list) or not _INTEGERS.issuperset(map(type, ids)):
        raise UnusableError("hash_ids are not integers")
    if ids and not (min(ids) >= -(2**63) and max(ids) < 2**63):
        if max(ids) >= 2**64 or min(ids) < 0:
            raise UnusableError("hash_ids over 64 bits")
        return [number - 2**64 if number >= 2**63 else number for number in ids]
    return ids


def _is_mooncake(row: Row) -> bool:
    """Lengths with ids, or what only the extended form has. Qwen-Bailian has the same keys and `chat_id`."""
    if "chat_id" in row:
        return False
    length = "input_length" in row or "input_tokens" in row
    delay = "delay" in row or "delay_ms" in row
    text = "text_input" in row or "messages" in row
    return (
        (length and "hash_ids" in row) or ("input_length" in row and delay) or (text and "output_length" in row)
    )


def _stamp(row: Row) -> Any:
    return row.get("timestamp", row.get("created_time"))


def _text(row: Row) -> Prompt | None:
    text = row.get("text_input")
    if isinstance(text, str):
        return Prompt(text=text)
    prompt = as_prompt(row["messages"]) if isinstance(row.get("messages"), list) else None
    tools = row.get("tools")
    if prompt is not None and prompt.messages is not None and isinstance(tools, list) and tools:
        prompt.tools = [tool for tool in tools if isinstance(tool, dict)]
    return prompt
