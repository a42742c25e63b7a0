"""Thousands of requests over HTTP to one server process: its memory stays, every block comes back.

Whole answers, streams, clients that leave at any time, requests that are refused; in a cache that is too small
for all prefixes, so that eviction and preemption go on throughout. A sample of the process's resident memory is
taken every 250 requests; its slope is by least squares, after the first 1,000 have filled caches and pools.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import numpy as np
import pytest
from helpers.server import blocks, client, eventually, fake_engine, metrics
from helpers.server_emulated import emulated_engine

from advisor.deploy.local import RunningEngine
from engine.config import PoolConfig

POOL = PoolConfig(kv_tokens=1024, token_budget=128, max_seqs=32)
CLIENTS = 32
SAMPLE_EVERY, WARM_UP = 250, 1_000
MB_PER_1000 = 1.0
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6
LONG = "x" * 5000


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MB


def open_files(pid: int) -> int:
    """Files and sockets that a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def slope_mb(samples: list[tuple[int, float]]) -> float:
    """MB per 1,000 requests, by least squares."""
    requests, memory = np.array(samples).T
    return float(np.polyfit(requests / 1000, memory, 1)[0])


def body_of(random: Random, extras: list[dict[str, Any]]) -> dict[str, Any]:
    """A good completion: one of eight documents, a question, mostly few tokens out."""
    document = str(random.randrange(8)) * random.choice([16, 64, 160])
    body: dict[str, Any] = {
        "prompt": document + str(random.randrange(10**6)),
        "max_tokens": random.choice([random.randrange(1, 25), random.randrange(1, 25), 150]),
        "stream": random.random() < 0.5,
        "return_token_ids": random.random() < 0.5,
    }
    if random.random() < 0.3:
        body["cache_salt"] = random.choice("ab")
    return body | random.choice([{}, *extras])


BAD: list[tuple[dict[str, Any], int]] = [
    ({"prompt": ""}, 400),
    ({"prompt": LONG}, 400),
    ({"prompt": [1, 2], "max_tokens": -1}, 400),
    ({"prompt": [1, 2], "temperature": "hot"}, 400),
    ({"prompt": "a", "model": "another"}, 404),
    ({}, 400),
]


class Traffic:
    """Clients that send one request after the other. `done` counts how they ended."""

    def __init__(self, url: str, requests: int, seed: int, extras: list[dict[str, Any]]) -> None:
        self.url, self.requests, self.extras = url, requests, extras
        self.random = Random(seed)
        self.done: Counter[str] = Counter()

    async def run(self, after_each: Callable[[int], None]) -> None:
        connector = aiohttp.TCPConnector(limit=CLIENTS)
        async with aiohttp.ClientSession(self.url, connector=connector) as session:
            left = iter(range(1, self.requests + 1))

            async def one_client() -> None:
                for number in left:
                    await self.request(session)
                    after_each(number)

            async with asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(one_client())

    async def request(self, session: aiohttp.ClientSession) -> None:
        random = self.random
        luck = random.random()
        if luck < 0.1:
            bad, status = random.choice(BAD)
            async with session.post("/v1/completions", json=bad) as response:
                assert response.status == status, await response.text()
            self.done["refused"] += 1
        elif luck < 0.2:
            messages = [{"role": "user", "content": "y" * random.randrange(1, 200)}]
            chat = {
                "messages": messages,
                "max_tokens": random.randrange(1, 25),
                "stream": random.random() < 0.5,
            }
            async with session.post("/v1/chat/completions", json=chat) as response:
                await self.answered(response)
        elif luck < 0.45:
            await self.leave(session)
        else:
            async with session.post("/v1/completions", json=body_of(random, self.extras)) as response:
                await self.answered(response)

    async def answered(self, response: aiohttp.ClientResponse) -> None:
        text = await response.text()
        assert response.status == 200, text
        streamed = response.content_type == "text/event-stream"
        assert not streamed or text.endswith("data: [DONE]\n\n")
        self.done["streamed" if streamed else "whole"] += 1

    async def leave(self, session: aiohttp.ClientSession) -> None:
        """Go away: after some bytes of a stream, or after some milliseconds whatever has come."""
        body = body_of(self.random, self.extras) | {"max_tokens": 200}
        if self.random.random() < 0.5:
            async with session.post("/v1/completions", json=body | {"stream": True}) as response:
                await response.content.readany()
                response.close()
            self.done["left a stream"] += 1
            return
        try:
            async with asyncio.timeout(self.random.uniform(0.0, 0.05)):
                async with session.post("/v1/completions", json=body) as response:
                    await response.read()
        except TimeoutError:
            self.done["left early"] += 1
        else:
            self.done["whole"] += 1


def served_extras(engine: RunningEngine) -> list[dict[str, Any]]:
    """Of what a later version may serve, what this one does."""
    wanted = [{"n": 2, "temperature": 1.0}, {"stop": ["llo", "never"]}, {"logprobs": 2}]
    with client(engine) as http:
        return [one for one in wanted if http.post("/v1/completions", json={"prompt": "a"} | one).is_success]


def soak(engine: RunningEngine, requests: int, seed: int) -> list[tuple[int, float]]:
    """Send so many requests; then all must be over and every block back. Returns memory samples."""
    pid = engine.info.pid
    extras = served_extras(engine)
    traffic = Traffic(engine.url, requests, seed, extras)
    samples: list[tuple[int, float]] = []

    def sample(number: int) -> None:
        if number % SAMPLE_EVERY == 0:
            samples.append((number, resident_mb(pid)))

    files = open_files(pid)
    asyncio.run(traffic.run(sample))
    with client(engine) as http:

        def quiet() -> bool:
            values = metrics(http)
            return values["advise_requests_running"] == values["advise_requests_queued"] == 0

        eventually(quiet, "nothing waits or runs")
        eventually(lambda: blocks(metrics(http))["used"] == 0, "every block is back")
        values = metrics(http)
        eventually(lambda: open_files(pid) <= files + 2, "connections are closed")
    held = blocks(values)
    assert held["free"] + held["cached"] == held["total"]
    assert values.get("advise_invariant_violations_total", 0) == 0
    assert values['advise_requests_total{finish_reason="abort"}'] > requests / 50
    assert engine.exit_status is None
    print(dict(traffic.done), f"also {extras}", values["advise_preemptions_total"], "preemptions")  # noqa: T201
    assert values["advise_preemptions_total"] > 0
    assert sum(traffic.done.values()) == requests
    assert min(traffic.done[kind] for kind in ("refused", "whole", "streamed", "left a stream")) > requests / 50
    return samples


def test_500_requests_of_all_kinds_leave_nothing_behind() -> None:
    with fake_engine("sleep:0.0005", pool=POOL) as engine:
        soak(engine, 500, seed=1)
        with client(engine) as http:
            health = http.get("/health").json()
            assert (health["status"], health["instances"][0]["restarts"]) == ("ready", 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fake", "emulated"])
def test_10_000_requests_leave_memory_as_it_was(kind: str) -> None:
    start = fake_engine("sleep:0.0005", pool=POOL) if kind == "fake" else emulated_engine(5e-4, 2e-6, pool=POOL)
    with start as engine:
        samples = soak(engine, 10_000, seed=2)
    settled = [(number, memory) for number, memory in samples if number > WARM_UP]
    slope = slope_mb(settled)
    print(f"{slope:+.3f} MB per 1,000 requests, {settled[0][1]:.1f} to {settled[-1][1]:.1f} MB")  # noqa: T201
    assert slope <= MB_PER_1000
