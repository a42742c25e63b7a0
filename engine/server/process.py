"""The life of a server process: bind, load, serve, drain, exit.

    bind -> load -> ready (one JSON line on stdout) -> draining (SIGTERM, SIGINT) -> exit 0
                                                    -> failed (the engine raised)  -> exit 5
    parent gone, or a second signal                 -> what runs is aborted at once

Owns the socket, the signals and the watch on the parent. It never retries and never restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine import __version__
from engine.config import EngineConfig, ServerConfig
from engine.config_file import read_config
from engine.core import EngineCore
from engine.errors import AdviseError, InputError, MachineError
from engine.host import usable_cores
from engine.launchable import why_not_launchable
from engine.server.app import Api
from engine.server.backend import Backend
from engine.server.choices import Served
from engine.server.connection import MAX_CONNECTIONS, HttpServer
from engine.server.faults import SlowSteps, slow_factor
from engine.server.guard import is_loopback
from engine.server.loop import EngineLoop
from engine.server.metrics import Metrics
from engine.server.observer import Observer
from engine.server.step_log import StepLog

API_KEY_VARIABLE = "ADVISE_API_KEY"
_log = logging.getLogger(__name__)
_PARENT_POLL_S = 0.25
_KV_TOLERANCE = 0.05
_CLOSE_S = 5  # what the server gets to end by itself once its parent is gone
# The engine's thread takes the interpreter lock hundreds of times a step; at the default 5 ms each wait for the
# event loop's thread could cost it that much.
_SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True)
class Options:
    """What belongs to one run and not to the configuration."""

    port: int | None = None
    step_log: Path | None = None
    fault: str | None = None
    parent_pid: int | None = None


def serve(config_file: Path, load: Callable[[EngineConfig], Backend], options: Options) -> int:
    """Run a server until it is told to stop; returns the exit status.

    Prints one JSON line on stdout: the ready line, or `{"error": {...}}` where it could not start.
    """
    _watch_parent(options.parent_pid)
    _allow_open_files(2 * MAX_CONNECTIONS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        config = _read(config_file, options.port)
        check(config)
        slow_factor(options.fault)  # a wrong one is refused now, not once the model has loaded
        with _bound(config.server) as listener:
            started = time.monotonic()
            backend = load(config)
            server = _Server(config, backend, options, listener, time.monotonic() - started)
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                return runner.run(server.run())
    except AdviseError as error:
        _say({"error": {**_words(error), "exit_code": error.exit_code}})
        return error.exit_code


def _read(path: Path, port: int | None) -> EngineConfig:
    config = read_config(path)
    if port is None:
        return config
    return config.model_copy(update={"server": config.server.model_copy(update={"port": port})})


def check(config: EngineConfig) -> None:
    """Refuse at once what cannot run. Raises MachineError, InputError."""
    why = why_not_launchable(config)
    if why is not None:
        hint = "advise analyze LOG --here"
        raise MachineError("the bundled engine cannot launch this", why=why, hint=hint)
    devices, cores = config.pools[0].devices_per_instance, usable_cores()
    if devices > cores:
        raise MachineError(
            f"an instance of {devices} devices does not fit",
            where="pools.0.devices_per_instance",
            why=f"this machine lets us use {cores} cores, and one core is one device",
            hint=f"devices_per_instance: {cores}",
        )
    if not is_loopback(config.server.host) and not os.environ.get(API_KEY_VARIABLE):
        raise InputError(
            f"{config.server.host} is not loopback, and no API key is set",
            where="server.host",
            why="anyone who reaches the port could use the engine",
            hint=f"export {API_KEY_VARIABLE}=...   (or host: 127.0.0.1)",
        )


class _Server:
    """One running server: the core, its loop, the routes and uvicorn."""

    def __init__(
        self, config: EngineConfig, backend: Backend, options: Options, listener: socket.socket, load_s: float
    ) -> None:
        pool, metrics = config.pools[0], Metrics()
        kv_tokens = (backend.num_blocks - 1) * pool.block_size
        max_len = min(config.model.max_len or backend.max_len, backend.max_len, kv_tokens)
        core = EngineCore(
            pool,
            num_blocks=backend.num_blocks,
            max_len=max_len,
            eos_token_ids=backend.eos_token_ids,
            # On a CPU the step runs on the cores that would make the next one.
            overlap=backend.device != "cpu",
        )
        log = StepLog(options.step_log, _header(config, backend)) if options.step_log else None
        factor = slow_factor(options.fault)
        executor = SlowSteps(backend.executor, factor) if factor > 1 else backend.executor
        observer = Observer(metrics, pool.token_budget, log)
        shared_block = pool.block_size if pool.prefix_cache else 0
        self._engine = EngineLoop(core, executor, observer, shared_block=shared_block)
        served = Served(config.model.name, max_len, backend.vocab_size, config.server.max_queued)
        self._api = Api(served, self._engine, backend.codec, metrics)
        key = os.environ.get(API_KEY_VARIABLE) or None
        app = self._api.application(api_key=key, loopback=is_loopback(config.server.host))
        ready = _ready_line(config, backend, listener, max_len) | {
            "kv_tokens_actual": kv_tokens,
            "load_seconds": round(load_s, 3),
            "fault": options.fault,
        }
        self._http = HttpServer(app, lambda: _say(ready))
        self._listener = listener
        self._drain_s = config.server.drain_s
        planned = backend.kv_tokens_planned
        if abs(kv_tokens - planned) > _KV_TOLERANCE * planned:
            _log.warning("KV cache: %d tokens planned, %d actual", planned, kv_tokens)

    async def run(self) -> int:
        """Serve until a signal or a failure; returns the exit status."""
        stop, hurry = asyncio.Event(), asyncio.Event()
        events = asyncio.get_running_loop()

        def on_signal() -> None:
            (hurry if stop.is_set() else stop).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            events.add_signal_handler(number, on_signal)
        self._engine.start(on_failure=stop.set)
        serving = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        self._api.draining = True
        await self._drain(hurry)
        await self._engine.stop()
        self._http.should_exit = True
        await serving
        return 5 if self._engine.failure else 0

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Wait until no request is open, for at most drain_s or until someone is in a hurry."""
        _log.info("stopping: %d open requests get up to %g s", self._engine.open, self._drain_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_s):
                while self._engine.open and not hurry.is_set():
                    await asyncio.sleep(0.02)


