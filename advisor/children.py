"""Child processes that work on jobs: how they are started, fed, and always ended.

Owns the processes and the pipes to them; what a job is belongs to others. A child gets the setup once, then
jobs, and answers each. It is a plain child with nothing of the caller's program in it (no fork, no import of
its main module), so that it works from scripts, notebooks and tests, on every system. It ends when its input
does, so none outlives this process, however that ends. Whatever fails in it is told by kind and place only: the
words of an error may quote what it worked on.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Any, Generic, Self, TypeVar

from engine.errors import MachineError
from engine.host import usable_cores

Setup = TypeVar("Setup")
Job = TypeVar("Job")
Answer = TypeVar("Answer")

MOST_PROCESSES = 8
_MAIN = "from advisor.children import serve; serve()"
_AHEAD = 2  # jobs a process that are taken before they are needed
_PATIENCE_S = 5.0
_ENVIRONMENT = {
    # glibc would give the memory of every job back to the system and fetch it anew: a sixth of the time.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "OPENBLAS_NUM_THREADS": "1",  # there is a process for each core already
}


@dataclass(frozen=True, slots=True)
class _Failure:
    """The answer of a process in which the program failed: the kind of error and where, without any value."""

    kind: str
    places: tuple[str, ...]


def process_count(wanted: int | None) -> int:
    """How many processes work on something large; `wanted` is what the caller says."""
    return min(usable_cores(), MOST_PROCESSES) if wanted is None else wanted


class Children(Generic[Job, Answer]):
    """Processes that work on jobs. Leaving the context ends them; an error ends them at once.

    Each calls `factory(setup)` once, and what that gives with every job it gets, whose answer must not depend
    on the jobs before. `factory` is a function of a module that a child can import; `setup`, jobs and answers
    can be pickled. With a `count` below two there is no child: this process works, and errors are its own.
    `purpose` ends the words "a process that ..." of errors; `hint` says what to do where one is killed.
    """

    def __init__(
        self,
        factory: Callable[[Setup], Callable[[Job], Answer]],
        setup: Setup,
        count: int,
        *,
        purpose: str,
        hint: str,
    ) -> None:
        self._purpose, self._hint = purpose, hint
        self._handle = factory(setup) if count < 2 else None
        self._children: list[_Child] = []
        self._idle: SimpleQueue[_Child] = SimpleQueue()
        self._threads = ThreadPoolExecutor(max(count, 1), thread_name_prefix="children")
        if self._handle is not None:
            return
        hello = pickle.dumps((factory, setup), protocol=pickle.HIGHEST_PROTOCOL)
        try:
            for _ in range(count):
                self._children.append(_Child(hello))
        except BaseException as error:
            self._end(at_once=True)
            if not isinstance(error, OSError):
                raise
            why, hint = error.strerror or type(error).__name__, "free some memory or processes"
            raise MachineError(f"cannot start a process that {purpose}", why=why, hint=hint) from None
        for child in self._children:
            self._idle.put(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(at_once=kind is not None)

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The processes, which may have ended."""
        return [child.process for child in self._children]

    def map(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """What each job gave, in order; few jobs are taken before they are needed.

        Raises MachineError where a process dies, RuntimeError where the program fails in one.
        """
        if self._handle is not None:
            yield from map(self._handle, jobs)
            return
        waiting: deque[Future[Answer]] = deque()
        try:
            for job in jobs:
                waiting.append(self._threads.submit(self._run, job))
                if len(waiting) > _AHEAD * len(self._children):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def _run(self, job: Job) -> Answer:
        child = self._idle.get()
        try:
            answer: Any = child.ask(job)
        except (OSError, EOFError, pickle.UnpicklingError):
            code = child.process.wait()
            why = f"it was ended by signal {-code}" if code < 0 else f"it ended with code {code}"
            message = f"a process that {self._purpose} ended early"
            raise MachineError(message, why=why, hint=self._hint) from None
        finally:
            self._idle.put(child)
        if isinstance(answer, _Failure):
            places = " < ".join(answer.places)
            raise RuntimeError(f"{answer.kind} in a process that {self._purpose}: {places}")
        given: Answer = answer
        return given

    def _end(self, *, at_once: bool) -> None:
        if at_once:
            for child in self._children:
                child.process.kill()
        self._threads.shutdown(cancel_futures=True)
        for child in self._children:
            child.end()


class _Child:
    """One process, which answers one job at a time."""

    def __init__(self, hello: bytes) -> None:
        self._hello: bytes | None = hello
        paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | _ENVIRONMENT | {"PYTHONPATH": paths},
        )

    def ask(self, job: object) -> object:
        """What a job gave. Raises OSError, EOFError or UnpicklingError where the process has ended."""
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise ValueError("a child has pipes")
        with contextlib.suppress(OSError):  # of a process that is gone, which may have said why
            if self._hello is not None:
                stdin.write(self._hello)
                self._hello = None
            pickle.dump(job, stdin, protocol=pickle.HIGHEST_PROTOCOL)
            stdin.flush()
        return pickle.load(stdout)  # noqa: S301 - of our own child

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


def serve() -> None:
    """The main function of a child: answers jobs on standard input until it ends."""
    gc.set_threshold(100_000)  # what jobs make comes and goes by the thousand, and little refers to itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end ends the input
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print must not end up among the answers
    jobs = sys.stdin.buffer
    try:
        factory, setup = _next(jobs)
        handle = factory(setup)
        while True:
            _send(answers, _answer(handle, _next(jobs)))
    except Exception as error:  # what was sent cannot be understood, so neither can what follows
        _send(answers, pickle.dumps(_failure(error)))
        os._exit(1)


def _next(jobs: IO[bytes]) -> Any:
    try:
        return pickle.load(jobs)  # noqa: S301 - of our own parent
    except (EOFError, OSError, pickle.UnpicklingError):
        os._exit(0)  # the parent is done, or gone: nothing is left to close


def _send(answers: IO[bytes], answer: bytes) -> None:
    try:
        answers.write(answer)
        answers.flush()
    except OSError:
        os._exit(0)  # the parent is gone


def _answer(handle: Callable[[Any], object], job: object) -> bytes:
    try:
        return pickle.dumps(handle(job), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps(_failure(error))


def _failure(error: Exception) -> _Failure:
    frames = traceback.extract_tb(error.__traceback__)
    places = tuple(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
    return _Failure(type(error).__name__, places)
