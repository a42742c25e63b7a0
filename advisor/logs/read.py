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
from advisor.logs.formats import choose_format
from advisor.logs.formats.base import Basis, Format
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.rows import Line, read_rows
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
    """Lines read, and those left out by reason."""

    def __init__(self) -> None:
        self.lines = 0
        self.skipped: dict[str, int] = {}
        self.first: tuple[_Place, str] | None = None

    def skip(self, place: _Place, error: UnusableError) -> None:
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
        known = self._recognise([line.content for line in head if not isinstance(line.content, UnusableError)])
        for number, content in itertools.chain(head, rows):
            place = _Place(source, number)
            try:
                if isinstance(content, UnusableError):
                    self._tally.lines += content.lines
                    raise content
                self._tally.lines += 1
                if self._format is not None and not known:
                    raise UnusableError("another format than the rest of the log")
                self._parse(content, place)
            except UnusableError as error:
                self._tally.skip(place, error)

    def finish(self, files: int) -> Trace:
        """The Trace, with what was assumed."""
        self._flush()
        if self._format is None or len(self._columns) == 0:
            raise self._nothing_usable()
        basis = self._format.basis()
        trace = self._columns.finish(basis, self._text.index)
        unknown = list(self._format.cannot_tell)
        if self._text.unread:
            why = "the log has prompt text and no tokenizer was given"
            unknown.append(Unknown("sharing", why, "--tokenizer NAME"))
        info = LogInfo(
            format=self._format.name,
            files=files,
            lines=self._tally.lines,
            skipped=dict(sorted(self._tally.skipped.items())),
            arrival_basis=basis.arrival,
            token_basis=self._text.token_basis(basis.tokens, len(trace)),
            prefix_basis=None if trace.blocks is None else basis.prefix,
            notes=(*_time_notes(trace, basis, self._options), *basis.notes, *self._text.notes()),
        )
        return replace(trace, unknown=tuple(unknown), info=info)

    def _recognise(self, sample: Sequence[Row]) -> bool:
        """Whether a file that starts like this is in the log's format, which the first such file settles."""
        if not sample:
            return self._format is not None
        self._fields = self._fields or tuple(sample[0])
        kind = choose_format(sample, self._options)
        if kind is not None and self._format is None:
            self._format = kind(sample, self._options)
            self._selection = Selection(self._options, self._format.basis().clock)
        return kind is not None and type(self._format) is kind

    def _parse(self, row: Row, place: _Place) -> None:
        if self._format is None or self._selection is None:
            raise UnusableError("no known format")
        for record in self._format.parse(row):
            self._selection.check(record)
            self._batch.append((record, place))
            self._batch_size += record.text_size
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
        elif "no prompt length without a tokenizer" in self._tally.skipped:
            hint = "--tokenizer NAME"
        skips = ", ".join(f"{count} x {name}" for name, count in sorted(self._tally.skipped.items()))
        why = f"{reason} (of {self._tally.lines} lines: {skips})" if self._tally.lines else reason
        return InputError("no usable request in the log", where=str(place) or None, why=why, hint=hint)


def _time_notes(trace: Trace, basis: Basis, options: ReadOptions) -> list[str]:
    """What a person needs to see an error of a factor 1000, or of a time zone."""
    if basis.clock is None:
        return ["the log has no arrival times"]
    notes = []
    span = float(trace.arrival_s[-1])
    if not basis.clock.epoch and span > 0:
        rate = len(trace) / span
        notes.append(f"relative times: {describe_span(span)} at {rate:.2f} requests/s; --time-unit corrects it")
    if basis.clock.naive:
        notes.append(f"times without a zone are read as {options.tz}; --tz corrects it")
    return notes
