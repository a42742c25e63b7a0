"""From CSV to rows: its header, quoted fields that span lines, and the reasons for which a line is no row.

Which lines make up a row is found in order, by counting quotes; rows come in pieces whose fields any process
can split. A quote that never closes costs its own line only. Memory is bounded by `LINE_BYTES` a row.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from advisor.logs.pieces import LINE_BYTES, PIECE_BYTES, Piece, cut_stream, too_long
from advisor.logs.record import Line, Row, UnusableError

_QUOTED_LINES = 1000  # of one CSV row
_COLUMN = re.compile(r"[^\W\d][\w .\-/()%:#]{0,79}")  # what a CSV header has between its delimiters


def has_header(lines: list[bytes]) -> bool:
    """Whether the first line names columns and a line after it fills them."""
    first, *rest = (line.decode("utf-8", "replace") for line in lines)
    delimiter = max(",\t;|", key=first.count)
    names = _cells(first, delimiter)
    if len(names) < 2 or not all(_COLUMN.fullmatch(name.strip()) for name in names):
        return False
    return not rest or any(line.count(delimiter) >= len(names) - 1 or '"' in line for line in rest[:3])


class CsvRecord(NamedTuple):
    """A row whose fields are not split yet, or why a line is none."""

    number: int  # of its first line
    content: str | UnusableError
    lines: int


@dataclass(frozen=True, slots=True, repr=False)
class CsvPiece:
    """Some megabytes of whole records, which any process can split into fields."""

    header: Sequence[str]
    delimiter: str
    records: Sequence[CsvRecord]
    size: int  # characters

    def rows(self) -> Iterator[Line]:
        """The rows, numbered as in the file. What cannot be read is a Line that says why."""
        csv.field_size_limit(LINE_BYTES)  # the module's 128 KiB is less than a long prompt
        for record in self.records:
            yield Line(record.number, self._row(record))

    def _row(self, record: CsvRecord) -> Row | UnusableError:
        text = record.content
        if isinstance(text, UnusableError):
            return text
        # Told without the cells: a long line of nothing but delimiters would be millions of them.
        crowded = '"' not in text and text.count(self.delimiter) >= len(self.header)
        cells = [] if crowded else _cells(text, self.delimiter)
        if len(cells) != len(self.header):
            return UnusableError("wrong number of CSV fields", record.lines)
        if cells == self.header:
            return UnusableError("repeated header")
        return dict(zip(self.header, cells, strict=True))


def csv_pieces(chunks: Iterator[bytes]) -> Iterator[CsvPiece | Piece]:
    """The pieces of a file that has a header, from its bytes; a damaged end is a Piece that says why."""
    texts = _lines(chunks)
    records: list[CsvRecord] = []
    header: list[str] = []
    delimiter, size = ",", 0
    damage = None
    try:
        first = next((text for text in texts if isinstance(text, str) and text.strip()), "")
        delimiter = max(",\t;|", key=first.count)
        header = _cells(first, delimiter)
        for record in _csv_records(texts):
            records.append(record)
            size += len(record.content) if isinstance(record.content, str) else 0
            if size >= PIECE_BYTES:
                yield CsvPiece(header, delimiter, records, size)
                records, size = [], 0
    except UnusableError as error:
        damage = error
    if records:
        yield CsvPiece(header, delimiter, records, size)
    if damage is not None:
        yield Piece(0, error=damage)


def _csv_records(texts: Iterator[str | UnusableError]) -> Iterator[CsvRecord]:
    """Lines that belong together because a quoted field spans them.

    A quote that does not close within `_QUOTED_LINES` costs its own line only.
    """
    waiting: deque[str | UnusableError] = deque()
    number = 1
    while (line := waiting.popleft() if waiting else next(texts, None)) is not None:
        number += 1
        if isinstance(line, UnusableError):
            yield CsvRecord(number, line, 1)
            continue
        if not line.strip():
            continue
        record = [line]
        closed = line.count('"') % 2 == 0
        size = len(line)
        while not closed and len(record) < _QUOTED_LINES and size <= LINE_BYTES:
            more = waiting.popleft() if waiting else next(texts, None)
            if not isinstance(more, str):
                if more is not None:
                    waiting.appendleft(more)
                break
            record.append(more)
            size += len(more)
            closed = more.count('"') % 2 == 1
        if closed:
            yield CsvRecord(number, "\n".join(record), len(record))
            number += len(record) - 1
        else:
            waiting.extendleft(reversed(record[1:]))
            yield CsvRecord(number, UnusableError("quote that never closes"), 1)


def _lines(chunks: Iterator[bytes]) -> Iterator[str | UnusableError]:
    """Lines as text, without their ends; the reason for one that is too long. Raises UnusableError."""
    for piece in cut_stream(chunks):
        *lines, rest = piece.load().split(b"\n")
        for raw in lines if not rest else [*lines, rest]:
            yield raw.decode("utf-8", "replace").rstrip("\r") if len(raw) <= LINE_BYTES else too_long()


def _cells(text: str, delimiter: str) -> list[str]:
    if '"' not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return []
