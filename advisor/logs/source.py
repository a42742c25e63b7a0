"""Opening logs: files, folders and standard input, plain, gzip or zstd, as chunks of bytes.

Owns finding the files, decompression by magic bytes and progress in bytes as stored. It holds one chunk at a
time and never looks inside.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from advisor.logs.parquet import MAGIC, parquet_lines
from advisor.logs.record import UnusableError
from engine.errors import InputError

CHUNK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_DAMAGE = (EOFError, OSError, zlib.error, ValueError)

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Source:
    """One thing to read. `path` is None for standard input; `name` is for messages."""

    name: str
    path: Path | None
    size: int  # bytes as stored; 0 where unknown


class Meter:
    """Bytes read so far over all sources, told to `progress(done, total)`; total is 0 where unknown."""

    def __init__(self, sources: Sequence[Source], progress: Progress | None) -> None:
        known = all(source.path is not None for source in sources)
        self._total = sum(source.size for source in sources) if known else 0
        self._progress = progress
        self.done = 0  # to be set back where bytes are read again
        self._told = 0

    def add(self, count: int) -> None:
        """Count `count` more bytes."""
        self.done += count
        if self._progress is not None and self.done >= self._told:
            self._told = self.done
            self._progress(self.done, self._total)


def find_sources(paths: Sequence[str | Path]) -> list[Source]:
    """The files behind `paths`, those of a folder in the order of their names. Raises InputError."""
    sources: list[Source] = []
    for given in paths:
        path = Path(given)
        if str(given) == "-":
            sources.append(Source("standard input", None, 0))
        elif path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file() and not _hidden(file, path))
            if not inside:
                raise InputError("the folder has no files", where=str(given), hint="advise analyze FILE...")
            sources += [Source(str(file), file, file.stat().st_size) for file in inside]
        elif path.exists():
            sources.append(Source(str(given), path, path.stat().st_size))
        else:
            raise InputError("no such log", where=str(given), hint=f"ls {path.parent}")
    if not sources:
        raise InputError("no log given", hint="advise analyze LOG")
    return sources


def read_chunks(source: Source, meter: Meter) -> Iterator[bytes]:
    """The decompressed content, a chunk at a time. Raises UnusableError where compressed data is damaged."""
    with _open(source) as raw, io.BufferedReader(_Counted(raw, meter), CHUNK_BYTES) as stored:
        magic = stored.peek(4)[:4]
        if magic == MAGIC:
            left = max(0, source.size - len(stored.peek()))
            yield from parquet_lines(source.path, stored, left, meter.add)
            return
        stream: Any = stored
        if magic.startswith(_GZIP):
            stream = gzip.GzipFile(fileobj=stored)
        elif magic == _ZSTD:
            stream = _zstd().ZstdFile(stored)
        held = bytearray()
        try:
            while part := stream.read1(CHUNK_BYTES):
                held += part
                if len(held) >= CHUNK_BYTES:
                    yield bytes(held)
                    held.clear()
        except Exception as error:
            # The module of ZstdError depends on the Python version.
            if not isinstance(error, _DAMAGE) and type(error).__name__ != "ZstdError":
                raise
            if held:  # what came before the damage
                yield bytes(held)
            raise UnusableError("compressed data is damaged or ends early") from error
        if held:
            yield bytes(held)


def is_plain(source: Source) -> bool:
    """Whether a source is a file that lies there as it is, so that any part of it can be read at any time."""
    if source.path is None or not source.path.is_file():
        return False
    with _open(source) as raw:
        magic = raw.read(4)
    return not magic.startswith(_GZIP) and magic not in (_ZSTD, MAGIC)


def content_size(source: Source, most: int) -> int:
    """Bytes of content as far as `most`; what is stored compressed is decompressed to know."""
    if source.path is None:
        return 0
    with _open(source) as raw:
        magic = raw.read(4)
    if not (magic.startswith(_GZIP) or magic == _ZSTD):
        return source.size
    size = 0
    with contextlib.suppress(UnusableError):
        for chunk in read_chunks(source, Meter((), None)):
            size += len(chunk)
            if size >= most:
                break
    return size


def larger_than(
    most: int, sources: Sequence[Source], streams: Sequence[Iterator[bytes]]
) -> tuple[bool, list[Iterator[bytes]]]:
    """Whether a log has more than `most` bytes of content, and its streams; the start of stdin is held."""
    left = most
    whole = list(streams)
    for index, source in enumerate(sources):
        if source.path is None:
            start, whole[index] = _read_ahead(streams[index], left)
            left -= start
        else:
            left -= content_size(source, left + 1)
        if left < 0:
            return True, whole
    return False, whole


def _read_ahead(stream: Iterator[bytes], most: int) -> tuple[int, Iterator[bytes]]:
    """How much a stream has, as far as `most`, and the same stream."""
    start: list[bytes] = []
    size = 0
    try:
        for chunk in stream:
            start.append(chunk)
            size += len(chunk)
            if size > most:
                break
    except UnusableError as error:
        return size, itertools.chain(start, _raise(error))
    return size, itertools.chain(start, stream)


def _raise(error: UnusableError) -> Iterator[bytes]:
    raise error
    yield b""


class _Counted(io.RawIOBase):
    """A raw stream that reports what passes."""

    def __init__(self, raw: IO[bytes], meter: Meter) -> None:
        super().__init__()
        self._raw = raw
        self._meter = meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count: int = self._raw.readinto(buffer) or 0  # type: ignore[attr-defined]  # raw files have it
        self._meter.add(count)
        return count


def _open(source: Source) -> IO[bytes]:
    if source.path is None:
        return io.FileIO(sys.stdin.fileno(), closefd=False)
    try:
        return source.path.open("rb", buffering=0)
    except OSError as error:
        raise InputError(
            "cannot open the log", where=source.name, why=error.strerror, hint=f"ls -l {source.name}"
        ) from None


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)
