"""The files that a recorder writes: one process a file, readable by its owner only, a new one when full.

`trace.jsonl` is taken by the first that can create it; every later file, of this process after a day or at its
size limit, of another worker or of the next run, is `trace-1.jsonl`, `trace-2.jsonl` and so on.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

_DAY_NS = 86_400 * 10**9
_MOST_FILES = 100_000
_encode = msgspec.json.Encoder().encode


class TraceFiles:
    """Appends rows. `most_bytes` and `daily` (UTC) say when a new file begins."""

    def __init__(self, path: str | Path, most_bytes: int, daily: bool) -> None:
        self._path = Path(path)
        self._most_bytes = most_bytes
        self._daily = daily
        self._descriptor: int | None = None
        self._size = 0
        self._day = 0

    def append(self, row: dict[str, object], now_ns: int) -> None:
        """Write a row at once. Raises OSError."""
        data = _encode(row) + b"\n"
        day = now_ns // _DAY_NS
        full = self._size > 0 and self._size + len(data) > self._most_bytes
        if self._descriptor is None or full or (self._daily and day != self._day):
            self.close()
            self._descriptor = self._create()
            self._size, self._day = 0, day
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self._size += len(data)

    def close(self) -> None:
        """Close the file; the next rows begin another one."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _create(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for number in range(_MOST_FILES):
            name = f"{self._path.stem}-{number}{self._path.suffix}" if number else self._path.name
            try:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
                return os.open(self._path.with_name(name), flags, 0o600)
            except FileExistsError:
                continue
        raise OSError(f"more than {_MOST_FILES} trace files")
