"""The engine's own loop and executors in this process, at times of one's choosing, and the steps it makes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from helpers.server import step_lines
from helpers.simulating import Rows

from advisor.simulation.load import Load
from engine.config import PoolConfig
from engine.core import CoreStats, EngineCore
from engine.executors.emulated import EmulatedExecutor
from engine.request import Request, SamplingParams
from engine.server.loop import EngineLoop
from engine.server.metrics import Metrics
from engine.server.observer import Observer
from engine.server.step_log import StepLog
from engine.server.ticket import Ticket
from engine.step import Executor, Step
from engine.step_time.model import StepTimeModel


def requests_of(load: Load) -> list[Request]:
    """The requests of a load, named by their rows."""
    columns = zip(load.prompt_tokens.tolist(), load.output_tokens.tolist(), load.runs, strict=True)
    return [
        Request(str(row), range(prompt), SamplingParams(max_tokens=output), runs=runs)
        for row, (prompt, output, runs) in enumerate(columns)
    ]


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


class _Observer(Observer):
    """As in production, and keeps the times; `on_idle` is called when the engine has nothing to do."""

    def __init__(self, budget: int, log: StepLog, clock: Callable[[], float]) -> None:
        self.metrics = Metrics()
        super().__init__(self.metrics, budget, log)
        self.ran = Ran()
        self.clock = clock
        self.on_idle: Callable[[], None] = lambda: None

    def added(self, ticket: Ticket) -> None:
        super().added(ticket)
        self.ran.taken_s[ticket.request.id] = self.clock()

    def step_ended(self, step: Step, started: float, now: float, stats: CoreStats) -> None:
        super().step_ended(step, started, now, stats)
        self.ran.began_s.append(started)
        self.ran.ended_s.append(now)

    def idle(self, stats: CoreStats) -> None:
        super().idle(stats)
        self.ran.idle_after.add(len(self.ran.began_s))
        self.on_idle()


class _VirtualClock:
    """Time passes only where somebody sleeps, or waits for the next arrival."""

    def __init__(self, arrivals: Sequence[tuple[float, Request]]) -> None:
        self.now = 0.0
        self.todo = list(reversed(arrivals))
        self.tickets: list[Ticket] = []
        self.loop: EngineLoop
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
        executor = EmulatedExecutor(step_time, sleep=clock.sleep, clock=clock)
        loop, observer = _loop(pool, executor, log, clock)
        clock.loop, observer.on_idle = loop, clock.idle
        loop.start(lambda: None)
        await clock.all_sent.wait()
        return await _finish(loop, observer, clock.tickets, log)

    return asyncio.run(run())


def run_real(arrivals: Sequence[tuple[float, Request]], pool: PoolConfig, executor: Executor, log: Path) -> Ran:
    """The engine's loop with a real executor, by the wall clock; arrivals in seconds from now."""

    async def run() -> Ran:
        loop, observer = _loop(pool, executor, log)
        loop.start(lambda: None)
        started = asyncio.get_running_loop().time()
        tickets = []
        for at, request in arrivals:
            await asyncio.sleep(max(0.0, started + at - asyncio.get_running_loop().time()))
            tickets.append(loop.add(request, stream=False))
        return await _finish(loop, observer, tickets, log)

    return asyncio.run(run())


def _loop(
    pool: PoolConfig, executor: Executor, log: Path, clock: Callable[[], float] = time.monotonic
) -> tuple[EngineLoop, _Observer]:
    assert pool.kv_tokens is not None
    core = EngineCore(pool, num_blocks=pool.kv_tokens // pool.block_size + 1, max_len=1 << 30)
    observer = _Observer(pool.token_budget, StepLog(log, {"engine": "test"}), clock)
    return EngineLoop(core, executor, observer, clock=clock), observer


async def _finish(loop: EngineLoop, observer: _Observer, tickets: list[Ticket], log: Path) -> Ran:
    ran = observer.ran
    ran.ended = {ticket.request.id: (await ticket.ended()).reason for ticket in tickets}
    await loop.stop()
    assert loop.failure is None
    ran.steps = [tuple((n, new, context) for n, new, context in step["rows"]) for step in step_lines(log)[1]]
    ran.metrics = observer.metrics.exposition().decode()
    return ran
