"""Parsing: rows become parts of a log, with the account of what was left out.

The one loop that all rows go through, in the process that reads the log or in one that reads pieces of it. Text
is held for one batch and dropped; a bad line is counted, never raised. Formats do the understanding.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from advisor.logs.csv_rows import CsvPiece
from advisor.logs.formats.base import Format
from advisor.logs.options import ReadOptions
from advisor.logs.part import Part, Tally, make_part
from advisor.logs.pieces import Piece
from advisor.logs.record import Line, Record, Row, UnusableError
from advisor.logs.rows import ends_of_lines, rows_of_lines
from advisor.logs.selection import Names, Selection
from advisor.logs.status import safe_status
from advisor.logs.text import TextReader

_BATCH_ROWS = 4096
_BATCH_CHARACTERS = 5_000_000  # some more than a piece of lines has, so that it makes one part


@dataclass(frozen=True, slots=True, repr=False)
class Setup:
    """What every process that parses a log starts from. `sample` are the first rows of the log."""

    kind: type[Format]
    sample: Sequence[Row]
    options: ReadOptions
    key: bytes  # of this run: hides request keys and prompts


@dataclass(frozen=True, slots=True, repr=False)
class Harvest:
    """What some rows gave, and what was counted about them since the harvest before."""

    part: Part | None
    tally: Tally
    format_counts: Counter[str]
    text_counts: Counter[str]
    names: Names


class Parsed(NamedTuple):
    """What a piece gave: its harvests, and how many lines it has that later numbers do not count."""

    harvests: list[Harvest]
    lines: int


class Parser:
    """Parses rows of one log. `text` reads its prompts."""

    def __init__(self, setup: Setup, text: TextReader) -> None:
        self.setup = setup
        self.format = setup.kind(setup.sample, setup.options)
        self._selection = Selection(setup.options, self.format.basis().clock)
        self._text = text
        self._key = setup.key
        self._told = (Counter[str](), Counter[str]())  # counts of format and text at the last harvest

    def settle_text(self) -> None:
        """Choose how prompts are read by the first one of the sample."""
        scratch = self.setup.kind(self.setup.sample, self.setup.options)
        for row in self.setup.sample:
            with contextlib.suppress(UnusableError):
                items = [
                    item for item in scratch.parse(row) if isinstance(item, Record) and item.prompt is not None
                ]
                if items:
                    self._text.settle(items)
                    return

    def read_piece(self, piece: Piece | CsvPiece, source: int, *, text: bool) -> Parsed:
        """Parse a piece of the source of this number; lines count from its start, in CSV from the file's."""
        if isinstance(piece, CsvPiece):
            return Parsed(list(self.read(piece.rows(), source)), 0)
        try:
            data = piece.load()
        except UnusableError as error:
            return Parsed(list(self.read([Line(0, error)], source)), 0)
        ends = ends_of_lines(data)
        rows = rows_of_lines(data, ends, piece.offset, text=text)
        return Parsed(list(self.read(rows, source)), len(ends))

    def read(self, rows: Iterable[Line], source: int) -> Iterator[Harvest]:
        """Parse rows of the source of this number, and harvest whenever a batch is full."""
        parse, hold = self.format.parse, self._text.hold
        check = self._selection.check if self._selection.narrows else None
        tally = Tally()
        batch: list[Record] = []
        places: list[tuple[int, int]] = []
        characters = last = item = 0
        for number, content, at in rows:
            if number != last or number == 0:
                tally.lines += content.lines if isinstance(content, UnusableError) else 1
                last, item = number, 0
            try:
                if isinstance(content, UnusableError):
                    raise content
                for parsed in parse(content):
                    item += 1
                    if isinstance(parsed, UnusableError):
                        tally.skip(number, item, parsed)
                        continue
                    if parsed.status is not None and parsed.status != "ok":
                        parsed.status = safe_status(parsed.status)
                    if (
                        check is not None
                        and (refused := check(parsed, f"{source}:{at or number}:{item}")) is not None
                    ):
                        tally.skip(number, item, refused)
                        continue
                    characters += hold(parsed)
                    batch.append(parsed)
                    places.append((number, item))
            except UnusableError as error:
                tally.skip(number, item, error)
            if len(batch) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
                yield self._harvest(batch, places, tally)
                tally, batch, places, characters = Tally(), [], [], 0
        yield self._harvest(batch, places, tally)

    def _harvest(self, batch: Sequence[Record], places: Sequence[tuple[int, int]], tally: Tally) -> Harvest:
        """Text becomes numbers here, and is forgotten."""
        errors, content = self._text.take(batch)
        for (number, item), error in zip(places, errors, strict=True):
            if error is not None:
                tally.skip(number, item, error)
        kept = [record for record, error in zip(batch, errors, strict=True) if error is None]
        part = make_part(kept, content, self._key) if kept else None
        now = (self.format.counts.copy(), self._text.counts.copy())
        format_counts, text_counts = (_difference(new, old) for new, old in zip(now, self._told, strict=True))
        self._told = now
        return Harvest(part, tally, format_counts, text_counts, self._selection.take_names())


def _difference(new: Counter[str], old: Counter[str]) -> Counter[str]:
    """What was counted in between; zeros too, which formats may put there."""
    return Counter(
        {name: count - old[name] for name, count in new.items() if name not in old or count != old[name]}
    )


def count_rows(rows: Iterable[Line]) -> Tally:
    """The account of rows none of which can be used, each saying why."""
    tally = Tally()
    last = 0
    for number, content, _ in rows:
        if isinstance(content, UnusableError):
            tally.lines += content.lines if number != last or number == 0 else 0
            tally.skip(number, 0, content)
        last = number
    return tally
