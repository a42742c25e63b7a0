"""One run of the fault suite: a fleet under load, a fault in the middle of it, and what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from helpers.faults_client import (
    Ask,
    Client,
    Excuse,
    Got,
    client_of,
    closed_loop,
    judged,
    no_excuse,
)
from helpers.faults_fleets import Spec
from helpers.faults_watch import Times, Watch, settled, watching

from advisor.deploy.local import RunningEngine

Fault = Callable[[Watch, Client], Awaitable[Times | None]]
Load = Callable[[Client, Sequence[Ask]], Coroutine[None, None, None]]
CLIENTS = 8
MOST_WORDS = 5


async def eight_clients(client: Client, todo: Sequence[Ask]) -> None:
    """The load of Dynamo's table."""
    await closed_loop(client, todo, CLIENTS)


@dataclass(frozen=True)
class Quiet:
    """A run without a fault: the tokens of every request, how long each took, and all of them."""

    todo: list[Ask]
    tokens: list[list[int]]
    took_s: list[float]
    seconds: float
    excuse: Excuse = no_excuse


class Stage(NamedTuple):
    """What a fault happens to: a running fleet of `spec`; `folder` and `log` are what it was started with."""

    engine: RunningEngine
    quiet: Quiet
    spec: Spec
    folder: Path
    log: Path | None


@dataclass
class Row:
    """What one repeat of one scenario gave. `figures` in seconds where their name ends so."""

    scenario: str
    fleet: str
    repeat: int
    requests: int = 0
    lost: int = 0
    wrong: int = 0
    doubled: int = 0
    refused: int = 0
    ties: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    delays_s: list[float] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    at: str = ""

    @property
    def clean(self) -> bool:
        """Nothing lost, nothing wrong, nothing twice, and nothing else that was not to be."""
        return not (self.lost or self.wrong or self.doubled or self.why)

    def take(self, got: Sequence[Got], quiet: Quiet) -> None:
        """Add what requests of the quiet run got now."""
        for one in got:
            ask, tokens = quiet.todo[one.number], quiet.tokens[one.number]
            judgement = judged(one, ask, tokens, quiet.excuse)
            self.requests += 1
            if judgement != "good":
                setattr(self, judgement, getattr(self, judgement) + 1)
            if judgement in ("lost", "wrong", "doubled") and len(self.why) < MOST_WORDS:
                words = f"{one.status} {one.error or one.finish}, {len(one.tokens)} of {ask.tokens} tokens"
                self.why.append(f"{judgement} {one.number}: {words}")


async def quiet_run(engine: RunningEngine, todo: list[Ask], clients: int, excuse: Excuse = no_excuse) -> Quiet:
    """What everything later is compared with."""
    async with client_of(engine.url) as client, watching(engine.url) as watch:
        began = time.monotonic()
        await closed_loop(client, todo, clients)
        seconds = time.monotonic() - began
        await settled(watch)
    by_number = sorted(client.got, key=lambda one: one.number)
    tokens = [one.tokens for one in by_number]
    assert all(judged(*every) == "good" for every in zip(by_number, todo, tokens, strict=True))
    return Quiet(todo, tokens, [one.took_s for one in by_number], seconds, excuse)


async def under_fault(stage: Stage, row: Row, fault: Fault, *, load: Load = eight_clients) -> dict[str, float]:
    """The same requests again while `fault` happens; fills the row in, and gives the metrics afterwards."""
    engine, quiet = stage.engine, stage.quiet
    async with client_of(engine.url) as client, watching(engine.url) as watch:
        loading = asyncio.create_task(load(client, quiet.todo))
        try:
            times = await fault(watch, client)
            await loading
        finally:
            loading.cancel()
        values = await settled(watch)
    row.take(client.got, quiet)
    row.lost += len(set(range(len(quiet.todo))) - {one.number for one in client.got})
    if times is not None:
        row.figures["detected_s"] = times.detected_s
        if times.back_s is not None:
            row.figures["back_s"] = times.back_s
        row.delays_s = delays(client.got, quiet, times.at_s)
    row.figures |= {"longest_s": max(one.took_s for one in client.got), "health_s": watch.silent_s}
    return values


def delays(got: Sequence[Got], quiet: Quiet, at_s: float) -> list[float]:
    """How much longer than in the quiet run those took that were open at `at_s`."""
    hit = [one for one in got if one.sent_s <= at_s < one.ended_s]
    return [round(one.took_s - quiet.took_s[one.number], 3) for one in hit]


async def moment(client: Client, quiet: Quiet, random: Random) -> None:
    """Wait until some share of the requests is answered, and a little longer: anywhere but at the ends."""
    answered = random.uniform(0.05, 0.85) * len(quiet.todo)
    while len(client.got) - client.open < answered:
        await asyncio.sleep(0.005)
    await asyncio.sleep(random.uniform(0.0, 0.02))
