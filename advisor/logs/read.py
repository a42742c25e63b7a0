"""Reading a log: from paths to one Trace, in one pass.

Owns the order of things: which format it is, who parses (this process, or several for large logs of lines),
what is known in the end and what was left out. Parsing itself is `parse`'s.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from advisor.children import process_count
from advisor.logs.columns import Columns
from advisor.logs.csv_rows import CsvPiece, csv_pieces
from advisor.logs.formats import nearest_formats
from advisor.logs.formats.base import Basis
from advisor.logs.identity import KEY_BYTES
from advisor.logs.options import ReadOptions
from advisor.logs.parse import Harvest, Parsed, Parser, Setup, count_rows
from advisor.logs.part import Tally
from advisor.logs.pieces import Piece, cut_file, cut_stream
from advisor.logs.recognise import Recognised, first_rows, recognise
from advisor.logs.record import LINE, Line, Row, UnusableError
from advisor.logs.rows import PICKLE, open_log, rows_of_pieces
from advisor.logs.selection import Names, add_names, name_hint
from advisor.logs.source import Meter, Progress, Source, find_sources, is_plain, larger_than, read_chunks
from advisor.logs.text import LARGE_BYTES, TextEncoder, TextReader
from advisor.logs.times import as_number, describe_span
from advisor.logs.trace import LogInfo, Trace
from advisor.logs.workers import Job, Workers
from engine.errors import InputError

PARALLEL_BYTES = 32 << 20  # of a log: below it, starting processes costs more than they save
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

    `paths` are files, folders or `-`. `tokenizer` is used for logs with text, as `options.text` says; without
    it their sharing is measured on bytes. `progress(done, total)` hears of bytes as stored; total is 0 where
    unknown. Large logs of lines are read by several processes, with the same result. Raises InputError where
    nothing can be used, MachineError where a tokenizer that was asked for is missing.
    """
    options = options or ReadOptions()
    sources = find_sources(paths)
    meter = Meter(sources, progress)
    streams = [read_chunks(source, meter) for source in sources]
    large = False
    if tokenizer is not None and options.text == "auto":
        large, streams = larger_than(LARGE_BYTES, sources, streams)
    key = os.urandom(KEY_BYTES)  # never leaves, nor does a digest
    text = TextReader(tokenizer, options.block_size, key, wanted=options.text, large=large)
    with ExitStack() as stack:
        reading = _Reading(options, text, key, meter, sum(source.size for source in sources), stack)
        for index, (source, stream) in enumerate(zip(sources, streams, strict=True)):
            reading.take(index, source, stream)
    return reading.finish(len(sources))


