"""Start the bundled engine as a process of this machine, and stop it.

    starting (waits for the ready line) -> ready -> stopped (exit status known)
                                        -> dead: MachineError with the engine's own words

Owns the process of the router, which starts those of the instances: its own group, so that a Ctrl-C in the
terminal reaches only the advisor, which drains; ended with SIGTERM, then SIGKILL; told our process id, so that
it ends itself if we die. Owns the folder of its files, which instances that start again read too. Never uses a
shell.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self, cast

import msgspec

import engine
from engine.config import EngineConfig
from engine.config_file import config_text
from engine.emulation import Emulation, emulation_text
from engine.errors import AdviseError, InputError, MachineError

START_TIMEOUT_S = 180.0
EMULATION_NAME = "emulation.yaml"
KILL_AFTER_S = 10.0  # past the drain, an engine that still runs hangs

_ENGINE_EXTRA = "pip install 'advise[engine]'"
_NEEDED = ("torch", "safetensors", "starlette", "uvicorn", "prometheus_client", "tokenizers")
_TO_COMPUTE = ("torch", "safetensors")
_TAIL_LINES, _TAIL_BYTES = 8, 4096
# What an engine's process may see of our environment: where programs and caches are, library settings, secrets.
_ENVIRONMENT = frozenset(
    {
        *("PATH", "HOME", "USERPROFILE", "LOCALAPPDATA", "SYSTEMROOT", "TMPDIR", "TEMP", "TMP", "LANG"),
        *("VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "ADVISE_API_KEY", "ADVISE_KV_SECRET"),
    }
)
_PREFIXES = (
    *("LC_", "XDG_", "PYTHON", "OMP_", "MKL_", "KMP_", "GOMP_", "ONEDNN_", "TORCH", "HF_"),
    *("CUDA_", "NVIDIA_", "NCCL_", "TRITON_"),
)
Load = Literal["auto", "dummy"]
"""The model's weights, or random ones of its shape."""


class InstanceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One instance in the ready line: `name` is like `decode-1`, `kv_tokens` what its cache holds."""

    name: str
    role: str
    pid: int
    devices: tuple[str, ...]
    dtype: str
    kv_tokens: int


class Emulated(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine without devices stands for; its clock is `time_scale` times slower than that of `gpu`."""

    gpu: str
    time_scale: float = 1.0


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's ready line. `max_len` and `kv_tokens_*` (of one instance) in tokens; `note` is for users.

    `pid` is the router's. `transport` moves KV between instances; None: nothing has to.
    """

    url: str
    model: str
    dtype: str
    devices: tuple[str, ...]
    threads: int
    max_len: int
    vocab_size: int
    kv_tokens_planned: int
    kv_tokens_actual: int
    load_seconds: float
    pid: int
    fault: str | None = None
    note: str | None = None
    instances: tuple[InstanceInfo, ...] = ()
    transport: str | None = None
    oversubscribed: bool = False
    emulated: Emulated | None = None

    @property
    def pids(self) -> dict[str, int]:
        """The engine's processes by name."""
        return {"router": self.pid, **{one.name: one.pid for one in self.instances}}


def engine_argv(
    config_path: Path,
    *,
    port: int | None = None,
    step_log: Path | None = None,
    request_log: Path | None = None,
    fault: str | None = None,
    load: Load = "auto",
    emulate: Path | None = None,
    oversubscribe: bool = False,
    program: Sequence[str] = (),
) -> list[str]:
    """The command that starts an engine. `program` replaces the bundled server: tests run without a model."""
    # -P keeps the current folder off the import path: a folder named `engine` there must not be what runs.
    argv = [*(program or (sys.executable, "-P", "-m", "engine.server")), "--config", str(config_path)]
    valued = {
        "--port": port,
        "--step-log": step_log,
        "--request-log": request_log,
        "--fault": fault,
        "--emulate": emulate,
    }
    for flag, value in valued.items():
        if value is not None:
            argv += [flag, str(value)]
    if load != "auto":
        argv += ["--load", load]
    return [*argv, "--oversubscribe"] if oversubscribe else argv


class RunningEngine:
    """An engine process that is ready. Use it as a context manager: leaving stops it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        info: EngineInfo,
        talk: _Talk,
        scratch: tempfile.TemporaryDirectory[str],
        grace_s: float,
    ) -> None:
        self._process = process
        self._talk = talk
        self._scratch = scratch
        self._grace_s = grace_s
        self.info = info

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.info.url

    @property
    def exit_status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def tail(self) -> str:
        """The last lines of its talk: why it died, where it did."""
        return self._talk.tail()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for it to end by itself; its exit status, or None after `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def stop(self, grace_s: float | None = None) -> int:
        """SIGTERM, then SIGKILL after `grace_s` (default: the drain time and a margin); the exit status."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            status = self.wait(self._grace_s if grace_s is None else grace_s)
            return _kill(self._process) if status is None else status
        except BaseException:  # a second Ctrl-C: no more patience
            _kill(self._process)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self._talk.close()
            self._scratch.cleanup()


