"""What a log format is: how its rows are recognised, turned into records, and what it cannot tell.

A format is one class in one file, listed in `formats/__init__.py`. It is constructed with the first rows of the
log, so that it can settle units before it parses. A row is a JSON object, a CSV row, a whole JSON document
where the format knows it as one, or, in text logs, `{LINE: text}`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number
from advisor.logs.trace import Totals, Unknown

Parsed = Record | UnusableError  # an item of a row: a request, or why one is left out
MOST_TOKENS = 10**9  # larger counts are damage
_NAMES = (str, int, float)  # types that a name may have


@dataclass(frozen=True, slots=True)
class Basis:
    """What a format assumed, known once the log is read."""

    clock: Clock | None  # None where the log has no times
    arrival: str
    tokens: str = "logged counts"
    prefix: str | None = None
    block_size: int | None = None  # of logged block ids; None for text and for logs without sharing
    rounding: str = "ceil"
    scope: str = "global"
    notes: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()  # what this log, other than its format, does not tell
    totals: Totals | None = None


class Format(Protocol):
    """Reader of one log in one format.

    A log may be parsed by several readers, each a part of it: what a reader counts about the rows it saw goes
    into `counts`, which are added up before `basis` is asked. A format that must see all rows in their order,
    because rows depend on rows before, says `ordered`.
    """

    name: ClassVar[str]
    fields: ClassVar[tuple[str, ...]]  # names that its rows are known by, for the hint about an unknown log
    cannot_tell: ClassVar[tuple[Unknown, ...]] = ()  # by the nature of the format
    ordered: ClassVar[bool] = False
    counts: Counter[str]

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None: ...

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        """Whether these rows, the first of a file, are in this format."""
        ...

    def parse(self, row: Row) -> Iterable[Parsed]:
        """The items of a row: one as a rule; several, or none, where rows and requests differ.

        Raises UnusableError where the row as a whole is left out.
        """
        ...

    def basis(self) -> Basis:
        """What was assumed."""
        ...


def mostly(sample: Sequence[Row], test: Callable[[Row], bool]) -> bool:
    """Whether at least half of the rows pass, so that damaged rows do not hide a format."""
    return bool(sample) and sum(map(test, sample)) * 2 >= len(sample)


def as_count(value: object, what: str) -> int:
    """A number of tokens; -1 where there is none. Raises UnusableError."""
    if type(value) is int and 0 <= value <= MOST_TOKENS:
        return value
    if value is None or value == "":
        return -1
    number = as_number(value)
    if number is None or number != int(number):
        raise UnusableError(f"{what} is not a whole number")
    if number < 0:
        raise UnusableError(f"negative {what}")
    if number > MOST_TOKENS:
        raise UnusableError(f"{what} out of range")
    return int(number)


def as_seconds(value: object, scale: float = 1.0) -> float:
    """A duration in seconds, given how many one unit of it is; NaN where there is none."""
    number = as_number(value)
    return math.nan if number is None or number < 0 else number * scale


def as_row(value: object) -> Row:
    """An object inside a row; empty where there is none."""
    return value if isinstance(value, dict) else {}


def as_token_ids(value: object) -> list[int] | None:
    """The token ids of a prompt or an answer; None where they are none, or not all of them are there."""
    if not isinstance(value, list) or not value or set(map(type, value)) != {int}:
        return None
    return value if min(value) >= 0 and max(value) < 2**32 else None


def as_label(value: object) -> str | None:
    """A name out of a field; None where the field holds none."""
    if value is None or value == "" or not isinstance(value, _NAMES):
        return None
    text = str(value)[:200]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
