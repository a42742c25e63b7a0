"""The thread between a service and the trace file: it makes rows and writes them, and never gets in the way.

Owns the queue, the counts of what was lost and why, and the promise to fail open: `put` neither raises nor
waits, and whatever goes wrong in the thread costs rows, a count and one warning.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from advisor.logs.record import UnusableError
from advisor.logs.recorder.exchange import Exchange
from advisor.logs.recorder.files import TraceFiles
from advisor.logs.recorder.rows import Row, Rows
from advisor.logs.text import TextEncoder

QUEUE_BYTES = 64 << 20
_log = logging.getLogger("advise.recorder")


class TraceWriter:
    """Takes exchanges from any thread; rows are made and written in one of its own.

    The first exchange starts a run: ids, a secret and a file of its own. `close` ends it, and a forked worker
    begins with none.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        tokenizer: TextEncoder | None = None,
        most_units: int = 2_000_000,
        most_file_bytes: int = 256 << 20,
        daily: bool = True,
    ) -> None:
        def begin() -> _Run:
            rows = Rows(
                tokenizer,
                most_units=most_units,
                secret=secrets.randbits(62),
                name=f"run-{secrets.token_hex(4)}",
            )
            return _Run(rows, TraceFiles(path, most_file_bytes, daily), self._counts, self.lose)

        self._begin: Callable[[], _Run] = begin
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._counts: Counter[str] = Counter()
        self._warned = False
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    @property
    def counts(self) -> dict[str, int]:
        """Rows written (`recorded`) and requests that left none, by reason."""
        return dict(self._counts)

    def put(self, exchange: Exchange) -> None:
        """Hand over an exchange. Never raises, never waits for the disk."""
        try:
            with self._lock:
                if self._run is None or not self._run.alive:
                    self._run = self._begin()
                self._run.put(exchange)
        except Exception as error:
            self.lose(error)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left and stop; the next exchange starts another run."""
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            run.close(timeout_s)

    def skip(self, reason: str) -> None:
        """Count a request that is none to record."""
        self._counts[reason] += 1

    def lose(self, error: Exception) -> None:
        """Count a request that could not be recorded; the first time, say so. Its text is in no message."""
        self._counts[f"error: {type(error).__name__}"] += 1
        if not self._warned:
            self._warned = True
            _log.warning("requests are served but not recorded: %s", type(error).__name__)

    def _forget(self) -> None:
        """In a forked child: the thread is not here, and the lock may be held by one that is not either."""
        self._lock = threading.Lock()
        self._run = None
        self._counts.clear()


class _Run:
    """One thread, one file at a time, one numbering of blocks."""

    def __init__(
        self, rows: Rows, files: TraceFiles, counts: Counter[str], lose: Callable[[Exception], None]
    ) -> None:
        self._rows = rows
        self._files = files
        self._counts = counts
        self._lose = lose
        self._queue: queue.SimpleQueue[Exchange | None] = queue.SimpleQueue()
        self._queued = 0  # bytes in the queue, both ways under the lock
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="advise-recorder", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def put(self, exchange: Exchange) -> None:
        with self._lock:
            if self._queued + exchange.size > QUEUE_BYTES:
                self._counts["the recorder could not keep up"] += 1
                return
            self._queued += exchange.size
        self._queue.put(exchange)

    def close(self, timeout_s: float) -> None:
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while (exchange := self._queue.get()) is not None:
            with self._lock:
                self._queued -= exchange.size
            try:
                self._write(self._rows.make(exchange))
            except UnusableError as error:
                self._counts[error.reason] += 1
            except Exception as error:  # whatever it is, the service goes on
                self._lose(error)
        self._files.close()

    def _write(self, row: Row) -> None:
        try:
            self._files.append(row, time.time_ns())
        except OSError as error:
            self._counts["not written"] += 1
            self._lose(error)
        else:
            self._counts["recorded"] += 1
