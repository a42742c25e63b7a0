"""The router told to stop, and the router killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from random import Random

import aiohttp
from helpers.faults_client import client_of
from helpers.faults_run import Row, Stage
from helpers.faults_watch import settled, watching

DRAIN_S = 30.0


async def sigterm(stage: Stage, row: Row, _: Random) -> None:
    """SIGTERM while all of `quiet.todo` runs: all of it is answered, nothing new is taken, exit 0."""
    engine, quiet = stage.engine, stage.quiet
    async with client_of(engine.url) as client:
        asking = [asyncio.create_task(client.ask(n, one)) for n, one in enumerate(quiet.todo)]
        while sum(bool(one.tokens) for one in client.got) < len(asking) // 2:
            await asyncio.sleep(0.002)
        open_then = client.open
        at = time.monotonic()
        os.kill(engine.info.pid, signal.SIGTERM)
        await asyncio.sleep(0.05)
        late = await client.ask(len(asking), quiet.todo[0])
        ready = await _health(engine.url)
        await asyncio.gather(*asking)
    status = await asyncio.to_thread(engine.wait, DRAIN_S)
    row.figures |= {
        "open": open_then,
        "exit_s": time.monotonic() - at,
        "status": -1 if status is None else status,
    }
    row.take(client.got[: len(asking)], quiet)
    if late.status != 503 or not late.retry_after:
        row.why.append(f"a new request: {late.status} {late.retry_after} {late.error}")
    if ready != 503:
        row.why.append(f"/health: {ready}")
    if status != 0:
        row.why.append(f"exit status {status}: {engine.tail()}")


async def router_killed(stage: Stage, row: Row, _: Random) -> None:
    """SIGKILL the router: its clients lose what is open; its instances end, and a new router serves."""
    engine, quiet = stage.engine, stage.quiet
    pids = [one.pid for one in engine.info.instances]
    async with client_of(engine.url) as client:
        asking = [asyncio.create_task(client.ask(n, one)) for n, one in enumerate(quiet.todo)]
        while sum(bool(one.tokens) for one in client.got) < len(asking) // 4:
            await asyncio.sleep(0.002)
        open_then, at = client.open, time.monotonic()
        os.kill(engine.info.pid, signal.SIGKILL)
        await asyncio.gather(*asking)
    row.take(client.got, quiet)
    row.why.clear()  # that requests are lost is what this row says
    row.figures |= {"open": open_then, "clients_know_s": max(one.ended_s for one in client.got) - at}
    while any(map(_runs, pids)) and time.monotonic() < at + 10:
        await asyncio.sleep(0.005)
    row.figures["instances_end_s"] = time.monotonic() - at
    if time.monotonic() >= at + 10:
        row.why.append("instances outlive their router")
    began, port = time.monotonic(), int(engine.url.rpartition(":")[2])
    with await asyncio.to_thread(stage.spec.start, stage.folder, port=port, log=stage.log) as new:
        row.figures["ready_s"] = time.monotonic() - began
        async with client_of(new.url) as client, watching(new.url) as watch:
            await settled(watch)  # nothing is held that nobody asked for
            for number, one in enumerate(quiet.todo[:5]):
                again = await client.ask(number, one)
                if again.tokens != quiet.tokens[number]:
                    row.why.append(f"afterwards {again.status} {again.error}")
            await settled(watch)


async def _health(url: str) -> int:
    async with aiohttp.ClientSession(url) as session, session.get("/health") as response:
        return response.status


def _runs(pid: int) -> bool:
    """Of a zombie there is no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
