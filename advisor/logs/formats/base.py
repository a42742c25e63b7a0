"""What a log format is: how its rows are recognised, turned into records, and what it cannot tell.

A format is one class in one file, listed in `formats/__init__.py`. It is constructed with the first rows of the
log, so that it can settle units before it parses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number
from advisor.logs.trace import Unknown

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


class Format(Protocol):
    """Reader of one log in one format."""

    name: ClassVar[str]
    cannot_tell: ClassVar[tuple[Unknown, ...]]  # by the nature of the format

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None: ...

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        """Whether these rows, the first of a file, are in this format."""
        ...

    def parse(self, row: Row) -> Iterable[Record]:
        """The requests of a row: one as a rule; several, or none yet, where rows and requests differ.

        Raises UnusableError.
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


def as_label(value: object) -> str | None:
    """A name out of a field; None where the field holds none."""
    if value is None or value == "" or not isinstance(value, _NAMES):
        return None
    text = str(value)[:200]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
