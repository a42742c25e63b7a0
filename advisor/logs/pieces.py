"""Pieces of a log: a few megabytes of whole lines, which any process can read on its own.

Owns the cutting, of files where they lie and of streams as they come. Where pieces begin depends on the log
only, never on who reads them. It holds one piece; of a line that is too long, only as much as shows that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from advisor.logs.record import UnusableError

PIECE_BYTES = 4 << 20
LINE_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"
_LOOK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, repr=False)
class Piece:
    """Whole lines from `offset` on: `size` bytes, as `data` or of a file; or the error at their end."""

    offset: int
    data: bytes = b""
    path: Path | None = None
    size: int = 0
    error: UnusableError | None = None

    def load(self) -> bytes:
        """The lines. A last one that is too long comes without its end. Raises UnusableError."""
        if self.error is not None:
            raise self.error
        data = self.data
        if self.path is not None:
            try:
                with self.path.open("rb") as file:
                    file.seek(self.offset)
                    data = file.read(min(self.size, PIECE_BYTES + LINE_BYTES + 1))
            except OSError:
                raise UnusableError("the file could be opened, but not read to its end") from None
        return data.removeprefix(_BOM) if self.offset == 0 else data


def cut_file(path: Path, size: int, progress: Callable[[int], None]) -> Iterator[Piece]:
    """The pieces of the first `size` bytes of a file. `progress` hears of every byte once."""
    offset = 0
    with path.open("rb") as file:
        while offset < size:
            end = offset + PIECE_BYTES - 1
            file.seek(end)
            found = -1
            while found < 0 and (look := file.read(_LOOK_BYTES)):
                found = look.find(b"\n")
                end += len(look) if found < 0 else found + 1
            end = min(end, size) if found >= 0 else size
            progress(end - offset)
            yield Piece(offset, path=path, size=end - offset)
            offset = end


def cut_stream(chunks: Iterator[bytes]) -> Iterator[Piece]:
    """The pieces of a stream of lines."""
    held: list[bytes] = []
    offset = size = 0
    try:
        for chunk in _without_endless_lines(chunks):
            end = chunk.rfind(b"\n") + 1 if size + len(chunk) >= PIECE_BYTES else 0
            if end:
                yield _held_piece(offset, [*held, chunk[:end]])
                offset, size = offset + size + end, 0
                held, chunk = [], chunk[end:]
            held.append(chunk)
            size += len(chunk)
    except UnusableError as error:
        whole = b"".join(held)
        whole = whole[: whole.rfind(b"\n") + 1]  # the line that the damage cut off is part of the damage
        yield _held_piece(offset, [whole])
        yield Piece(offset + len(whole), error=error)
    else:
        if size:
            yield _held_piece(offset, held)


def _held_piece(offset: int, parts: list[bytes]) -> Piece:
    data = b"".join(parts)
    return Piece(offset, data, size=len(data))


def _without_endless_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks, less what a line has beyond `LINE_BYTES` and one chunk."""
    open_size = 0
    for chunk in chunks:
        if open_size > LINE_BYTES:
            end = chunk.find(b"\n")
            if end < 0:
                continue
            chunk = chunk[end:]
        end = chunk.rfind(b"\n") + 1
        open_size = len(chunk) - end if end else open_size + len(chunk)
        yield chunk


def too_long() -> UnusableError:
    """Why a line is left out that is longer than `LINE_BYTES`."""
    return UnusableError(f"line longer than {LINE_BYTES >> 20} MiB")