class _Talk:
    """Where an engine's stderr goes: a file of the caller's, or a temporary one."""

    def __init__(self, path: Path | None) -> None:
        # Open for as long as the engine talks, which is longer than any block here.
        self.file = tempfile.TemporaryFile() if path is None else path.open("w+b")  # noqa: SIM115

    def tail(self) -> str:
        # The engine writes through a descriptor of its own that shares this one's offset: read by position.
        size = os.fstat(self.file.fileno()).st_size
        start = max(0, size - _TAIL_BYTES)
        text = os.pread(self.file.fileno(), size - start, start).decode(errors="replace")
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def close(self) -> None:
        self.file.close()


def start_engine(
    config: EngineConfig,
    *,
    port: int | None = None,
    step_log: Path | None = None,
    request_log: Path | None = None,
    fault: str | None = None,
    log_file: Path | None = None,
    timeout_s: float = START_TIMEOUT_S,
    load: Load = "auto",
    emulation: Emulation | None = None,
    oversubscribe: bool = False,
    program: Sequence[str] = (),
) -> RunningEngine:
    """Start an engine and wait until it serves. Its talk goes to `log_file`, or is kept for `tail`.

    With an `emulation` its instances sleep instead of computing. Raises the engine's own InputError or
    MachineError where it could not start, with the end of its talk as the reason where it gave none. The model
    has to be on this machine (`engine.fetch`).
    """
    require_engine_extra(emulated=emulation is not None)
    talk = _Talk(log_file)
    scratch = tempfile.TemporaryDirectory(prefix="advise-engine-")
    try:
        argv = engine_argv(
            _written(config, Path(scratch.name)),
            port=port,
            step_log=step_log,
            request_log=request_log,
            fault=fault,
            load=load,
            emulate=None if emulation is None else _emulation_file(emulation, Path(scratch.name)),
            oversubscribe=oversubscribe,
            program=program,
        )
        process, info = _started(argv, talk, timeout_s)
    except BaseException:
        talk.close()
        scratch.cleanup()
        raise
    return RunningEngine(process, info, talk, scratch, config.server.drain_s + KILL_AFTER_S)


def _written(config: EngineConfig, folder: Path) -> Path:
    path = folder / "engine.yaml"
    path.write_text(config_text(config), encoding="utf-8")
    return path


def _emulation_file(emulation: Emulation, folder: Path) -> Path:
    path = folder / EMULATION_NAME
    path.write_text(emulation_text(emulation), encoding="utf-8")
    return path


def _started(argv: Sequence[str], talk: _Talk, timeout_s: float) -> tuple[subprocess.Popen[bytes], EngineInfo]:
    """Start the process and read its ready line; one that gives none is killed."""
    process = subprocess.Popen(
        [*argv, "--parent-pid", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=talk.file,
        env=engine_environment(),
        start_new_session=True,
    )
    stdout = cast(IO[bytes], process.stdout)
    try:
        return process, _ready(_first_line(stdout, timeout_s), process, talk, timeout_s)
    except BaseException:
        _kill(process)
        raise
    finally:
        stdout.close()


def _first_line(stdout: IO[bytes], timeout_s: float) -> bytes:
    """The line that the engine prints when it is ready or gives up; empty after `timeout_s` or at its death."""
    lines: list[bytes] = []
    # A thread, because only so a read of a pipe has a timeout everywhere; the engine's death ends it.
    reader = threading.Thread(target=lambda: lines.append(stdout.readline()), name="engine-ready", daemon=True)
    reader.start()
    reader.join(timeout_s)
    return lines[0] if lines else b""


def _ready(line: bytes, process: subprocess.Popen[bytes], talk: _Talk, timeout_s: float) -> EngineInfo:
    """Understand the ready line. Raises the error that took its place."""
    if line:
        words = msgspec.json.decode(line)
        if "error" in words:
            raise _error(words["error"])
        return msgspec.convert(words, EngineInfo)
    status: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(1)
    message = f"the engine died while it started (exit status {status})"
    if status is None:
        message = f"the engine was not ready after {timeout_s:g} s"
    raise MachineError(message, why=talk.tail() or "it said nothing", hint="advise calibrate --quick")


def _error(words: dict[str, Any]) -> AdviseError:
    kind = InputError if words["exit_code"] == InputError.exit_code else MachineError
    return kind(words["message"], where=words["where"], why=words["why"], hint=words["hint"])


def _kill(process: subprocess.Popen[bytes]) -> int:
    """SIGKILL the process and its group; the exit status."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def require_engine_extra(*, emulated: bool = False) -> None:
    """Raises MachineError with the install line where the engine's libraries are missing.

    One that is emulated needs none to compute with.
    """
    needed = [name for name in _NEEDED if not (emulated and name in _TO_COMPUTE)]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        why = f"{', '.join(missing)} not installed"
        raise MachineError("the bundled engine is not installed", why=why, hint=_ENGINE_EXTRA)


def engine_environment() -> dict[str, str]:
    """The allowed part of our environment, and the folder that `engine` is imported from."""
    allowed = {k: v for k, v in os.environ.items() if k in _ENVIRONMENT or k.startswith(_PREFIXES)}
    home = str(Path(engine.__path__[0]).parent)
    allowed["PYTHONPATH"] = os.pathsep.join(filter(None, [home, allowed.get("PYTHONPATH")]))
    return allowed
