"""Clients that go away at any moment, among others that stay."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from random import Random

import aiohttp
from helpers.faults_client import Ask, Client, body_of, client_of
from helpers.faults_run import Quiet, Row, Stage
from helpers.faults_watch import Watch, settled, watching

WAVE = 50
STAYING = 4
BACK_WITHIN_S = 1.0


async def leave(stage: Stage, row: Row, random: Random, *, leavers: int) -> None:
    """Waves of clients that leave: blocks and leases are back soon after, others get what they should.

    A stream may leave after some tokens, anybody after some time: while queued, in the prefill, the copy, the
    decode.
    """
    engine, quiet = stage.engine, stage.quiet
    phases = Counter[str]()
    waited: list[float] = []
    async with client_of(engine.url) as client, watching(engine.url) as watch:
        while phases.total() - phases["answered"] < leavers:
            gone = asyncio.Event()
            stay = [asyncio.create_task(_stay(client, quiet, gone, random)) for _ in range(STAYING)]
            some = random.choices(range(len(quiet.todo)), k=min(leavers, WAVE))
            left = [_leave(engine.url, quiet.todo[n], random, quiet.took_s[n]) for n in some]
            phases.update(await asyncio.gather(*left))
            last = time.monotonic()
            gone.set()
            await asyncio.gather(*stay)
            await _nothing_held(watch)
            waited.append(time.monotonic() - last)
        values = await settled(watch)
    row.take(client.got, quiet)
    row.figures |= {"leavers": phases.total() - phases["answered"], "blocks_back_s": max(waited), **phases}
    row.figures["aborted"] = values['advise_requests_total{finish_reason="abort"}']
    if max(waited) > BACK_WITHIN_S:
        row.why.append(f"blocks were back after {max(waited):.2f} s")


async def _stay(client: Client, quiet: Quiet, gone: asyncio.Event, random: Random) -> None:
    while not gone.is_set():
        number = random.randrange(len(quiet.todo))
        await client.ask(number, quiet.todo[number])


async def _leave(url: str, one: Ask, random: Random, took_s: float) -> str:
    """Ask, go away at some time of the `took_s` that this takes, or after it, and say where that was."""
    body = body_of(one)
    tokens = random.randrange(1, one.tokens) if one.stream and random.random() < 0.5 else None
    where = "left_first" if one.stream else "left_whole"
    async with aiohttp.ClientSession(url) as session:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if tokens else random.uniform(0.0, 1.5 * took_s)):
                async with session.post("/v1/completions", json=body) as response:
                    async for line in response.content:
                        where = "left_stream" if one.stream else where
                        if tokens is not None:
                            tokens -= line.startswith(b"data: ")
                            if tokens <= 0:
                                response.close()
                                return where
                    return "answered"
    return where


async def _nothing_held(watch: Watch) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        values = await watch.metrics()
        if not (values['advise_kv_blocks{state="used"}'] or values["advise_leases"]):
            return
        await asyncio.sleep(0.005)
