"""Times as logs write them, turned into integer nanoseconds.

Owns the unit table: epoch numbers tell their unit by magnitude; relative ones need evidence or a flag, so what
was assumed is always said.
"""

from __future__ import annotations

import datetime
import re
import statistics
import zoneinfo
from collections.abc import Iterable
from dataclasses import dataclass

from advisor.logs.options import TIME_UNITS
from advisor.logs.record import UnusableError
from advisor.units import parse_seconds
from engine.errors import InputError

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_FROM = 3e8  # seconds; 1979: smaller numbers are no wall-clock times
_MAGNITUDES = ((3e11, "s"), (3e14, "ms"), (3e17, "us"))  # epoch numbers below it; nanoseconds from there
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_BEYOND_MICROSECONDS = re.compile(r"[.,]\d{6}(\d{1,3})")
_BEYOND = 2.0**80  # larger numbers are damage
_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


@dataclass(frozen=True, slots=True)
class Clock:
    """How the times of one log are read.

    `unit` is that of numbers, None where each number's magnitude tells. `epoch` says whether times count from
    1970 or from the log's own zero; `naive` whether texts were seen that name no zone. `words` describe it.
    """

    unit: str | None
    epoch: bool
    zone: datetime.tzinfo
    naive: bool = False
    words: str = "wall-clock time"

    @classmethod
    def of_sample(cls, values: Iterable[object], unit: str | None, zone: datetime.tzinfo) -> Clock:
        """Guess from the first values of a log; `unit` (a flag, or what a field's name says) wins."""
        given = [value for value in values if value not in (None, "")]
        numbers = [number for value in given if (number := as_number(value)) is not None]
        if len(numbers) * 2 < len(given):
            texts = [value for value in given if isinstance(value, str) and as_number(value) is None]
            return cls(unit, True, zone, naive=any(map(_names_no_zone, texts)))
        middle = statistics.median(numbers) if numbers else 0.0
        if unit is None and middle < _EPOCH_FROM:
            thousands = any(numbers) and all(number % 1000 == 0 for number in numbers)
            unit = "ms" if thousands else "s"
        scale = 1.0 if unit is None else TIME_UNITS[unit] / 1e9
        epoch = middle * scale >= _EPOCH_FROM
        since = "since 1970" if epoch else "from the start"
        return cls(unit, epoch, zone, words=f"{_WORDS[unit or _unit_by_magnitude(middle)]} {since}")

    def ns(self, value: object) -> int:
        """Nanoseconds since 1970 or since the log's zero. Raises UnusableError."""
        number = as_number(value)
        if number is None:
            result = self._text_ns(value)
        else:
            each = TIME_UNITS[self.unit or _unit_by_magnitude(number)]
            result = number * each if isinstance(number, int) else round(number * each)
        if (result >= _EPOCH_FROM * 1e9) != self.epoch or not 0 <= result < 2**63:
            raise UnusableError("arrival time out of range")
        return result

    def _text_ns(self, value: object) -> int:
        if value is None or value == "":
            raise UnusableError("no arrival time")
        if not isinstance(value, str):
            raise UnusableError("arrival time not understood")
        try:
            stamp = _from_iso(value)
            if stamp.tzinfo is None:
                stamp = stamp.replace(tzinfo=self.zone)
            past = stamp - _EPOCH
        except (ValueError, OverflowError):
            raise UnusableError("arrival time not understood") from None
        finer = _BEYOND_MICROSECONDS.search(value) if len(value) > 26 else None
        below = int(finer[1].ljust(3, "0")) if finer else 0
        return ((past.days * 86_400 + past.seconds) * 10**6 + past.microseconds) * 1000 + below


def as_number(value: object) -> int | float | None:
    """A finite number, also out of a text of digits; None for anything else."""
    if isinstance(value, str):
        if value.isdecimal() and len(value) < 20:
            return int(value)
        if len(value) > 40 or _NUMBER.fullmatch(value) is None:
            return None
        value = int(value) if value.strip().lstrip("+-").isdecimal() else float(value)
    if type(value) is not int and type(value) is not float:
        return None
    return value if -_BEYOND < value < _BEYOND else None  # NaN compares false


def find_zone(name: str) -> datetime.tzinfo:
    """The zone of an IANA name. Raises InputError."""
    if name.upper() == "UTC":
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InputError(f"--tz {name!r} is not known", hint="use a name like Europe/Berlin") from None


def parse_bound(text: str, clock: Clock, flag: str) -> int:
    """`--since` or `--until` in the log's nanoseconds: ISO or epoch, or an offset where times are relative."""
    if not clock.epoch:
        return round(parse_seconds(text, flag) * 1e9)
    try:
        return Clock(None, True, clock.zone).ns(text)
    except UnusableError:
        raise InputError(f"{flag} {text!r} is not a time", hint=f"{flag} 2026-09-14T08:00") from None


def describe_span(seconds: float) -> str:
    """A span in the unit a person would use: `59 minutes`."""
    for size, word in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{seconds:.0f} seconds"


def _unit_by_magnitude(number: float) -> str:
    for limit, unit in _MAGNITUDES:
        if number < limit:
            return unit
    return "ns"


def _from_iso(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text.strip().replace(" UTC", "+00:00"))


def _names_no_zone(text: str) -> bool:
    try:
        return _from_iso(text).tzinfo is None
    except ValueError:
        return False
