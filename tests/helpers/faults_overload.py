"""Three times what a fleet sustains: its queue stays bounded, refusals are quick, good answers stay as many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np
from helpers.faults_client import Ask, Got, client_of, closed_loop, open_loop
from helpers.faults_run import Row, Stage
from helpers.faults_watch import QUEUED, Watch, resident_mb, settled, watching

from advisor.deploy.local import RunningEngine

REFUSED_WITHIN_S = 0.050
GOOD_SHARE = 0.9
GROWTH = 0.05
LOOK_S = 0.1
APART_S = 0.05  # clients that all begin at once would be refused
KNEE = (0.6, 0.7, 0.8, 0.9, 1.0)  # of what a closed loop of many clients gets through


class Target(NamedTuple):
    """A good answer: its first token and the mean gap of the others, seconds."""

    ttft_s: float
    tpot_s: float

    def good(self, one: Got) -> bool:
        """Whole, and in time. All are streams."""
        if not one.over or one.status != 200 or len(one.times) < 2:
            return False
        tpot = (one.times[-1] - one.times[0]) / (len(one.times) - 1)
        return one.times[0] - one.sent_s <= self.ttft_s and tpot <= self.tpot_s


async def overload(
    stage: Stage,
    row: Row,
    random: Random,
    *,
    target: Target,
    clients: int,
    scan_s: float = 15.0,
    overload_s: float = 60.0,
) -> None:
    """Find the knee, the rate with the most good answers a second; then offer three times that."""
    engine = stage.engine
    streams = [one._replace(stream=True) for one in stage.quiet.todo]
    async with client_of(engine.url) as client:
        await closed_loop(client, streams[: clients * 2], clients, APART_S)  # caches fill
        began = asyncio.get_running_loop().time()
        await closed_loop(client, streams, clients, APART_S)
        sustained = len(streams) / (asyncio.get_running_loop().time() - began)
    knee_rate = knee_good = 0.0
    for share in KNEE:
        rate = share * sustained
        got, _ = await _offer(engine, streams, rate, scan_s, random)
        good = rate * sum(map(target.good, got)) / len(got)
        if good > knee_good:
            knee_rate, knee_good = rate, good
    before = {name: resident_mb(pid) for name, pid in engine.info.pids.items()}
    got, deepest = await _offer(engine, streams, 3 * knee_rate, overload_s, random)
    after = {name: resident_mb(pid) for name, pid in engine.info.pids.items()}
    refused = [one for one in got if one.status == 429]
    good = 3 * knee_rate * sum(map(target.good, got)) / len(got)
    p99 = float(np.quantile([one.took_s for one in refused], 0.99)) if refused else float("nan")
    growth = max(after[name] / before[name] - 1 for name in before)
    row.requests, row.refused = len(got), len(refused)
    row.lost = sum(not one.over or one.status not in (200, 429) for one in got)
    row.figures |= {
        "knee_per_s": knee_rate,
        "good_at_knee_per_s": knee_good,
        "offered_per_s": 3 * knee_rate,
        "good_per_s": good,
        "good_share": good / knee_good,
        "refused_p99_s": p99,
        "deepest_queue": deepest,
        "growth": growth,
    }
    checks = {
        "no 429": bool(refused),
        "a 429 without Retry-After": all(one.retry_after for one in refused),
        "slow 429": p99 <= REFUSED_WITHIN_S,
        "few good": good >= GOOD_SHARE * knee_good,
        # Each decode instance asks for room for one, which waits again if there is none.
        "the queue is too long": deepest <= stage.spec.server["max_queued"] + stage.spec.decode,
        "memory grows": growth <= GROWTH,
    }
    row.why += [what for what, holds in checks.items() if not holds]


async def _offer(
    engine: RunningEngine, streams: Sequence[Ask], rate: float, seconds: float, random: Random
) -> tuple[list[Got], float]:
    """An open loop; what came of it, and how long the queue was at most."""
    numbers = random.choices(range(len(streams)), k=int(rate * seconds))
    async with client_of(engine.url) as client, watching(engine.url) as watch, deepest_queue(watch) as deepest:
        await open_loop(client, numbers, streams, rate, seed=random.randrange(1 << 30))
        await settled(watch)
    return client.got, deepest.requests


@dataclass(slots=True)
class Deepest:
    """The most requests that were seen in the queue."""

    requests: float = 0.0


@contextlib.asynccontextmanager
async def deepest_queue(watch: Watch) -> AsyncIterator[Deepest]:
    """Looks at the queue for as long as the block runs."""
    deepest = Deepest()

    async def look() -> None:
        while True:
            deepest.requests = max(deepest.requests, (await watch.metrics())[QUEUED])
            await asyncio.sleep(LOOK_S)

    looking = asyncio.create_task(look())
    try:
        yield deepest
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
