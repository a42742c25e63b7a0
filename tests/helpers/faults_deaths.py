"""Instances that die, stall or hang under load, and links that fail: what the fleet's clients notice of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from random import Random

from helpers.faults_client import Ask, Client, client_of, closed_loop, open_loop
from helpers.faults_run import CLIENTS, Row, Stage, moment, under_fault
from helpers.faults_watch import Times, Watch, settled, strike, watching

from advisor.deploy.local import RunningEngine

STALL_S = 3.0
OUT_WITHIN_S = 10.0
PATIENCE_S = 30.0


async def kill(stage: Stage, row: Row, random: Random, *, role: str) -> None:
    """SIGKILL one instance of `role` at a random moment; it is replaced."""
    name = _one_of(stage.engine, role, random)

    async def fault(watch: Watch, client: Client) -> Times:
        await moment(client, stage.quiet, random)
        return await strike(watch, name)

    before = await _events(stage.engine)
    values = await under_fault(stage, row, fault)
    row.figures["requeued"] = values[_REQUEUED] - before[_REQUEUED]
    row.figures["hit"] = len(row.delays_s)


async def kill_all(stage: Stage, row: Row, random: Random) -> None:
    """SIGKILL every instance at the same moment: requests wait for the first that is back."""

    async def fault(watch: Watch, client: Client) -> Times:
        await moment(client, stage.quiet, random)
        all_times = await asyncio.gather(*(strike(watch, one.name) for one in stage.engine.info.instances))
        return max(all_times, key=lambda one: one.back_s or 0.0)

    await under_fault(stage, row, fault)


async def kills_open_loop(stage: Stage, row: Row, random: Random, *, role: str, kills: int = 3) -> None:
    """Poisson arrivals at 70 % of what the quiet run sustained, and several deaths meanwhile."""
    rate = 0.7 * len(stage.quiet.todo) / stage.quiet.seconds
    lasts = len(stage.quiet.todo) / rate

    async def fault(watch: Watch, _: Client) -> Times:
        at, done = sorted(random.uniform(0.05, 0.85) * lasts for _ in range(kills)), []
        began = time.monotonic()
        for moment_s in at:
            await asyncio.sleep(max(0.0, began + moment_s - time.monotonic()))
            done.append(await strike(watch, _one_of(stage.engine, role, random)))
        slowest = max(done, key=lambda one: one.back_s or 0.0)
        return Times(slowest.at_s, max(one.detected_s for one in done), slowest.back_s)

    async def load(client: Client, todo: Sequence[Ask]) -> None:
        await open_loop(client, range(len(todo)), todo, rate, seed=random.randrange(1 << 30))

    await under_fault(stage, row, fault, load=load)
    row.figures |= {"rate_per_s": rate, "kills": kills}
    row.delays_s = []  # a closed loop of many clients is no measure for them


async def chaos(stage: Stage, row: Row, random: Random, *, seconds: float = 60.0) -> None:
    """Instances die, stall for a while and die again under a load that goes on."""
    stop = time.monotonic() + seconds

    async def fault(watch: Watch, _: Client) -> None:
        while time.monotonic() < stop:
            await asyncio.sleep(random.uniform(0.2, 4.0))
            now = watch.now(random.choice(stage.engine.info.instances).name)
            if now.state != "up" or now.pid is None:
                continue
            kind = random.choice((signal.SIGKILL, signal.SIGSTOP))
            row.figures[kind.name] = row.figures.get(kind.name, 0) + 1
            os.kill(now.pid, kind)
            if kind is signal.SIGSTOP:
                await asyncio.sleep(random.uniform(0.1, 3.0))
                os.kill(now.pid, signal.SIGCONT)
        await asyncio.gather(*(watch.until(name, lambda one: one.state == "up", 60) for name in watch.seen))

    async def load(client: Client, todo: Sequence[Ask]) -> None:
        while time.monotonic() < stop:
            await closed_loop(client, todo, CLIENTS)

    await under_fault(stage, row, fault, load=load)


async def alone(stage: Stage, row: Row, random: Random) -> None:
    """The last decode instance dies and may not be replaced: the other side serves on, `degraded`."""

    async def fault(watch: Watch, client: Client) -> Times:
        await moment(client, stage.quiet, random)
        times = await strike(watch, "decode-0", back=False)
        await asyncio.sleep(0.5)
        if not watch.now("decode-0").degraded or watch.now("decode-0").state != "lost":
            row.why.append("/health does not say degraded")
        return times

    values = await under_fault(stage, row, fault)
    if values["advise_degraded"] != 1 or values['advise_instance_up{instance="decode-0"}'] != 0:
        row.why.append("metrics do not say degraded")
    row.figures["hit"] = len(row.delays_s)


async def stall(stage: Stage, row: Row, random: Random, *, role: str) -> None:
    """SIGSTOP for 3 s: nobody may be declared dead."""
    name = _one_of(stage.engine, role, random)

    async def fault(watch: Watch, client: Client) -> None:
        await moment(client, stage.quiet, random)
        pid = watch.now(name).pid
        assert pid is not None
        since = len(watch.seen[name])
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(STALL_S)
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(1.0)
        if any(one.pid != pid or one.state != "up" for one in watch.seen[name][since:]):
            row.why.append("a false death")

    await under_fault(stage, row, fault)


async def hang(stage: Stage, row: Row, random: Random, *, role: str) -> None:
    """SIGSTOP for ever: out of rotation, killed and replaced; nobody waits long."""
    name = _one_of(stage.engine, role, random)

    async def fault(watch: Watch, client: Client) -> Times:
        await moment(client, stage.quiet, random)
        return await strike(watch, name, signal.SIGSTOP)

    await under_fault(stage, row, fault)
    if row.figures["detected_s"] > OUT_WITHIN_S:
        row.why.append("out of rotation too late")
    if row.figures["longest_s"] > PATIENCE_S:
        row.why.append("a client waited too long")


async def faulty_link(stage: Stage, row: Row, _: Random, *, result: str | None) -> None:
    """Pulls fail or arrive corrupted, or take long (`result` None): as the fleet was started with."""
    before = await _events(stage.engine)

    async def fault(_watch: Watch, _client: Client) -> None:
        return None

    values = await under_fault(stage, row, fault)
    counted = sum(
        values[name] - before.get(name, 0.0)
        for name in values
        if name.startswith("advise_kv_transfers_total{") and f'result="{result or "ok"}"' in name
    )
    row.figures["pulls_ok" if result is None else "retries"] = counted
    if not counted:
        row.why.append(f"no pull ended as {result or 'ok'}")


async def holders(stage: Stage, row: Row, _: Random) -> None:
    """Kill whoever has the request, again and again: after three deaths a 503 that says why."""
    engine, [one] = stage.engine, stage.quiet.todo
    async with client_of(engine.url) as client, watching(engine.url) as watch:
        asking = asyncio.create_task(client.ask(0, one))
        struck = 0.0
        killed: set[int] = set()
        while not asking.done():
            values = await watch.metrics()
            for name in watch.seen:
                now = watch.now(name)
                running = values.get(f'advise_requests_running{{instance="{name}"}}', 0.0)
                if running and now.state == "up" and now.pid is not None and now.pid not in killed:
                    killed.add(now.pid)
                    struck = time.monotonic()
                    os.kill(now.pid, signal.SIGKILL)
            await asyncio.sleep(0.01)
        got = await asking
        for name in watch.seen:
            if watch.now(name).state != "up":
                await watch.until(name, lambda seen: seen.state == "up", 60)
        await settled(watch)
        again = await client.ask(1, one._replace(tokens=5))
    row.requests += 1
    row.figures |= {"deaths": len(killed), "answered_s": got.ended_s - struck}
    reason = (got.error or "").endswith("its instance died 3 times")
    row.refused += reason and (got.status == 503 or one.stream)
    row.lost += not reason
    if len(killed) != 3 or (not one.stream and not (got.status == 503 and got.retry_after)):
        row.why.append(f"{len(killed)} deaths, then {got.status} {got.error}")
    if not again.over or len(again.tokens) != 5:
        row.why.append(f"afterwards {again.status} {again.error}")


_REQUEUED = 'advise_fleet_events_total{event="requeued"}'


async def _events(engine: RunningEngine) -> dict[str, float]:
    async with watching(engine.url) as watch:
        return await watch.metrics()


def _one_of(engine: RunningEngine, role: str, random: Random) -> str:
    return random.choice([one.name for one in engine.info.instances if one.role == role])
