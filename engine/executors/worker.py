"""A thread that makes calls one after the other, and can be given up on.

    open -> closed (what was asked for has been done) | failed (every open and every later call raises)

concurrent.futures would wait at exit for a call that never returns, which a collective with a dead rank on a
GPU is; this thread dies with the process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Worker:
    """Calls run in the order submitted, on one thread. `start` runs on it first."""

    def __init__(self, name: str, start: Callable[[], None]) -> None:
        self._inbox: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(start,), name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue a call; the future carries its result or what it raised."""
        future: Future[T] = Future()
        with self._lock:
            if self._failure is not None:
                future.set_exception(self._failure)
                return future
            self._open.add(future)
        self._inbox.put((future, call))
        return future

    def fail(self, error: BaseException) -> None:
        """Every open call, the one that runs included, and every later one raises `error`."""
        with self._lock:
            self._failure = self._failure or error
            for future in self._open:
                future.set_exception(self._failure)
            self._open.clear()

    def close(self) -> None:
        """Wait for what was submitted; not for a call that was given up on."""
        self._inbox.put(None)
        if self._failure is None:
            self._thread.join()

    def _run(self, start: Callable[[], None]) -> None:
        start()
        while (job := self._inbox.get()) is not None:
            future, call = job
            try:
                result = call()
            except BaseException as error:  # the caller's, whatever it is
                if self._settles(future):
                    future.set_exception(error)
            else:
                if self._settles(future):
                    future.set_result(result)

    def _settles(self, future: Future[Any]) -> bool:
        """Whether this future is still the thread's to settle, which it then is no longer."""
        with self._lock:
            if future not in self._open:
                return False
            self._open.remove(future)
            return True