@contextlib.contextmanager
def _bound(server: ServerConfig) -> Iterator[socket.socket]:
    """A bound socket, taken before the model loads so that a busy port is known at once."""
    try:
        family, _, _, _, address = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise InputError("cannot use this host", where=f"server.host: {server.host}", why=str(error)) from None
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            where, why = f"{server.host}:{server.port}", error.strerror
            raise MachineError("cannot bind the port", where=where, why=why, hint="--port 0") from None
        yield listener


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed; it is not on Windows."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _allow_open_files(count: int) -> None:
    """Many systems let a process open 1,024 files at first; it may ask for more up to a hard limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < count:
        wanted = count if hard < 0 else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _watch_parent(pid: int | None) -> None:
    """End this process when process `pid`, its parent, is gone, so that no engine is orphaned."""

    def watch() -> None:
        while os.getppid() == pid:
            time.sleep(_PARENT_POLL_S)
        # The second signal skips the drain: nobody is left to wait for the answers.
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_PARENT_POLL_S)
        time.sleep(_CLOSE_S)
        os._exit(1)

    if pid is not None:
        threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _ready_line(
    config: EngineConfig, backend: Backend, listener: socket.socket, max_len: int
) -> dict[str, Any]:
    host, port = config.server.host, listener.getsockname()[1]
    return {
        "url": f"http://{f'[{host}]' if ':' in host else host}:{port}",
        "model": config.model.name,
        "dtype": backend.dtype,
        "devices": backend.devices,
        "threads": backend.threads,
        "max_len": max_len,
        "vocab_size": backend.vocab_size,
        "kv_tokens_planned": backend.kv_tokens_planned,
        "pid": os.getpid(),
        "note": backend.note,
    }


def _header(config: EngineConfig, backend: Backend) -> dict[str, Any]:
    return {
        "engine": "advise",
        "version": __version__,
        "model": config.model.name,
        "dtype": backend.dtype,
        "device": backend.device,
        "threads": backend.threads,
        "tp": backend.tp,
        "block_size": config.pools[0].block_size,
    }


def _words(error: AdviseError) -> dict[str, str | None]:
    return {"message": error.message, "where": error.where, "why": error.why, "hint": error.hint}


def _say(line: dict[str, Any]) -> None:
    """The one line on stdout, which a launcher reads; it does not matter here if that launcher is gone."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()
