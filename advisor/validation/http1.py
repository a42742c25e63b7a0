"""The reading half of HTTP/1.1 (RFC 9112): one response, fed as its bytes come. No socket, no clock.

States: head (1xx heads are passed over) -> body, delimited by chunks, by length or by the end of the connection
-> complete. Made for streams of small chunks: one that comes whole is one slice. Refuses what is malformed or
has no bound; never decodes content, never follows a redirect.
"""

from __future__ import annotations

from collections.abc import Callable

_MOST_HEAD = 64 * 1024
_MOST_LINE = 4096  # of a chunk's size with its extensions, and of the trailers together
_NO_BODY = (204, 304)
_CRLF = b"\r\n"


class ProtocolError(Exception):
    """What came is not HTTP/1.1, or the connection ended within it."""


class Response:
    """One response. `status` is None until its head is whole."""

    __slots__ = ("_between", "_left", "_read", "_rest", "complete", "reusable", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.complete = False
        self.reusable = False  # once complete: whether the connection may carry another request
        self._rest = b""  # the beginning of something that is not whole yet
        self._left = 0  # bytes of the body, or of its current chunk, that are still to come
        self._between = False  # a chunk's data is there, the line end after it is not
        self._read: Callable[[bytes], bytes] = self._head

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body in `data`. Raises ProtocolError."""
        return self._read(data)

    def end(self) -> None:
        """The connection has ended. Raises ProtocolError where the response has not."""
        if self.complete:
            return
        if self._read != self._until_end:
            raise ProtocolError("the connection ended within a response")
        self.complete, self.reusable = True, False

    def _head(self, data: bytes) -> bytes:
        data = self._rest + data
        end = data.find(b"\r\n\r\n")
        if end < 0 or end > _MOST_HEAD:
            if len(data) > _MOST_HEAD:
                raise ProtocolError("the head of a response is too long")
            self._rest = data
            return b""
        self._rest = b""
        status, fields = _fields(data[:end])
        rest = data[end + 4 :]
        if 100 <= status < 200:
            if status == 101:
                raise ProtocolError("the server switches protocols")
            return self._head(rest) if rest else b""
        self.status = status
        self._delimit(status, fields)
        return self._read(rest) if rest else b""

    def _delimit(self, status: int, fields: dict[bytes, bytes]) -> None:
        connection = [word.strip() for word in fields.get(b"connection", b"").lower().split(b",")]
        self.reusable = b"close" not in connection and (
            fields[b":version"] != b"HTTP/1.0" or b"keep-alive" in connection
        )
        length, coding = fields.get(b"content-length"), fields.get(b"transfer-encoding")
        if status in _NO_BODY:
            self._finish(b"")
        elif coding is not None:
            if coding.lower() != b"chunked":
                raise ProtocolError("a transfer coding that is not read here")
            self._read = self._chunks
            self.reusable = self.reusable and length is None
        elif length is not None:
            if not length.isdigit():
                raise ProtocolError("a content length that is no number")
            self._left, self._read = int(length), self._by_length
            if self._left == 0:
                self._finish(b"")
        else:
            self._read = self._until_end

    def _by_length(self, data: bytes) -> bytes:
        body = data[: self._left]
        self._left -= len(body)
        if self._left == 0:
            self._finish(data[len(body) :])
        return body

    def _until_end(self, data: bytes) -> bytes:
        return data

    def _chunks(self, data: bytes) -> bytes:
        if not (self._rest or self._left or self._between):
            start = data.find(_CRLF, 0, 16) + 2
            if start > 2 and data[: start - 2].isalnum():
                size = _size(data[: start - 2])
                if size and start + size + 2 == len(data) and data.endswith(_CRLF):
                    return data[start:-2]
        return self._any_chunks(self._rest + data if self._rest else data)

    def _any_chunks(self, data: bytes) -> bytes:
        pieces, at, self._rest = [], 0, b""
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                self._left -= len(piece)
                at += len(piece)
                self._between = self._left == 0
                continue
            line_end = data.find(_CRLF, at)
            if line_end < 0:
                if len(data) - at > _MOST_LINE:
                    raise ProtocolError("the size of a chunk is too long")
                break
            line, at = data[at:line_end], line_end + 2
            if self._between:
                if line:
                    raise ProtocolError("a chunk is longer than its size")
                self._between = False
                continue
            self._left = _size(line.partition(b";")[0].rstrip(b" \t"))
            if self._left == 0:
                self._read = self._trailers
                pieces.append(self._trailers(data[line_end:]))  # from the line end: there may be no trailer
                return b"".join(pieces)
        self._rest = data[at:]
        return b"".join(pieces)

    def _trailers(self, data: bytes) -> bytes:
        data = self._rest + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > _MOST_LINE:
                raise ProtocolError("the trailers are too long")
            self._rest = data
        else:
            self._finish(data[end + 4 :])
        return b""

    def _finish(self, surplus: bytes) -> None:
        self.complete = True
        self.reusable = self.reusable and not surplus
        self._rest, self._read = b"", self._after

    def _after(self, data: bytes) -> bytes:
        self.reusable = self.reusable and not data
        return b""


def _size(digits: bytes) -> int:
    try:
        if not digits.isalnum():  # int() would take signs, blanks and underscores too
            raise ValueError
        return int(digits, 16)
    except ValueError:
        raise ProtocolError("the size of a chunk is no number") from None


def _fields(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    """Status and header fields, names in lower case; `:version` is that of the status line."""
    first, *lines = head.split(_CRLF)
    version, _, rest = first.partition(b" ")
    code = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or not (len(code) == 3 and code.isdigit()) or code < b"100":
        raise ProtocolError("this is no answer of an HTTP/1.1 server")
    fields = {b":version": version}
    for line in lines:
        name, colon, value = line.partition(b":")
        name, value = name.lower(), value.strip()
        if not colon or not name or name != name.strip():
            raise ProtocolError("a malformed header field")
        if name in fields and name == b"content-length" and fields[name] != value:
            raise ProtocolError("two content lengths")
        listed = name in (b"connection", b"transfer-encoding") and name in fields
        fields[name] = fields[name] + b", " + value if listed else value
    return int(code), fields
