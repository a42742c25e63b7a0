"""A fleet whose instances are threads of this process: the real front and drivers, no sockets between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.config import PoolConfig, RouterConfig
from engine.core import EngineCore
from engine.errors import AdviseError
from engine.fleet.fleet import Fleet
from engine.server.driver import Driver
from engine.server.front import Front
from engine.server.instances import Listener, Member
from engine.server.links import Links
from engine.server.messages import Order, Report, Stop
from engine.server.metrics import Metrics
from engine.server.observer import Observer
from engine.step import Executor


@dataclass
class Thread:
    """One instance: its core, and what carries out its steps."""

    core: EngineCore
    executor: Executor
    driver: type[Driver] = Driver


class Threads:
    """`Instances` of a Front; what they report is heard in the event loop, in order."""

    def __init__(self, instances: Sequence[Thread], clock: Callable[[], float]) -> None:
        self.members: list[Member] = []
        self.heard: Callable[[int, Report], None] = lambda _index, _report: None  # on the driver's thread
        self._instances = instances
        self._clock = clock
        self.drivers: list[Driver] = []

    async def start(self, listener: Listener) -> None:
        events = asyncio.get_running_loop()
        for index, one in enumerate(self._instances):

            def report(message: Report, index: int = index) -> None:
                self.heard(index, message)
                events.call_soon_threadsafe(listener.heard, index, message)

            def failed(error: BaseException) -> None:
                words = AdviseError(str(error))
                events.call_soon_threadsafe(listener.all_lost, words)

            driver = one.driver(one.core, one.executor, report, failed=failed, clock=self._clock)
            self.drivers.append(driver)
            listener.came_up(index)
            driver.start()

    def send(self, index: int, order: Order) -> None:
        self.drivers[index].put(order)

    async def stop(self) -> None:
        for driver in self.drivers:
            driver.put(Stop())
            await asyncio.to_thread(driver.join)


def front_over(
    threads: Threads,
    pools: Sequence[PoolConfig],
    *,
    router: RouterConfig | None = None,
    metrics: Metrics | None = None,
    shared_block: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Front:
    """The front of a fleet of threads."""
    members = [pool for pool in pools for _ in range(pool.count)]
    names = [f"{pool.role}-{number}" for number, pool in enumerate(members)]
    return Front(
        Fleet(pools, router or RouterConfig(), max_queued=1000),
        threads,
        Observer(metrics or Metrics(), names, members),
        links=Links(),
        shared_block=shared_block,
        clock=clock,
    )
