"""From bytes to rows: JSON lines, a JSON document, CSV, or the lines of a text log.

Owns the reasons for which a line is no row; one bad line never costs the others. Lines come in pieces that can
be read apart from each other; CSV and documents cannot. Memory is bounded: by `LINE_BYTES` for lines and CSV
rows, by `DOCUMENT_BYTES` for documents, and for both by what their JSON would take once it is parsed.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from advisor.logs.pieces import LINE_BYTES, cut_stream
from advisor.logs.record import LINE, Row, UnusableError

DOCUMENT_BYTES = 256 << 20
_LARGE_JSON = 8 << 20  # bytes, from which it is looked at before it is parsed
_MOST_VALUES = 20_000_000  # commas: a small value takes ten times its bytes in memory
_MOST_CONTAINERS = 4_000_000  # objects and lists: an empty one takes thirty times its bytes
_BOM = b"\xef\xbb\xbf"
_NOT_TEXT = (b"PAR1", b"PK\x03\x04", b"\x80\x04", b"\x80\x05", b"\xff\xfe", b"\xfe\xff", b"SQLite")
_LISTS = (
    "data", "requests", "records", "rows", "items", "logs", "traces", "results", "entries", "observations",
)  # fmt: skip
_QUOTED_LINES = 1000  # of one CSV row
_DOCUMENT = re.compile(rb"\{|\[\s*([{\[\"\]]|$)")  # a text log may start with `[2026-`
_COLUMN = re.compile(r"[^\W\d][\w .\-/()%:#]{0,79}")  # what a CSV header has between its delimiters
_HEADER_LINES = 4  # looked at to tell a CSV header from a line of text
_SEVERAL = "several JSON values in one"
_TOO_MANY = "JSON with too many values in one"
_TOO_LONG = "a line that is too long"
_decode = msgspec.json.Decoder().decode


class Line(NamedTuple):
    """One line, CSV row or list item: its number in the file or piece, from 1, what it holds, and a place.

    `at` tells it from all other lines of the file: the byte where it starts, where that is known.
    """

    number: int
    content: Row | UnusableError
    at: int = 0


def list_within(document: Row) -> list[Any] | None:
    """The list of rows that a document holds under one of the usual names; None where it holds none."""
    return next((value for name in _LISTS if isinstance(value := document.get(name), list)), None)


class Opened(NamedTuple):
    """What a file holds: lines, which can be read in pieces (`text`: that are not JSON), or rows, in one go."""

    kind: str  # lines, text or rows
    chunks: Iterator[bytes]  # of lines
    rows: Iterator[Line]


def open_log(chunks: Iterable[bytes]) -> Opened:
    """Look at the start of a file."""
    stream = iter(chunks)
    try:
        head = next(stream, b"")
    except UnusableError as error:
        return Opened("rows", stream, iter([Line(0, error)]))
    kind = _kind(head.removeprefix(_BOM))
    stream = itertools.chain([head], stream)
    if kind in ("lines", "text"):
        return Opened(kind, stream, iter(()))
    rows = {"document": _document, "csv": _csv}.get(kind)
    if rows is None:
        return Opened("rows", stream, iter([Line(0, UnusableError("not a text file"))]))
    return Opened("rows", stream, _or_error(rows(_without_bom(stream))))


def rows_of_lines(data: bytes, offset: int, *, text: bool) -> Iterator[Line]:
    """The rows of some lines, blank ones left out. What cannot be read is a Line that says why.

    Numbers count from 1 at the start of `data`, which begins at byte `offset` of the file.
    """
    if data.isspace():
        return
    view = memoryview(data)  # lines are parsed where they lie
    number = start = 0
    while start < len(data):
        number += 1
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        if end - start > LINE_BYTES:
            yield Line(number, _too_long(), offset + start)
        elif text:
            line = data[start:end].decode("utf-8", "replace").rstrip("\r")
            if line.strip():
                yield Line(number, {LINE: line}, offset + start)
        elif end - start > _LARGE_JSON and _swells(data[start:end]):
            yield Line(number, UnusableError(_TOO_MANY), offset + start)
        elif end > start:
            for content in _json_line(view[start:end]):
                yield Line(number, content, offset + start)
        start = end + 1


def read_rows(chunks: Iterable[bytes]) -> Iterator[Line]:
    """The rows of one file, however it is made, one after another."""
    opened = open_log(chunks)
    yield from opened.rows
    if opened.kind == "rows":
        return
    before = 0
    for piece in cut_stream(opened.chunks):
        try:
            data = piece.load()
        except UnusableError as error:
            yield Line(0, error)
            return
        for number, content, at in rows_of_lines(data, piece.offset, text=opened.kind == "text"):
            yield Line(before + number, content, at)
        before += data.count(b"\n")


def _json_line(line: memoryview) -> Sequence[Row | UnusableError]:
    """What a line holds: one value as a rule; nothing where it is blank."""
    try:
        value = _decode(line)
    except (msgspec.DecodeError, RecursionError):
        raw = bytes(line).strip()
        content = _parse(raw) if raw else None
        if content is None:
            return ()
        several = type(content) is UnusableError and content.reason == _SEVERAL
        return list(_concatenated(raw)) if several else (content,)
    return (value if type(value) is dict else UnusableError("not a JSON object"),)


def _without_bom(chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield next(chunks, b"").removeprefix(_BOM)
    yield from chunks


def _swells(data: bytes) -> bool:
    """Whether JSON may take a gigabyte or more once it is parsed."""
    containers = data.count(b"{") + data.count(b"[")
    return data.count(b",") > _MOST_VALUES or containers > _MOST_CONTAINERS


def _too_long() -> UnusableError:
    return UnusableError(f"line longer than {LINE_BYTES >> 20} MiB")


def _or_error(rows: Iterator[Line]) -> Iterator[Line]:
    try:
        yield from rows
    except UnusableError as error:
        yield Line(0, error)


def _kind(head: bytes) -> str:
    """What the first chunk looks like; a few damaged lines do not change the answer."""
    if head.startswith(_NOT_TEXT):
        return "binary"
    lines = [line for raw in head.split(b"\n", 64)[:64] if (line := raw.strip())]
    if not lines:
        return "lines"
    whole = sum(line.startswith(b"{") and line.endswith(b"}") for line in lines)
    if whole * 2 >= len(lines) and len(lines) > 1:
        return "lines"
    if _DOCUMENT.match(lines[0]):
        endless = len(lines) == 1 and lines[0][:1] == b"{" and not lines[0].endswith(b"}")
        return "lines" if endless else "document"
    if whole:
        return "lines"
    return "csv" if _has_header(lines[:_HEADER_LINES]) else "text"


def _has_header(lines: list[bytes]) -> bool:
    """Whether the first line names columns and a line after it fills them."""
    first, *rest = (line.decode("utf-8", "replace") for line in lines)
    delimiter = max(",\t;|", key=first.count)
    names = _cells(first, delimiter)
    if len(names) < 2 or not all(_COLUMN.fullmatch(name.strip()) for name in names):
        return False
    return not rest or any(line.count(delimiter) >= len(names) - 1 or '"' in line for line in rest[:3])


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Lines as text, without their ends; `_TOO_LONG` for one that is."""
    for piece in cut_stream(chunks):
        *lines, rest = piece.load().split(b"\n")
        for raw in lines if not rest else [*lines, rest]:
            yield raw.decode("utf-8", "replace").rstrip("\r") if len(raw) <= LINE_BYTES else _TOO_LONG


