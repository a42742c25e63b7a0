"""The life of a router process: bind, start the instances, serve, drain, exit.

    bind -> start -> ready (one JSON line on stdout) -> draining (SIGTERM, SIGINT)         -> exit 0
                                                     -> failed (no instance will ever serve) -> exit 5
    parent gone, or a second signal                  -> what runs is aborted at once

Owns the socket, the signals, the watch on the parent and the launch's private folder. It imports no torch: the
instances do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.config import EngineConfig, ServerConfig
from engine.config_file import read_config
from engine.emulation import Emulation, read_emulation
from engine.errors import AdviseError, InputError, MachineError
from engine.faults import check_fault, link_factor
from engine.fleet.fleet import Fleet
from engine.host import usable_cores
from engine.launchable import why_not_launchable, why_too_few_cores
from engine.request_log import RequestLog
from engine.server.app import Api
from engine.server.choices import Served
from engine.server.codec import TextCodec, load_codec
from engine.server.connection import MAX_CONNECTIONS, HttpServer
from engine.server.front import Front
from engine.server.guard import Guard, is_loopback
from engine.server.links import links_of
from engine.server.messages import Start
from engine.server.metrics import Metrics
from engine.server.observer import Observer
from engine.server.supervisor import INSTANCE_PROGRAM, Supervisor, starts_of
from engine.server.two_call import TwoCall, secret_of
from engine.transfer.layout import KvLayout, Transport

API_KEY_VARIABLE = "ADVISE_API_KEY"
_log = logging.getLogger(__name__)
_PARENT_POLL_S = 0.25
_KV_TOLERANCE = 0.05
_CLOSE_S = 5  # what the server gets to end by itself once its parent is gone


@dataclass(frozen=True, slots=True)
class Options:
    """What belongs to one run and not to the configuration."""

    port: int | None = None
    step_log: Path | None = None
    request_log: Path | None = None
    fault: str | None = None
    parent_pid: int | None = None
    dummy: bool = False
    emulate: Path | None = None
    oversubscribe: bool = False
    program: tuple[str, ...] = INSTANCE_PROGRAM
    emulation: Emulation | None = None  # what `emulate` says


def serve(config_file: Path, options: Options, load: Callable[..., TextCodec] = load_codec) -> int:
    """Run a router until it is told to stop; returns the exit status.

    Prints one JSON line on stdout: the ready line, or `{"error": {...}}` where it could not start.
    """
    _watch_parent(options.parent_pid)
    _allow_open_files(2 * MAX_CONNECTIONS)
    try:
        config = _read(config_file, options.port)
        if options.emulate is not None:
            options = replace(options, emulation=read_emulation(options.emulate))
        check(config, options)
        # A wrong one is refused now, not once the model has loaded.
        check_fault(options.fault)
        with _bound(config.server) as listener, tempfile.TemporaryDirectory(prefix="advise-") as folder:
            codec = load(config, dummy=options.dummy, emulated=options.emulate is not None)
            server = _Server(config, codec, _starts(config, options, folder), options, listener)
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


def check(config: EngineConfig, options: Options) -> None:
    """Refuse at once what cannot run. Raises MachineError, InputError."""
    if options.emulation is not None:
        options.emulation.check(config)
    why = why_not_launchable(config, emulated=options.emulation is not None)
    if why is not None:
        hint = "advise analyze LOG --here"
        raise MachineError("the bundled engine cannot launch this", why=why, hint=hint)
    if not is_loopback(config.server.host) and not os.environ.get(API_KEY_VARIABLE):
        raise InputError(
            f"{config.server.host} is not loopback, and no API key is set",
            where="server.host",
            why="anyone who reaches the port could use the engine",
            hint=f"export {API_KEY_VARIABLE}=...   (or host: 127.0.0.1)",
        )


class _Server:
    """One running router: the fleet and its instances, the routes and uvicorn."""

    def __init__(
        self,
        config: EngineConfig,
        codec: TextCodec,
        starts: Sequence[Start],
        options: Options,
        listener: socket.socket,
    ) -> None:
        self._config = config
        self._codec = codec
        self._options = options
        self._listener = listener
        self._metrics = metrics = Metrics()
        self._log: RequestLog | None = None
        if options.request_log is not None:
            self._log = RequestLog(options.request_log, config.model.name, clock=time.monotonic)
        supervisor = Supervisor(
            starts, program=options.program, restart=config.server.restart, clock=time.monotonic
        )
        names, pools = [one.name for one in starts], [config.pools[one.pool] for one in starts]
        observer = Observer(metrics, names, pools, self._log)
        pool = config.pools[0]
        self._front = Front(
            Fleet(config.pools, config.router, max_queued=config.server.max_queued),
            supervisor,
            observer,
            links=links_of(options.emulation, slower=link_factor(options.fault)),
            shared_block=pool.block_size if pool.prefix_cache else 0,
            clock=time.monotonic,
        )

    async def run(self) -> int:
        """Serve until a signal or a failure; returns the exit status."""
        stop, hurry = asyncio.Event(), asyncio.Event()
        events = asyncio.get_running_loop()

        def on_signal() -> None:
            (hurry if stop.is_set() else stop).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            events.add_signal_handler(number, on_signal)
        front = self._front
        stopping = asyncio.create_task(stop.wait())
        starting = asyncio.create_task(front.start(on_failure=stop.set))
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                return 0
            starting.result()
            api = self._api()
            http = HttpServer(self._guarded(api), lambda: _say(self._ready_line()))
            serving = asyncio.create_task(http.serve(sockets=[self._listener]))
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            api.draining = True
            await self._drain(hurry)
        finally:
            await front.stop()
            if self._log is not None:
                self._log.close()
        http.should_exit = True
        await serving
        return 5 if front.failure else 0

    def _api(self) -> Api:
        infos = [member.info for member in self._front.members if member.info is not None]
        served = Served(
            self._config.model.name,
            min(info.max_len for info in infos),
            infos[0].vocab_size,
            self._config.server.max_queued,
        )
        facts = {"oversubscribed": self._oversubscribed(), "emulated": self._emulated()}
        two_call = TwoCall(self._config, secret_of(self._config), self._layout)
        return Api(served, self._front, self._codec, self._metrics, facts, two_call)

    def _layout(self) -> KvLayout | None:
        """That of the KV of any instance; all have the same."""
        return next((one.peer.layout for one in self._front.members if one.peer is not None), None)

    def _guarded(self, api: Api) -> Guard:
        key = os.environ.get(API_KEY_VARIABLE) or None
        return api.application(api_key=key, loopback=is_loopback(self._config.server.host))

    def _oversubscribed(self) -> bool:
        """Instances share cores, so that times mean nothing."""
        if self._options.emulation is not None or not self._options.oversubscribe:
            return False
        return why_too_few_cores(self._config, usable_cores()) is not None

    def _emulated(self) -> dict[str, Any] | None:
        emulation = self._options.emulation
        if emulation is None:
            return None
        return {"gpu": emulation.gpu, "time_scale": emulation.time_scale}

    def _ready_line(self) -> dict[str, Any]:
        config, members = self._config, self._front.members
        host, port = config.server.host, self._listener.getsockname()[1]
        infos = [(member, member.info) for member in members if member.info is not None]
        first = infos[0][1]
        peers = [member.peer.transport for member in members if member.peer is not None]
        for member, info in infos:
            if abs(info.kv_tokens - info.kv_tokens_planned) > _KV_TOLERANCE * info.kv_tokens_planned:
                planned, actual = info.kv_tokens_planned, info.kv_tokens
                _log.warning("KV cache of %s: %d tokens planned, %d actual", member.name, planned, actual)
        return {
            "url": f"http://{f'[{host}]' if ':' in host else host}:{port}",
            "model": config.model.name,
            "dtype": first.dtype,
            "devices": [device for _, info in infos for device in info.devices],
            "threads": sum(info.threads for _, info in infos),
            "max_len": min(info.max_len for _, info in infos),
            "vocab_size": first.vocab_size,
            "kv_tokens_planned": first.kv_tokens_planned,
            "kv_tokens_actual": first.kv_tokens,
            "load_seconds": round(max(info.load_s for _, info in infos), 3),
            "pid": os.getpid(),
            "note": first.note,
            "fault": self._options.fault,
            "transport": peers[0] if peers else None,
            "oversubscribed": self._oversubscribed(),
            "emulated": self._emulated(),
            "instances": [
                {
                    "name": member.name,
                    "role": member.name.rpartition("-")[0],
                    "pid": member.pid,
                    "devices": info.devices,
                    "dtype": info.dtype,
                    "kv_tokens": info.kv_tokens,
                }
                for member, info in infos
            ],
        }

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Wait until no request is open, for at most drain_s or until someone is in a hurry."""
        _log.info("stopping: %d open requests get up to %g s", self._front.open, self._config.server.drain_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.server.drain_s):
                while self._front.open and not hurry.is_set() and not self._front.failure:
                    await asyncio.sleep(0.02)


