"""Generated request bodies get planned answers from a server process, and the next client is served.

Planned: what the API says for a request, 200 or 4xx, and 503 or 429 where a limit is reached. An error is in
OpenAI's form and names no path of ours, no type of Python and no address.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from io import BytesIO

import aiohttp
import pytest
from helpers.request_bodies import Bodies
from helpers.server import blocks, client, eventually, fake_engine, metrics

from advisor.deploy.local import RunningEngine

CLIENTS = 8
EVERY = 100
PLANNED_5XX = (503,)
LEAKS = re.compile(rb"Traceback|0x[0-9a-f]{6,}|/site-packages/|\.py\b|<class |pydantic")
GOOD = {"prompt": "hello", "max_tokens": 4}


class Attack:
    """Sends bodies and keeps what was wrong about the answers."""

    def __init__(self, url: str, bodies: Bodies) -> None:
        self.url, self.bodies = url, bodies
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.good = 0

    async def run(self, number: int) -> None:
        connector = aiohttp.TCPConnector(limit=CLIENTS)
        async with aiohttp.ClientSession(self.url, connector=connector) as session:
            for start in range(0, number, EVERY):
                left = iter(range(min(EVERY, number - start)))
                await asyncio.gather(*(self.one_client(session, left) for _ in range(CLIENTS)))
                async with session.post("/v1/completions", json=GOOD) as response:
                    assert response.status == 200, await response.text()
                self.good += 1

    async def one_client(self, session: aiohttp.ClientSession, left: Iterator[int]) -> None:
        for _ in left:
            await self.send(session)

    async def send(self, session: aiohttp.ClientSession) -> None:
        route, body = self.bodies.make()
        headers = {"content-type": "application/json"}
        try:
            async with session.post(route, data=BytesIO(body), headers=headers) as response:
                status, answer = response.status, await response.read()
        except aiohttp.ClientError as error:
            # Only of a body that is refused before all of it is read may the connection end.
            if len(body) < 100_000:
                self.wrong.append(f"{type(error).__name__}: {body[:200]!r}")
            self.statuses[0] += 1
            return
        self.statuses[status] += 1
        if status >= 500 and status not in PLANNED_5XX:
            self.wrong.append(f"{status}: {route} {body[:300]!r}")
        if status != 200 and (LEAKS.search(answer) or not answer.startswith(b'{"error":{')):
            self.wrong.append(f"{status} says {answer[:300]!r}: {body[:200]!r}")


def attack(engine: RunningEngine, number: int, seed: int) -> None:
    one = Attack(engine.url, Bodies(seed))
    asyncio.run(one.run(number))
    print(dict(one.statuses), one.good, "good requests between")  # noqa: T201 - the figure that is asked for
    assert not one.wrong, "\n".join(one.wrong[:10])
    assert engine.exit_status is None
    assert one.statuses.total() == number
    # Bodies that are all refused for one reason would prove nothing.
    assert 0.03 < one.statuses[200] / number < 0.5
    with client(engine) as http:
        eventually(lambda: blocks(metrics(http))["used"] == 0, "every block is back")
        assert metrics(http).get("advise_invariant_violations_total", 0) == 0
        assert http.get("/health").is_success


def test_600_generated_bodies_get_planned_answers() -> None:
    with fake_engine() as engine:
        attack(engine, 600, seed=3)


@pytest.mark.slow
def test_10_000_generated_bodies_get_planned_answers() -> None:
    with fake_engine() as engine:
        attack(engine, 10_000, seed=4)
