"""`python -m engine.server.instance`: one instance of a fleet, a process that the router starts.

    connected (stdin is a socket to the router) -> loading -> ready -> stopped, exit 0
                                                                    -> failed (the engine raised), exit 5

Owns the core, the executor and the KV of one instance, and the threads around them: the driver, the copies, the
KV server, the beat. It ends at once when the router's end of the socket does, whatever it is doing: nobody is
left to answer. Never listens to anybody but the router and other instances' copies, never restarts anything.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import AdviseError
from engine.faults import SlowSteps, slow_factor, transfer_faults
from engine.fleet.lease import LEASE_S
from engine.server.backend import Backend, load_backend
from engine.server.channel import InstanceChannel
from engine.server.driver import Driver
from engine.server.messages import Beat, Failed, Info, Probed, Ready, Release, Start, Stop
from engine.server.step_log import StepLog, header
from engine.transfer.held import Held
from engine.transfer.puller import Puller
from engine.transfer.source import KvServer

Load = Callable[[Start, EngineConfig, Callable[[str], None]], Backend]
BEAT_S = 1.0
# The driver's thread takes the interpreter lock hundreds of times a step; at the default 5 ms each wait for
# another thread could cost it that much.
_SWITCH_INTERVAL_S = 0.0005
_log = logging.getLogger(__name__)


def main(load: Load = load_backend) -> int:
    """Connect, load, serve until told to stop; returns the exit status."""
    # A Ctrl-C or a service manager signals the whole group; only the router knows when the last answer is out.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    channel = InstanceChannel(socket.socket(fileno=os.dup(sys.stdin.fileno())))
    with Path(os.devnull).open("rb") as nothing:  # nobody else may read from the router
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    start = channel.receive()
    if not isinstance(start, Start):
        return 0
    try:
        instance = Instance(start, channel, load)
    except AdviseError as error:
        channel.send(_words(error))
        return error.exit_code
    return instance.run()


class Instance:
    """One instance, loaded. Raises InputError, MachineError where it cannot be."""

    def __init__(self, start: Start, channel: InstanceChannel, load: Load) -> None:
        self._channel = channel
        self._router, self._folder = os.getppid(), start.folder
        self._stopped = threading.Event()
        self._failed = False
        config = EngineConfig.model_validate(start.config)
        pool, began = config.pools[start.pool], time.monotonic()
        self._backend = backend = load(start, config, lambda dtype: channel.send(Probed(dtype)))
        kv_tokens = (backend.num_blocks - 1) * pool.block_size
        max_len = min(config.model.max_len or backend.max_len, backend.max_len, kv_tokens)
        core = EngineCore(
            pool,
            num_blocks=backend.num_blocks,
            max_len=max_len,
            eos_token_ids=backend.eos_token_ids,
            overlap=backend.overlap,
        )
        log = StepLog(Path(start.step_log), header(config, pool, backend)) if start.step_log else None
        factor = slow_factor(start.fault)
        executor = SlowSteps(backend.executor, factor) if factor > 1 else backend.executor
        self._held = Held(LEASE_S)
        self._server, self._puller = self._transfers(start)
        self._driver = Driver(
            core,
            executor,
            channel.send,
            held=self._held,
            pulls=self._puller,
            step_log=log,
            failed=self._fail,
            time_scale=backend.time_scale,
        )
        self._ready = Ready(
            Info(
                dtype=backend.dtype,
                device=backend.device,
                devices=backend.devices,
                threads=backend.threads,
                vocab_size=backend.vocab_size,
                max_len=max_len,
                kv_tokens_planned=backend.kv_tokens_planned,
                kv_tokens=kv_tokens,
                load_s=time.monotonic() - began,
                note=backend.note,
            ),
            self._server.peer if self._server else None,
        )

    def run(self) -> int:
        """Serve until told to stop; returns the exit status."""
        self._driver.start()
        self._channel.send(self._ready)
        for name, target in (("orders", self._listen), ("beat", self._beat)):
            threading.Thread(target=target, name=name, daemon=True).start()
        self._stopped.wait()
        if self._failed:
            return 5
        self._driver.join()
        if self._puller is not None:
            self._puller.close()
        if self._server is not None:
            self._server.close()
        self._backend.close()
        return 0

    def _transfers(self, start: Start) -> tuple[KvServer | None, Puller | None]:
        pages = self._backend.pages
        if start.transport is None or pages is None:
            return None, None
        transport = pages.transports[0] if start.transport == "auto" else start.transport
        server = KvServer(
            self._held,
            pages,
            pages.layout,
            nonce=secrets.token_hex(16),
            secret=start.secret,
            folder=Path(start.folder),
            transport=transport,
            clock=time.monotonic,
            host=start.kv_host,
            let_go=lambda name: self._driver.put(Release(name)),
        )
        puller = Puller(
            pages,
            pages.layout,
            secret=start.secret,
            done=lambda result: self._driver.pulled(result),
            faults=transfer_faults(start.fault, seed=start.index),
        )
        return server, puller

    def _listen(self) -> None:
        while True:
            try:
                order = self._channel.receive()
            except (ValueError, OSError, msgspec.DecodeError):
                _log.exception("the router said something unintelligible")
                order = None
            if order is None:
                self._leave()
            if isinstance(order, Start):
                continue
            self._driver.put(order)
            if isinstance(order, Stop):
                self._driver.join()
                self._stopped.set()
                return

    def _leave(self) -> NoReturn:
        """Nobody is left to answer: end at once; where the router died, nobody else clears its folder away."""
        for _ in range(20):  # a process that dies closes its files before its children see it gone
            if os.getppid() != self._router:
                shutil.rmtree(self._folder, ignore_errors=True)
                break
            time.sleep(0.01)
        os._exit(0)

    def _beat(self) -> None:
        while not self._stopped.wait(BEAT_S):
            self._send(Beat(self._driver.busy_s, time.process_time()))

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        words = _words(error) if isinstance(error, AdviseError) else Failed(message="the engine failed")
        self._send(words)
        self._stopped.set()

    def _send(self, report: Beat | Failed) -> None:
        try:
            self._channel.send(report)
        except OSError:
            self._leave()


def _words(error: AdviseError) -> Failed:
    return Failed(
        message=error.message, where=error.where, why=error.why, hint=error.hint, exit_code=error.exit_code
    )


if __name__ == "__main__":
    sys.exit(main())