def _concatenated(data: bytes) -> Iterator[Row | UnusableError]:
    """JSON values written one after another without a line between them."""
    text = data.decode("utf-8", "replace")
    decoder = json.JSONDecoder(strict=False, parse_constant=lambda _: None)
    place, halves = 0, _may_hold_halves(data)
    while place < len(text):
        try:
            value, place = decoder.raw_decode(text, place)
            value = _encodable(value) if halves else value
        except (ValueError, RecursionError):
            yield UnusableError("invalid JSON")
            return
        yield value if isinstance(value, dict) else UnusableError("not a JSON object")
        while text[place : place + 1].isspace():
            place += 1


def _parse(line: bytes) -> Row | UnusableError:
    try:
        value = _decode(line)
    except (msgspec.DecodeError, RecursionError):
        try:
            value = _parse_leniently(line)
        except UnusableError as error:
            return error
    return value if type(value) is dict else UnusableError("not a JSON object")


def _parse_leniently(data: bytes) -> Any:
    """For what JSON forbids and loggers write: NaN and Infinity (read as null), raw control characters."""
    try:
        value = json.loads(data.decode(), strict=False, parse_constant=lambda _: None)
        return _encodable(value) if _may_hold_halves(data) else value
    except UnicodeDecodeError:
        raise UnusableError("invalid UTF-8") from None
    except RecursionError:
        raise UnusableError("JSON nested too deeply") from None
    except json.JSONDecodeError as error:
        raise UnusableError(_SEVERAL if error.msg == "Extra data" else "invalid JSON") from None
    except ValueError:
        raise UnusableError("number with too many digits") from None


