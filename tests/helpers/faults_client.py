"""Clients of the fault suite: what each of them sent, and every token, time and status that it got.

An answer is whole when it is a 200 with its end; what is missing or wrong is for `verdict` to say, beside the
tokens of a quiet run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import aiohttp
import msgspec

PATIENCE_S = 120.0  # longer than anything here may take: who waits so long has been forgotten
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


async def closed_loop(client: Client, todo: Sequence[Ask], clients: int) -> None:
    """So many clients, each of which asks again once it is answered."""
    left = iter(enumerate(todo))

    async def one_client() -> None:
        for number, one in left:
            await client.ask(number, one)

    await _all(one_client() for _ in range(clients))


async def open_loop(client: Client, todo: Sequence[Ask], rate: float, seed: int) -> None:
    """Poisson arrivals of `rate` a second, whatever is still open."""
    random, due = Random(seed), time.monotonic()

    async def later(number: int, one: Ask, at_s: float) -> None:
        await asyncio.sleep(at_s - time.monotonic())
        await client.ask(number, one)

    jobs = []
    for number, one in enumerate(todo):
        due += random.expovariate(rate)
        jobs.append(later(number, one, due))
    await _all(jobs)


async def _all(jobs: Iterable[Coroutine[None, None, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(job)


class Verdict(NamedTuple):
    """Requests, and of them: `lost` have no proper end, `wrong` other tokens than the quiet run, `doubled` more.

    `refused`: 429 and 503 with Retry-After, before any token; they are neither lost nor good. `ties`: other
    tokens, which are as right.
    """

    requests: int
    lost: int
    wrong: int
    doubled: int
    refused: int
    ties: int
    why: tuple[str, ...]


Excuse = Callable[[Ask, Sequence[int], Sequence[int]], bool]
"""Whether these tokens and those of the quiet run are both right answers, though they differ."""


def no_excuse(_one: Ask, _tokens: Sequence[int], _quiet: Sequence[int]) -> bool:
    """Tokens that differ are wrong."""
    return False


def verdict(
    got: Sequence[Got], todo: Sequence[Ask], quiet: Sequence[Sequence[int]], excuse: Excuse = no_excuse
) -> Verdict:
    """Every request of `todo` is to have been answered once, with the tokens of the quiet run."""
    lost = wrong = doubled = refused = ties = 0
    why: list[str] = []
    by_number = {one.number: one for one in got}
    for number, ask in enumerate(todo):
        one = by_number.get(number)
        if one is None:
            lost += 1
            why.append(f"{number}: never sent")
        elif one.status in (429, 503) and one.retry_after and not one.tokens:
            refused += 1
        elif len(one.tokens) > ask.tokens:
            doubled += 1
            why.append(f"{number}: {len(one.tokens)} tokens of {ask.tokens}")
        elif not (one.over and one.status == 200 and one.finish and len(one.tokens) == ask.tokens):
            lost += 1
            why.append(f"{number}: {one.status} {one.error} {one.finish} {len(one.tokens)}/{ask.tokens}")
        elif one.tokens != list(quiet[number]) and excuse(ask, one.tokens, quiet[number]):
            ties += 1
        elif one.tokens != list(quiet[number]):
            wrong += 1
            at = next(i for i, (a, b) in enumerate(zip(one.tokens, quiet[number], strict=True)) if a != b)
            why.append(f"{number}: token {at} of {ask.tokens}")
    return Verdict(len(todo), lost, wrong, doubled, refused, ties, tuple(why[:5]))
