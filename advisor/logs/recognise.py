"""Recognising a file by its first rows: which format it is in, and what its rows are.

A document is one row to the formats that know it, else the rows of the list that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from advisor.logs.formats import choose_format
from advisor.logs.formats.base import Format
from advisor.logs.options import ReadOptions
from advisor.logs.record import Line, Row, UnusableError

SAMPLE_ROWS = 200
SAMPLE_CHARACTERS = 16_000_000
_LISTS = (
    "data", "requests", "records", "rows", "items", "logs", "traces", "results", "entries", "observations",
)  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class Recognised:
    """The first rows of a file, those of them that can be read, and the format that knows them, if any."""

    head: Sequence[Line]
    sample: Sequence[Row]
    kind: type[Format] | None


def first_rows(rows: Iterator[Line]) -> list[Line]:
    """The first `SAMPLE_ROWS` rows, fewer where they are large."""
    head = []
    characters = 0
    for line in rows:
        head.append(line)
        if not isinstance(line.content, UnusableError):
            characters += sum(len(value) for value in line.content.values() if isinstance(value, str))
        if len(head) == SAMPLE_ROWS or characters >= SAMPLE_CHARACTERS:
            break
    return head


def recognise(head: Sequence[Line], options: ReadOptions, *, unfold: bool = True) -> Recognised:
    """The format of a file by its first rows; where they are one, by what that holds too if it may `unfold`."""
    found = _among(head, options)
    if unfold and found.kind is None and len(head) == 1 and len(found.sample) == 1:
        items = _list_within(found.sample[0])
        if items is not None:
            return _among(
                [
                    Line(number, item if isinstance(item, dict) else UnusableError("not a JSON object"))
                    for number, item in enumerate(items, 1)
                ],
                options,
            )
    return found


def _among(head: Sequence[Line], options: ReadOptions) -> Recognised:
    sample = [line.content for line in head if not isinstance(line.content, UnusableError)]
    return Recognised(head, sample, choose_format(sample, options) if sample else None)


def _list_within(document: Row) -> list[Any] | None:
    """The list of rows that a document holds under one of the usual names; None where it holds none."""
    return next((value for name in _LISTS if isinstance(value := document.get(name), list)), None)
