"""Reading a log: from paths to one Trace, in one pass.

Owns the flow lines -> rows -> records -> (text becomes block ids) -> columns, and the tally of what was left
out. Text is held for one batch and dropped; a bad line is counted, never raised. Formats do the understanding.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from advisor.logs.columns import Columns
from advisor.logs.formats import choose_format, nearest_formats
from advisor.logs.formats.base import Basis, Format
from advisor.logs.options import ReadOptions
from advisor.logs.record import LINE, Record, Row, UnusableError
from advisor.logs.rows import Line, list_within, read_rows
from advisor.logs.selection import Selection
from advisor.logs.source import Meter, Progress, Source, find_sources, read_chunks
from advisor.logs.text import TextEncoder, TextReader
from advisor.logs.times import describe_span
from advisor.logs.trace import LogInfo, Trace, Unknown
from engine.errors import InputError

SAMPLE_ROWS = 200
_BATCH_ROWS = 256
_BATCH_CHARACTERS = 4_000_000
_FIELD_NAME = re.compile(r"[A-Za-z_@][\w.\-]{0,39}")
_MOST_FIELDS = 12


def read(
    paths: Sequence[str | Path],
    *,
    options: ReadOptions | None = None,
    tokenizer: TextEncoder | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The requests of a log, sorted by arrival.

    `paths` are files, folders or `-`. `tokenizer` is used for logs with text only; without it their sharing
    stays unknown. `progress(done, total)` hears of bytes as stored; total is 0 where unknown. Raises InputError
    where nothing can be used.
    """
    sources = find_sources(paths)
    meter = Meter(sources, progress)
    reading = _Reading(options or ReadOptions(), tokenizer)
    for source in sources:
        reading.take(source, read_rows(read_chunks(source, meter)))
    return reading.finish(len(sources))


class _Place(NamedTuple):
    """Where a record came from, for messages."""

    source: Source
    line: int

    def __str__(self) -> str:
        return f"{self.source.name}, line {self.line}" if self.line else self.source.name


class _Tally:
    """Lines read, the items they hold, and those left out by reason."""

    def __init__(self) -> None:
        self.lines = 0
        self.items = 0
        self.skipped: dict[str, int] = {}
        self.first: tuple[_Place, str] | None = None

    def skip(self, place: _Place, error: UnusableError) -> None:
        self.items += error.lines
        self.skipped[error.reason] = self.skipped.get(error.reason, 0) + error.lines
        if self.first is None:
            self.first = (place, error.reason)


