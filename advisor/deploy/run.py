"""run.json: what `advise launch` has running, for the commands that come after it.

Owns the file in the output folder: written (mode 0600) when the engine is ready, removed when it ends. A file
that a killed launch left behind is recognised by its launcher being gone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.errors import MachineError

FILE_NAME = "run.json"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One running launch. `pids` by name: `launcher`, `router`, `decode-1`; of an instance that died meanwhile
    the pid is old, /health has the new one. `plan_digest` None: no plan."""

    url: str
    pids: dict[str, int]
    plan_digest: str | None = None


@contextlib.contextmanager
def run_file(folder: Path, run: Run) -> Iterator[Path]:
    """Keep `run` in `folder`/run.json while the block runs. Raises MachineError where another launch lives."""
    path = folder / FILE_NAME
    refuse_second(folder)
    scratch = folder / f".{FILE_NAME}.{os.getpid()}"
    # Created with its final mode, then renamed: nobody ever reads half a file, or one with wider permissions.
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(run) + b"\n")
    scratch.replace(path)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def read_run(folder: Path) -> Run | None:
    """The launch that lives in `folder`; None without one."""
    try:
        run = msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=Run)
    except (OSError, msgspec.DecodeError):
        return None
    pid = run.pids.get("launcher")
    return run if pid and _alive(pid) else None


def refuse_second(folder: Path) -> None:
    """Raise MachineError if a launch from `folder` is running already."""
    run = read_run(folder)
    if run is not None:
        why, pid = f"it serves {run.url}", run.pids["launcher"]
        raise MachineError("a launch from this folder runs", where=str(folder), why=why, hint=f"kill {pid}")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
