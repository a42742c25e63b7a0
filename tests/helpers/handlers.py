"""Handlers for child processes under test: what children import."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Handler = Callable[[int], int]


def times(factor: int) -> Handler:
    """Multiplies, after a while that differs from job to job."""

    def handle(job: int) -> int:
        time.sleep(random.random() / 100)
        return factor * job

    return handle


def noisy(_: None) -> Handler:
    """Prints to wherever a library may."""

    def handle(job: int) -> int:
        print("a stray print", flush=True)  # noqa: T201 - must not reach the parent
        sys.stdout.buffer.write(b"\x80\x04")
        sys.stdout.flush()
        os.write(1, b"and one below Python")
        return job

    return handle


def failing(words: str) -> Handler:
    """Fails on even jobs, in words that nobody may see."""

    def handle(job: int) -> int:
        if job % 2 == 0:
            raise LookupError(words)
        return job

    return handle


def broken(words: str) -> Handler:
    """Cannot even start."""
    raise EOFError(words)


def unanswerable(_: None) -> Callable[[int], Iterator[int]]:
    """Gives what cannot be sent."""
    return lambda job: (number for number in range(job))


def suicidal(code: int | None) -> Handler:
    """Ends the process in the middle of a job: with a code, or by a signal."""

    def handle(job: int) -> int:
        if code is None:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(code or 0)

    return handle


def interrupted(_: None) -> Handler:
    """Gets what Ctrl-C sends to all processes of a terminal, and answers nevertheless."""

    def handle(job: int) -> int:
        signal.raise_signal(signal.SIGINT)
        return job

    return handle


def which(_: None) -> Handler:
    """Says which process works, after some work."""

    def handle(_: int) -> int:
        time.sleep(0.01)
        return os.getpid()

    return handle


def marking(folder: Path) -> Handler:
    """Leaves a file a job; all but job 0 wait for a file `go`."""

    def handle(job: int) -> int:
        while job and not (folder / "go").exists():
            time.sleep(0.01)
        (folder / str(job)).touch()
        return job

    return handle


class Unloadable:
    """Can be sent, but not received."""

    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("a canary",)
