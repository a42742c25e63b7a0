"""Processes that read pieces of a log: how they are started, fed, and always ended.

Owns the processes and the pipes to them. A process gets the setup once, then pieces, and answers each with its
harvests: numbers, names and counts, no text. It is a plain child with nothing of the caller's program in it (no
fork, no import of its main module), so that it works from scripts, notebooks and tests, on every system. It
ends when its input does, so none outlives this process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from advisor.logs.csv_rows import CsvPiece
from advisor.logs.parse import Parsed, Setup
from advisor.logs.pieces import Piece
from advisor.logs.text import Unit
from engine.errors import MachineError
from engine.host import usable_cores

MOST_PROCESSES = 8
_MAIN = "from advisor.logs.worker import main; main()"
_AHEAD = 2  # pieces a process that are cut before they are needed
_PATIENCE_S = 5.0
# glibc would give the memory of every piece back to the system and fetch it anew: a sixth of the time.
_KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(256 << 20), "MALLOC_MMAP_THRESHOLD_": str(256 << 20)}


@dataclass(frozen=True, slots=True, repr=False)
class Job:
    """One piece for a process. `source` is the number of its file, `text` says that its lines are not JSON."""

    piece: Piece | CsvPiece
    source: int
    text: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """The answer of a process in which the program failed: the kind of error and where, without any value."""

    kind: str
    places: tuple[str, ...]


def process_count(wanted: int | None) -> int:
    """How many processes read a large log; `wanted` is what the caller says."""
    return min(usable_cores(), MOST_PROCESSES) if wanted is None else wanted


class Workers:
    """Processes that read pieces of one log. Leaving the context ends them; an error ends them at once."""

    def __init__(self, setup: Setup, unit: Unit, count: int) -> None:
        hello = pickle.dumps((setup, unit), protocol=pickle.HIGHEST_PROTOCOL)
        self._workers: list[_Worker] = []
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="read-log")
        try:
            for _ in range(count):
                self._workers.append(_Worker(hello))
        except OSError as error:
            self._end(at_once=True)
            why, hint = error.strerror or type(error).__name__, "free some memory or processes"
            raise MachineError("cannot start a process to read the log", why=why, hint=hint) from None
        for worker in self._workers:
            self._idle.put(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(at_once=kind is not None)

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The processes, which may have ended."""
        return [worker.process for worker in self._workers]

    def map(self, jobs: Iterable[Job]) -> Iterator[Parsed]:
        """What each job gave, in order. Raises MachineError where a process dies."""
        waiting: deque[Future[Parsed]] = deque()
        for job in jobs:
            waiting.append(self._threads.submit(self._run, job))
            if len(waiting) > _AHEAD * len(self._workers):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _run(self, job: Job) -> Parsed:
        worker = self._idle.get()
        try:
            return worker.ask(job)
        finally:
            self._idle.put(worker)

    def _end(self, *, at_once: bool) -> None:
        if at_once:
            for worker in self._workers:
                worker.process.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.end()


class _Worker:
    """One process, which answers one job at a time."""

    def __init__(self, hello: bytes) -> None:
        self._hello: bytes | None = hello
        paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | _KEEP_MEMORY | {"PYTHONPATH": paths},
        )

    def ask(self, job: Job) -> Parsed:
        """What a piece gave."""
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise ValueError("a worker has pipes")
        try:
            if self._hello is not None:
                stdin.write(self._hello)
                self._hello = None
            pickle.dump(job, stdin, protocol=pickle.HIGHEST_PROTOCOL)
            stdin.flush()
            answer: Any = pickle.load(stdout)  # noqa: S301 - of our own child
        except (OSError, EOFError, pickle.UnpicklingError):
            code = self.process.wait()
            why = f"it was ended by signal {-code}" if code < 0 else f"it ended with code {code}"
            hint = "free some memory, or read a part of the log: --log-share 1/8"
            raise MachineError("a process that reads the log ended early", why=why, hint=hint) from None
        if isinstance(answer, Failure):
            raise RuntimeError(f"{answer.kind} in a process that reads the log: {' < '.join(answer.places)}")
        parsed: Parsed = answer
        return parsed

    def end(self) -> None:
        """Close the pipes and wait; a process that does not end by that is killed."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unsent bytes of a process that is gone
                    pipe.close()
        try:
            self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