class _Reading:
    """One log being read. The first file whose format is known decides the format of all."""

    def __init__(self, options: ReadOptions, encoder: TextEncoder | None) -> None:
        self._options = options
        self._tally = _Tally()
        self._format: Format | None = None
        self._selection: Selection | None = None
        self._text = TextReader(encoder, options.block_size)
        self._columns = Columns(options.block_size)
        self._batch: list[tuple[Record, _Place]] = []
        self._batch_size = 0  # characters
        self._fields: tuple[str, ...] = ()  # of the first JSON object, for the hint when no format is known

    def take(self, source: Source, rows: Iterator[Line]) -> None:
        """Read one file."""
        head = list(itertools.islice(rows, SAMPLE_ROWS))
        known = self._recognise(head)
        if not known and len(head) == 1 and isinstance(head[0].content, dict):
            # A document is one row to the formats that know it, else the rows that it holds.
            head = _unfold(head[0])
            known = self._recognise(head)
        last = 0
        for number, content in itertools.chain(head, rows):
            place = _Place(source, number)
            lines = content.lines if isinstance(content, UnusableError) else 1
            self._tally.lines += lines if number != last or number == 0 else 0
            last = number
            try:
                if isinstance(content, UnusableError):
                    raise content
                if not known:
                    raise UnusableError(self._why_unknown(content))
                self._parse(content, place)
            except UnusableError as error:
                self._tally.skip(place, error)

    def finish(self, files: int) -> Trace:
        """The Trace, with what was assumed."""
        self._flush()
        if self._format is None:
            raise self._nothing_usable()
        basis = self._format.basis()
        trace, left_out = self._columns.finish(basis, self._text.index)
        if len(trace) == 0 and basis.totals is None:
            raise self._nothing_usable()
        for reason, count in left_out.items():
            self._tally.skipped[reason] = self._tally.skipped.get(reason, 0) + count
        unknown = [*self._format.cannot_tell, *basis.unknown]
        if self._text.unread:
            why = "the log has prompt text and no tokenizer was given"
            unknown.append(Unknown("sharing", why, "--tokenizer NAME"))
        info = LogInfo(
            format=self._format.name,
            files=files,
            lines=self._tally.lines,
            items=self._tally.items + len(self._columns) - self._columns.merged,
            skipped=dict(sorted(self._tally.skipped.items())),
            arrival_basis=basis.arrival,
            token_basis=self._text.token_basis(basis.tokens, len(trace)),
            prefix_basis=None if trace.blocks is None else basis.prefix,
            notes=(*_time_notes(trace, basis, self._options), *basis.notes, *self._text.notes()),
        )
        return replace(trace, unknown=tuple(unknown), info=info)

    def _recognise(self, head: Sequence[Line]) -> bool:
        """Whether a file that starts like this is in the log's format, which the first such file settles."""
        sample = [line.content for line in head if not isinstance(line.content, UnusableError)]
        if not sample:
            return self._format is not None
        self._fields = self._fields or tuple(sample[0])
        kind = choose_format(sample, self._options)
        if kind is not None and self._format is None:
            self._format = kind(sample, self._options)
            self._selection = Selection(self._options, self._format.basis().clock)
        return kind is not None and type(self._format) is kind

    def _why_unknown(self, row: Row) -> str:
        if self._format is not None:
            return "another format than the rest of the log"
        return "neither JSON nor CSV" if LINE in row else "no known format"

    def _parse(self, row: Row, place: _Place) -> None:
        if self._format is None or self._selection is None:
            raise UnusableError("no known format")
        for item in self._format.parse(row):
            try:
                if isinstance(item, UnusableError):
                    raise item
                self._selection.check(item)
            except UnusableError as error:
                self._tally.skip(place, error)
                continue
            self._batch.append((item, place))
            self._batch_size += item.text_size
            if len(self._batch) >= _BATCH_ROWS or self._batch_size >= _BATCH_CHARACTERS:
                self._flush()

    def _flush(self) -> None:
        """Move the batch into the columns; its text is forgotten here."""
        paths = self._text.take([record for record, _ in self._batch])
        for (record, place), path in zip(self._batch, paths, strict=True):
            if isinstance(path, UnusableError):
                self._tally.skip(place, path)
            else:
                self._columns.add(record, path)
        self._batch.clear()
        self._batch_size = 0

    def _nothing_usable(self) -> InputError:
        place, reason = self._tally.first or ("", "every file is empty")
        hint = "give JSON lines, a JSON array or CSV, plain or in gzip or zstd"
        if self._selection is not None and any(text.startswith("not selected") for text in self._tally.skipped):
            hint = self._selection.names_seen() or "loosen --where, --since or --until"
        elif self._format is None and self._fields:
            names = [name for name in self._fields if _FIELD_NAME.fullmatch(name)][:_MOST_FIELDS]
            hint = "--map arrival=FIELD,prompt_tokens=FIELD" + (
                f" with FIELD of {', '.join(names)}" if names else ""
            )
            hint += f"; the nearest formats are {', '.join(nearest_formats(self._fields))}"
        skips = ", ".join(f"{count} x {name}" for name, count in sorted(self._tally.skipped.items()))
        why = f"{reason} (of {self._tally.lines} lines: {skips})" if self._tally.lines else reason
        return InputError("no usable request in the log", where=str(place) or None, why=why, hint=hint)


def _unfold(line: Line) -> list[Line]:
    """The rows of a document's list; the document itself where it has none."""
    items = None if isinstance(line.content, UnusableError) else list_within(line.content)
    if items is None:
        return [line]
    return [
        Line(number, item if isinstance(item, dict) else UnusableError("not a JSON object"))
        for number, item in enumerate(items, 1)
    ]


def _time_notes(trace: Trace, basis: Basis, options: ReadOptions) -> list[str]:
    """What a person needs to see an error of a factor 1000, or of a time zone."""
    if basis.clock is None:
        return ["the log has no arrival times"]
    notes = []
    span = float(trace.arrival_s[-1]) if len(trace) else 0.0
    if not basis.clock.epoch and span > 0:
        rate = len(trace) / span
        notes.append(f"relative times: {describe_span(span)} at {rate:.2f} requests/s; --time-unit corrects it")
    if basis.clock.naive:
        notes.append(f"times without a zone are read as {options.tz}; --tz corrects it")
    return notes