def _may_hold_halves(data: bytes) -> bool:
    """Whether JSON may write half of a surrogate pair, which is no character."""
    return b"\\ud" in data or b"\\uD" in data


def _encodable(value: Any) -> Any:
    """The value with a question mark for such halves, which no tokenizer takes."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _document(chunks: Iterator[bytes]) -> Iterator[Line]:
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > DOCUMENT_BYTES:
            raise UnusableError(f"JSON document over {DOCUMENT_BYTES >> 20} MiB; JSON lines have no limit")
    content = bytes(data)
    del data
    if _swells(content):
        raise UnusableError(_TOO_MANY)
    for number, item in enumerate(_items(content), 1):
        row = _parse(bytes(item)) if isinstance(item, msgspec.Raw) else item
        yield Line(number, row if isinstance(row, dict | UnusableError) else UnusableError("not a JSON object"))


def _items(data: bytes) -> Iterable[Any]:
    """The items of a list, not yet decoded where possible; an object is one item, several are several."""
    if data.lstrip().startswith(b"["):
        try:
            return msgspec.json.decode(data, type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            pass
    try:
        whole = _decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            whole = _parse_leniently(data)
        except UnusableError as error:
            return _concatenated(data) if error.reason == _SEVERAL else [error]
    return whole if isinstance(whole, list) else [whole]


def _csv(chunks: Iterator[bytes]) -> Iterator[Line]:
    csv.field_size_limit(LINE_BYTES)  # the module's 128 KiB is less than a long prompt
    texts = _lines(chunks)
    first = next((text for text in texts if text.strip()), "")
    delimiter = max(",\t;|", key=first.count)
    header = _cells(first, delimiter)
    for number, lines in _csv_records(texts):
        crowded = '"' not in lines[0] and lines[0].count(delimiter) >= len(header)  # told without the cells
        cells = [] if crowded else _cells("\n".join(lines), delimiter)
        if lines[0] is _TOO_LONG:
            yield Line(number, _too_long())
        elif lines[0].count('"') % 2 and len(lines) == 1:
            yield Line(number, UnusableError("quote that never closes"))
        elif len(cells) != len(header):
            yield Line(number, UnusableError("wrong number of CSV fields", len(lines)))
        elif cells == header:
            yield Line(number, UnusableError("repeated header"))
        else:
            yield Line(number, dict(zip(header, cells, strict=True)))


def _csv_records(texts: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Lines that belong together because a quoted field spans them, with the number of the first.

    A quote that does not close within `_QUOTED_LINES` costs its own line only: it comes alone.
    """
    waiting: deque[str] = deque()
    number = 1
    while (line := waiting.popleft() if waiting else next(texts, None)) is not None:
        number += 1
        if not line.strip():
            continue
        record = [line]
        closed = line.count('"') % 2 == 0
        size = len(line)
        while not closed and len(record) < _QUOTED_LINES and size <= LINE_BYTES:
            more = waiting.popleft() if waiting else next(texts, None)
            if more is None:
                break
            record.append(more)
            size += len(more)
            closed = more.count('"') % 2 == 1
        if not closed:
            waiting.extendleft(reversed(record[1:]))
            del record[1:]
        yield number, record
        number += len(record) - 1


def _cells(text: str, delimiter: str) -> list[str]:
    if '"' not in text:
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return []
