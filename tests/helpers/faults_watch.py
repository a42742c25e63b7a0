"""What a router says of its fleet while faults happen: who is up and since when, and the books afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from helpers.server import metrics_of

POLL_S = 0.01
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


class Seen(NamedTuple):
    """One look at an instance, at `time.monotonic()`; `degraded` is the fleet's."""

    at_s: float
    state: str
    pid: int | None
    degraded: bool


class Watch:
    """Looks at /health all the time, on a connection of its own."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.seen: dict[str, list[Seen]] = {}
        self.silent_s = 0.0  # the longest that /health took
        self._session = session

    async def look(self) -> dict[str, Any]:
        """/health, whatever its status."""
        began = time.monotonic()
        async with self._session.get("/health") as response:
            health: dict[str, Any] = await response.json()
        now = time.monotonic()
        self.silent_s = max(self.silent_s, now - began)
        for one in health["instances"]:
            # As of the answer: late rather than early for what changed meanwhile.
            seen = Seen(now, one["state"], one["pid"], health["degraded"])
            self.seen.setdefault(one["name"], []).append(seen)
        return health

    async def metrics(self) -> dict[str, float]:
        """/metrics: see helpers.server.metrics."""
        async with self._session.get("/metrics") as response:
            return metrics_of(await response.text())

    async def poll(self) -> None:
        """Look until cancelled."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await self.look()
            await asyncio.sleep(POLL_S)

    def now(self, name: str) -> Seen:
        """The last look."""
        return self.seen[name][-1]

    async def until(self, name: str, holds: Callable[[Seen], bool], within_s: float) -> float:
        """When the first look from now on saw that."""
        deadline, start = time.monotonic() + within_s, len(self.seen.get(name, ()))
        while True:
            for one in self.seen.get(name, ())[start:]:
                if holds(one):
                    return one.at_s
            if time.monotonic() > deadline:
                raise AssertionError(f"{name}: never within {within_s:g} s; last {self.now(name)}")
            await asyncio.sleep(POLL_S / 2)


@contextlib.asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watch]:
    """A Watch that polls for as long as the block runs."""
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(30)) as session:
        watch = Watch(session)
        await watch.look()
        polling = asyncio.create_task(watch.poll())
        try:
            yield watch
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)


class Times(NamedTuple):
    """A death at `at_s`; seconds until it was out of the roster, and until its replacement was in it."""

    at_s: float
    detected_s: float
    back_s: float | None


async def strike(watch: Watch, name: str, number: int = signal.SIGKILL, *, back: bool = True) -> Times:
    """Send an instance a signal that ends it, and wait until the router says so and has replaced it."""
    pid = watch.now(name).pid
    assert pid is not None
    at = time.monotonic()
    os.kill(pid, number)
    down = asyncio.create_task(watch.until(name, lambda one: one.state != "up" or one.pid != pid, 30))
    again = asyncio.create_task(watch.until(name, lambda one: one.state == "up" and one.pid != pid, 60))
    detected = await down - at
    if not back:
        again.cancel()
        return Times(at, detected, None)
    return Times(at, detected, await again - at)


async def settled(watch: Watch, within_s: float = 10.0) -> dict[str, float]:
    """Wait until nothing is queued, runs, is leased or held; the metrics then. Fails if a block is gone."""
    deadline = time.monotonic() + within_s
    while True:
        values = await watch.metrics()
        left = [name for name in (QUEUED, RUNNING, LEASES, USED) if values[name]]
        # A replacement says what it has only once it first rests.
        left += [
            one for one in watch.seen if watch.now(one).state == "up" and not values[_blocks(one, "total")]
        ]
        if not left:
            break
        assert time.monotonic() < deadline, f"after {within_s:g} s: {[(one, values.get(one)) for one in left]}"
        await asyncio.sleep(0.02)
    for name in watch.seen:
        free, cached, total = (values[_blocks(name, state)] for state in ("free", "cached", "total"))
        assert free + cached == total, f"{name}: {free:g} free + {cached:g} cached of {total:g}"
    assert values.get("advise_invariant_violations_total", 0) == 0, "an idle self-check failed"
    return values


QUEUED, RUNNING, LEASES = "advise_requests_queued", "advise_requests_running", "advise_leases"
USED = 'advise_kv_blocks{state="used"}'


def _blocks(name: str, state: str) -> str:
    return f'advise_kv_blocks{{instance="{name}",state="{state}"}}'


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MB