def _starts(config: EngineConfig, options: Options, folder: str) -> list[Start]:
    """What every instance is told first."""
    common = Start(
        config=config.model_dump(mode="json"),
        pool=0,
        index=0,
        name="",
        epoch=1,
        dtype=config.model.dtype,
        transport=transport_of(config),
        first_device=0,
        folder=folder,
        secret=secret_of(config) or secrets.token_hex(32),
        kv_host=config.router.kv_host,
        dummy=options.dummy,
        step_log=str(options.step_log) if options.step_log else None,
        fault=options.fault,
        emulation=str(options.emulate) if options.emulate else None,
        oversubscribe=options.oversubscribe,
    )
    return starts_of(config, common)


def transport_of(config: EngineConfig) -> Transport | Literal["auto"] | None:
    """How KV moves between the instances of `config`; None where none does."""
    if all(pool.role == "colocated" for pool in config.pools):
        return None
    return config.router.transport


@contextlib.contextmanager
def _bound(server: ServerConfig) -> Iterator[socket.socket]:
    """A bound socket, taken before the model loads so that a busy port is known at once."""
    try:
        family, _, _, _, address = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        where, hint = f"server.host: {server.host}", "host: 127.0.0.1"
        raise InputError("cannot use this host", where=where, why=str(error), hint=hint) from None
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


def _words(error: AdviseError) -> dict[str, str | None]:
    return {"message": error.message, "where": error.where, "why": error.why, "hint": error.hint}


def _say(line: dict[str, Any]) -> None:
    """The one line on stdout, which a launcher reads; it does not matter here if that launcher is gone."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()
