"""Clients of the fault suite: what each of them sent, and every token, time and status that it got.

An answer is whole when it is a 200 with its end; what is missing or wrong is for `judged` to say, beside the
tokens of a quiet run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

import aiohttp
import msgspec

PATIENCE_S = 60.0  # nobody may wait for 30 s: who waits so long has been forgotten
_DATA, _DONE = b"data: ", b"[DONE]"


class Ask(NamedTuple):
    """A completion of token ids."""

    prompt: tuple[int, ...]
    tokens: int
    stream: bool


@dataclass(slots=True)
class Got:
    """What came of one Ask; times are `time.monotonic()`. `over`: the answer came to its proper end."""

    number: int
    sent_s: float
    status: int = 0  # 0: no answer at all
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    finish: str | None = None
    over: bool = False
    error: str | None = None
    retry_after: str | None = None
    ended_s: float = 0.0

    @property
    def took_s(self) -> float:
        """From sending to the end."""
        return self.ended_s - self.sent_s


class _Choice(msgspec.Struct):
    token_ids: list[int] = []
    finish_reason: str | None = None


class _Error(msgspec.Struct):
    message: str = ""


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def asks(
    count: int, seed: int, *, vocab: int, longest: int = 120, output: tuple[int, int] = (8, 40)
) -> list[Ask]:
    """Requests whose prompts begin with one of a dozen documents; every second one is a stream."""
    random = Random(seed)

    def ids(size: int) -> tuple[int, ...]:
        return tuple(random.randrange(3, vocab) for _ in range(size))

    documents = [ids(random.randrange(longest // 6, longest * 3 // 4)) for _ in range(12)]
    return [
        Ask(
            random.choice(documents) + ids(random.randrange(1, longest // 4)),
            random.randint(*output),
            n % 2 == 0,
        )
        for n in range(count)
    ]


class Client:
    """Asks one server. `got` has every Ask, in the order of sending."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.got: list[Got] = []
        self._session = session

    async def ask(self, number: int, one: Ask) -> Got:
        """Send it and take the answer in, to whatever end."""
        got = Got(number, time.monotonic())
        self.got.append(got)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._answer(got, one)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            got.error = f"{type(error).__name__}: {error}"
        finally:
            got.ended_s = time.monotonic()
        return got

    async def _answer(self, got: Got, one: Ask) -> None:
        async with self._session.post("/v1/completions", json=body_of(one)) as response:
            got.status = response.status
            got.retry_after = response.headers.get("retry-after")
            if response.content_type == "text/event-stream":
                async for line in response.content:
                    if line.startswith(_DATA):
                        _take(got, line[len(_DATA) :].strip())
            else:
                _take(got, await response.read())
                got.over = True

    @property
    def open(self) -> int:
        """Asks without an end."""
        return sum(not one.ended_s for one in self.got)


def body_of(one: Ask) -> dict[str, object]:
    """The body of a request for exactly so many tokens, as ids."""
    return {
        "prompt": list(one.prompt),
        "max_tokens": one.tokens,
        "stream": one.stream,
        "ignore_eos": True,
        "return_token_ids": True,
        "temperature": 0,
    }


def _take(got: Got, data: bytes) -> None:
    if data == _DONE:
        got.over = True
        return
    answer = _decode(data)
    if answer.error is not None:
        got.error = answer.error.message
    for choice in answer.choices:
        got.tokens += choice.token_ids
        got.times += [time.monotonic()] * len(choice.token_ids)
        got.finish = choice.finish_reason or got.finish


@contextlib.asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    """A client with as many connections as it needs."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(None)) as session:
        yield Client(url, session)


async def closed_loop(client: Client, todo: Sequence[Ask], clients: int, apart_s: float = 0.0) -> None:
    """So many clients, each of which asks again once it is answered; they begin `apart_s` after each other."""
    left = iter(enumerate(todo))

    async def one_client(which: int) -> None:
        await asyncio.sleep(which * apart_s)
        for number, one in left:
            await client.ask(number, one)

    await _all(one_client(which) for which in range(clients))


async def open_loop(
    client: Client, numbers: Sequence[int], todo: Sequence[Ask], rate: float, seed: int
) -> None:
    """Ask these `numbers` of `todo`: Poisson arrivals of `rate` a second, whatever is still open."""
    random, due = Random(seed), time.monotonic()

    async def later(number: int, one: Ask, at_s: float) -> None:
        await asyncio.sleep(at_s - time.monotonic())
        await client.ask(number, one)

    jobs = []
    for number in numbers:
        due += random.expovariate(rate)
        jobs.append(later(number, todo[number], due))
    await _all(jobs)


async def _all(jobs: Iterable[Coroutine[None, None, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(job)


Judgement = Literal["good", "lost", "wrong", "doubled", "refused", "ties"]
Excuse = Callable[[Ask, Sequence[int], Sequence[int]], bool]
"""Whether these tokens and those of the quiet run are both right answers, though they differ."""


def no_excuse(_one: Ask, _tokens: Sequence[int], _quiet: Sequence[int]) -> bool:
    """Tokens that differ are wrong."""
    return False


def judged(got: Got, one: Ask, quiet: Sequence[int], excuse: Excuse = no_excuse) -> Judgement:
    """`lost`: no proper end; `doubled`: more tokens than asked for; `wrong`: others than in the quiet run.

    `refused`: 429 with Retry-After; neither lost nor good. A 503 is lost: the fleet had taken the request.
    `ties`: other tokens, as right as those.
    """
    if got.status == 429 and got.retry_after:
        return "refused"
    if len(got.tokens) > one.tokens:
        return "doubled"
    if not (got.over and got.status == 200 and got.finish and not got.error and len(got.tokens) == one.tokens):
        return "lost"
    if got.tokens == list(quiet):
        return "good"
    return "ties" if excuse(one, got.tokens, quiet) else "wrong"
