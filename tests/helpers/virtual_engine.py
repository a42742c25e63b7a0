"""The engine's own loop and executors in this process, at times of one's choosing, and the steps it makes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from helpers.server import step_lines
from helpers.simulating import Rows, requests_of
from helpers.threads import Thread, Threads, front_over

from advisor.simulation.load import Load
from engine.config import PoolConfig
from engine.core import EngineCore
from engine.executors.emulated import EmulatedExecutor
from engine.request import Request
from engine.server.driver import Driver
from engine.server.front import Front
from engine.server.messages import Add, Report, Rested, Stepped
from engine.server.metrics import Metrics
from engine.server.step_log import StepLog
from engine.server.ticket import Ticket
from engine.step import Executor, Handle, Step, StepResult
from engine.step_time.model import StepTimeModel


@dataclass
class Ran:
    """What the engine did: its step log, when steps began and ended, when it took requests, and its metrics."""

    steps: list[Rows] = field(default_factory=list)
    began_s: list[float] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)
    idle_after: set[int] = field(default_factory=set)  # how many steps there were then
    taken_s: dict[str, float] = field(default_factory=dict)  # when the engine's thread took each request
    ended: dict[str, str] = field(default_factory=dict)
    metrics: str = ""


@dataclass(frozen=True)
class _AsItWas:
    """In the place of what travels: runs, which only a simulator gives, do not."""

    original: Request

    def request(self) -> Request:
        return self.original


class _Asleep:
    """Hides when a step ends: a driver that knew would wait by the wall, and no virtual time would pass."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, step: Step) -> Handle:
        return _Hidden(self._executor.submit(step))


@dataclass(frozen=True)
class _Hidden:
    handle: Handle

    def result(self) -> StepResult:
        return self.handle.result()


class _Engine:
    """One driver in a thread; keeps what it does and when. `on_idle` is called when it has nothing to do."""

    def __init__(
        self,
        pool: PoolConfig,
        executor: Executor,
        log: Path,
        clock: Callable[[], float],
        requests: Sequence[Request],
    ) -> None:
        assert pool.kv_tokens is not None
        core = EngineCore(pool, num_blocks=pool.kv_tokens // pool.block_size + 1, max_len=1 << 30)
        self.ran, self.metrics, self.log, self.clock = Ran(), Metrics(), log, clock
        self.on_idle: Callable[[], None] = lambda: None
        self.requests = {request.id: request for request in requests}
        engine = self

        class Recording(Driver):
            def __init__(self, *parts: Any, **more: Any) -> None:
                super().__init__(*parts, **more, step_log=StepLog(log, {"engine": "test"}))

            def _add(self, order: Add, came: float) -> None:
                name = order.request.id
                order = msgspec.structs.replace(order, request=_AsItWas(engine.requests[name]))
                super()._add(order, came)
                engine.ran.taken_s[name] = clock()

        threads = Threads([Thread(core, executor, Recording)], clock)
        threads.heard = self._heard
        self.front = front_over(threads, [pool], metrics=self.metrics, clock=clock)

    def _heard(self, _index: int, report: Report) -> None:
        if isinstance(report, Stepped):
            self.ran.ended_s.append(self.clock())
            self.ran.began_s.append(self.clock() - report.seconds)
        elif isinstance(report, Rested):
            self.ran.idle_after.add(len(self.ran.began_s))
            self.on_idle()

    async def finish(self, tickets: list[Ticket]) -> Ran:
        ran = self.ran
        ran.ended = {ticket.request.id: (await ticket.ended()).reason for ticket in tickets}
        await self.front.stop()
        assert self.front.failure is None
        lines = step_lines(self.log)[1]
        ran.steps = [tuple((n, new, context) for n, new, context in step["rows"]) for step in lines]
        ran.metrics = self.metrics.exposition().decode()
        return ran


class _VirtualClock:
    """Time passes only where somebody sleeps, or waits for the next arrival."""

    def __init__(self, arrivals: Sequence[tuple[float, Request]]) -> None:
        self.now = 0.0
        self.todo = list(reversed(arrivals))
        self.tickets: list[Ticket] = []
        self.loop: Front
        self.events = asyncio.get_running_loop()
        self.all_sent = asyncio.Event()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while self.todo and self.todo[-1][0] <= until:
            self._arrive()
        self.now = until

    def idle(self) -> None:
        if self.todo:
            self._arrive()

    def _arrive(self) -> None:
        """As a client's request: through the event loop, while the engine's thread is busy or waits."""
        self.now, request = self.todo.pop()
        done = threading.Event()

        def add() -> None:
            self.tickets.append(self.loop.add(request, stream=False))
            if not self.todo:
                self.all_sent.set()
            done.set()

        self.events.call_soon_threadsafe(add)
        assert done.wait(30)


def run_emulated(load: Load, pool: PoolConfig, step_time: StepTimeModel, log: Path) -> Ran:
    """The engine's loop with the emulated executor on a virtual clock."""

    async def run() -> Ran:
        clock = _VirtualClock(list(zip(load.arrival_s.tolist(), requests_of(load), strict=True)))
        assert pool.kv_tokens is not None
        kv = np.zeros((2, pool.kv_tokens // pool.block_size + 1, pool.block_size), np.uint32)
        executor = EmulatedExecutor(step_time, kv, sleep=clock.sleep, clock=clock)
        engine = _Engine(pool, _Asleep(executor), log, clock, [request for _, request in clock.todo])
        clock.loop, engine.on_idle = engine.front, clock.idle
        await engine.front.start(lambda: None)
        await clock.all_sent.wait()
        return await engine.finish(clock.tickets)

    return asyncio.run(run())


def run_real(arrivals: Sequence[tuple[float, Request]], pool: PoolConfig, executor: Executor, log: Path) -> Ran:
    """The engine's loop with a real executor, by the wall clock; arrivals in seconds from now."""

    async def run() -> Ran:
        engine = _Engine(pool, executor, log, time.monotonic, [request for _, request in arrivals])
        await engine.front.start(lambda: None)
        started = asyncio.get_running_loop().time()
        tickets = []
        for at, request in arrivals:
            await asyncio.sleep(max(0.0, started + at - asyncio.get_running_loop().time()))
            tickets.append(engine.front.add(request, stream=False))
        return await engine.finish(tickets)

    return asyncio.run(run())