class _Reading:
    """One log being read. The first file whose format is known decides the format of all."""

    def __init__(
        self,
        options: ReadOptions,
        text: TextReader,
        key: bytes,
        meter: Meter,
        stored_bytes: int,
        stack: ExitStack,
    ) -> None:
        self._options = options
        self._text = text
        self._key = key
        self._meter = meter
        self._stored, self._seen = stored_bytes, 0  # bytes of the log, as far as known, and of pieces so far
        self._stack = stack  # of what must be ended after reading
        self._parser: Parser | None = None
        self._workers: Workers | None = None
        self._columns = Columns(options.block_size)
        self._tally = Tally()
        self._first: tuple[str, str] | None = None  # item that was left out: where, and why
        self._names: Names = {}
        self._fields: tuple[str, ...] = ()  # of the first row, for the hint when no format is known ...
        self._are_names = False  # ... which may show them

    def take(self, index: int, source: Source, chunks: Iterator[bytes]) -> None:
        """Read one file."""
        done = self._meter.done
        opened = open_log(chunks)
        if opened.kind == "rows":
            self._take_rows(index, source, opened.rows)
            return
        text = opened.kind == "text"
        pieces: Iterator[Piece | CsvPiece]
        pieces = csv_pieces(opened.chunks) if opened.kind == "csv" else cut_stream(opened.chunks)
        if opened.kind != "csv" and source.path is not None and is_plain(source):
            # A file that lies there as it is is read where it lies, by whoever parses it.
            if isinstance(chunks, Generator):
                chunks.close()
            self._meter.done = done
            pieces = cut_file(source.path, source.size, self._meter.add)
        start = list(itertools.islice(pieces, 2))  # two, to know whether one row is all there is
        head = first_rows(rows_of_pieces(start[:1], text=text))
        pieces = itertools.chain(start, pieces)
        alone = len(head) < 2 and len(start) < 2
        if alone or not self._recognise(recognise(head, self._options, unfold=False)):
            self._take_rows(index, source, rows_of_pieces(pieces, text=text))
            return
        before = 0
        for harvests, lines in self._parse(Job(piece, index, text) for piece in pieces):
            for harvest in harvests:
                self._add(source, harvest, before)
            before += lines

    def finish(self, files: int) -> Trace:
        """The Trace, with what was assumed."""
        if self._parser is None:
            raise self._nothing_usable()
        basis = self._parser.format.basis()
        items = self._tally.items + len(self._columns) - self._columns.merged
        trace, left_out = self._columns.finish(basis)
        self._tally.skipped.update(left_out)
        if len(trace) == 0 and basis.totals is None:
            raise self._nothing_usable()
        unknown = (*self._parser.format.cannot_tell, *basis.unknown)
        told = {entry.path for entry in unknown}
        unread = [entry for entry in self._text.unknown(trace.prompt_tokens) if entry.path not in told]
        info = LogInfo(
            format=self._parser.format.name,
            files=files,
            lines=self._tally.lines,
            items=items,
            skipped=dict(sorted(self._tally.skipped.items())),
            arrival_basis=basis.arrival,
            token_basis=self._text.token_basis(basis.tokens, trace.prompt_tokens),
            prefix_basis=None if trace.blocks is None else self._text.prefix_basis(basis.prefix),
            notes=(*_time_notes(trace, basis, self._options), *basis.notes, *self._text.notes()),
        )
        return replace(trace, unknown=(*unknown, *unread), info=info)

    def _take_rows(self, index: int, source: Source, rows: Iterator[Line]) -> None:
        """Read a file that cannot be read in parts, or whose format is not the log's."""
        found = recognise(first_rows(rows), self._options)
        known = self._recognise(found)
        rows = itertools.chain(found.head, rows)
        if self._parser is None or not known:
            rows = (Line(number, self._why_unknown(content)) for number, content, _ in rows)
            self._count(source, count_rows(rows))
            return
        for harvest in self._parser.read(rows, index):
            self._add(source, harvest)

    def _parse(self, jobs: Iterator[Job]) -> Iterator[Parsed]:
        """Parse pieces: here, or from where the log turns out to be large in several processes."""
        parser = self._parser
        if parser is None:
            raise ValueError("a format is known before pieces are parsed")
        for job in jobs:
            self._seen += job.piece.size
            if self._workers is None and self._worth_splitting(parser):
                if self._text.unit is None:
                    self._text.use("bytes")
                workers = Workers(
                    parser.setup, self._text.unit or "bytes", process_count(self._options.processes)
                )
                self._workers = self._stack.enter_context(workers)
            if self._workers is None:
                yield parser.read_piece(job.piece, job.source, text=job.text)
                continue
            for parsed in self._workers.map(itertools.chain([job], jobs)):
                for harvest in parsed.harvests:
                    parser.format.counts.update(harvest.format_counts)
                    self._text.counts.update(harvest.text_counts)
                yield parsed

    def _worth_splitting(self, parser: Parser) -> bool:
        if parser.format.ordered or self._text.one_process or process_count(self._options.processes) < 2:
            return False
        return self._options.processes is not None or max(self._stored, self._seen) >= PARALLEL_BYTES

    def _recognise(self, found: Recognised) -> bool:
        """Whether a file is in the log's format, which the first file that is in any settles."""
        sample, kind = found.sample, found.kind
        if not sample:
            return self._parser is not None
        if not self._fields:
            self._fields = tuple(sample[0])
            # The first line of a CSV of nothing but words may be data: no names to show.
            self._are_names = any(
                not isinstance(value, str) or as_number(value) is not None for value in sample[0].values()
            )
        if kind is not None and self._parser is None:
            self._parser = Parser(Setup(kind, sample, self._options, self._key), self._text)
            self._parser.settle_text()
        return kind is not None and self._parser is not None and type(self._parser.format) is kind

    def _add(self, source: Source, harvest: Harvest, before: int = 0) -> None:
        if harvest.part is not None:
            self._columns.add(harvest.part)
        self._count(source, harvest.tally, before)
        add_names(self._names, harvest.names)

    def _count(self, source: Source, tally: Tally, before: int = 0) -> None:
        """Add to the account; the lines of the tally count from behind `before` others."""
        if self._first is None and tally.first is not None:
            line, _, reason = tally.first
            self._first = (f"{source.name}, line {before + line}" if line else source.name, reason)
        self._tally.lines += tally.lines
        self._tally.items += tally.items
        self._tally.skipped.update(tally.skipped)

    def _why_unknown(self, content: Row | UnusableError) -> UnusableError:
        if isinstance(content, UnusableError):
            return content
        if self._parser is not None:
            return UnusableError("another format than the rest of the log")
        return UnusableError("neither JSON nor CSV" if LINE in content else "no known format")

    def _nothing_usable(self) -> InputError:
        usual = max(self._tally.skipped, key=self._tally.skipped.__getitem__, default="every file is empty")
        where, reason = self._first or (None, usual)
        hint = "give JSON lines, a JSON array or CSV, plain or in gzip or zstd"
        if PICKLE in self._tally.skipped:
            hint = "start SGLang with --log-requests --log-requests-format json, and analyze that log"
        if any(text.startswith("not selected") for text in self._tally.skipped):
            hint = name_hint(self._names) or "loosen --where, --since or --until"
        elif self._parser is None and self._fields:
            shown = self._fields if self._are_names else ()
            names = [name for name in shown if _FIELD_NAME.fullmatch(name)][:_MOST_FIELDS]
            hint = "--map arrival=FIELD,prompt_tokens=FIELD" + (
                f" with FIELD of {', '.join(names)}" if names else ""
            )
            hint += f"; the nearest formats are {', '.join(nearest_formats(self._fields))}"
        skips = ", ".join(f"{count} x {name}" for name, count in sorted(self._tally.skipped.items()))
        why = f"{reason} (of {self._tally.lines} lines: {skips})" if self._tally.lines else reason
        return InputError("no usable request in the log", where=where, why=why, hint=hint)


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
