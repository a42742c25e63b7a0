"""From bytes to rows: JSON lines, a JSON document, CSV, or the lines of a text log.

Owns the reasons for which a line is no row; one bad line never costs the others. Lines and the records of CSV
come in pieces that can be read apart from each other; documents do not. Memory is bounded: by `LINE_BYTES` for
lines and CSV rows, by `DOCUMENT_BYTES` for documents, and for both by what their JSON would take once parsed.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from advisor.logs.csv_rows import CsvPiece, csv_pieces, has_header
from advisor.logs.pieces import LINE_BYTES, Piece, cut_stream, too_long
from advisor.logs.record import LINE, Line, Row, UnusableError

DOCUMENT_BYTES = 256 << 20
_LARGE_JSON = 8 << 20  # bytes, from which it is looked at before it is parsed
_MOST_VALUES = 20_000_000  # commas: a small value takes ten times its bytes in memory
_MOST_CONTAINERS = 4_000_000  # objects and lists: an empty one takes thirty times its bytes
_BOM = b"\xef\xbb\xbf"
_NOT_TEXT = (b"PAR1", b"PK\x03\x04", b"\xff\xfe", b"\xfe\xff", b"SQLite")
_PICKLES = tuple(bytes((0x80, protocol)) for protocol in (2, 3, 4, 5))  # SGLang dumps requests so
PICKLE = "a pickle, which runs code when it is loaded"
_DOCUMENT = re.compile(rb"\{|\[\s*([{\[\"\]]|$)")  # a text log may start with `[2026-`
_HEADER_LINES = 4  # looked at to tell a CSV header from a line of text
_SEVERAL = "several JSON values in one"
_TOO_MANY = "JSON with too many values in one"
_decode = msgspec.json.Decoder().decode


class Opened(NamedTuple):
    """What a file holds: lines (`text`: not of JSON) or CSV, which come in pieces, or rows, in one go."""

    kind: str  # lines, text, csv or rows
    chunks: Iterator[bytes]  # of what comes in pieces
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
    if kind == "csv":
        return Opened(kind, _without_bom(stream), iter(()))
    if kind == "document":
        return Opened("rows", stream, _or_error(_document(_without_bom(stream))))
    why = PICKLE if kind == "pickle" else "not a text file"
    return Opened("rows", stream, iter([Line(0, UnusableError(why))]))


def ends_of_lines(data: bytes) -> list[int]:
    """Where lines end: the places of all line feeds."""
    ends = []
    end = data.find(b"\n")
    while end >= 0:
        ends.append(end)
        end = data.find(b"\n", end + 1)
    return ends


def rows_of_lines(data: bytes, ends: Sequence[int], offset: int, *, text: bool) -> Iterator[Line]:
    """The rows of some lines, blank ones left out. What cannot be read is a Line that says why.

    `ends` are those of `data`, which begins at byte `offset` of the file. Numbers count from 1 at its start.
    """
    if data.isspace():
        return
    view = memoryview(data)  # lines are parsed where they lie
    start = 0
    for number, end in enumerate((*ends, len(data)), 1):
        if end - start > LINE_BYTES:
            yield Line(number, too_long(), offset + start)
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


def rows_of_pieces(pieces: Iterable[Piece | CsvPiece], *, text: bool) -> Iterator[Line]:
    """The rows of the pieces of a file, one after another; numbers and places are those in the file."""
    before = 0
    for piece in pieces:
        if isinstance(piece, CsvPiece):
            yield from piece.rows()
            continue
        try:
            data = piece.load()
        except UnusableError as error:
            yield Line(0, error)
            return
        ends = ends_of_lines(data)
        for number, content, at in rows_of_lines(data, ends, piece.offset, text=text):
            yield Line(before + number, content, at)
        before += len(ends)


def read_rows(chunks: Iterable[bytes]) -> Iterator[Line]:
    """The rows of one file, however it is made."""
    opened = open_log(chunks)
    if opened.kind == "rows":
        return opened.rows
    cut = csv_pieces if opened.kind == "csv" else cut_stream
    return rows_of_pieces(cut(opened.chunks), text=opened.kind == "text")


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


def _or_error(rows: Iterator[Line]) -> Iterator[Line]:
    try:
        yield from rows
    except UnusableError as error:
        yield Line(0, error)


def _kind(head: bytes) -> str:
    """What the first chunk looks like; a few damaged lines do not change the answer."""
    if head.startswith(_PICKLES):
        return "pickle"
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
    return "csv" if has_header(lines[:_HEADER_LINES]) else "text"


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
