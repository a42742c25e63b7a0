"""Front and driver in this process: each request ends once, in the right way, whatever is aborted when."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import pytest
from helpers.server_fake import FakeExecutor, FakeHandle
from helpers.threads import Thread, Threads, front_over

from engine.config import PoolConfig
from engine.core import EngineCore
from engine.request import Request, SamplingParams
from engine.server.front import Front
from engine.server.ticket import Ticket
from engine.step import Step, StepResult

TEXT = "abcdefg"


def engine_loop(
    pool: PoolConfig,
    *,
    fail_at: int | None = None,
    shared_block: int = 0,
    overlap: bool = False,
    executor: FakeExecutor | None = None,
) -> Front:
    core = EngineCore(pool, num_blocks=41, max_len=512, eos_token_ids=frozenset({0}), overlap=overlap)
    executor = executor or FakeExecutor(TEXT, fail_at=fail_at)
    threads = Threads([Thread(core, executor)], time.monotonic)
    return front_over(threads, [pool], shared_block=shared_block)


def request(number: int, prompt: int, output: int) -> Request:
    return Request(f"r{number}", tuple(range(1, prompt + 1)), SamplingParams(output, ignore_eos=True))


def expected(ticket: Ticket) -> list[int]:
    """What the fake answers: the token at position p is TEXT[p]."""
    start, length = len(ticket.request.prompt), len(ticket.tokens)
    return [ord(TEXT[position % len(TEXT)]) for position in range(start, start + length)]


class CountingExecutor(FakeExecutor):
    """Knows how many steps were in flight at most, and runs each only when its result is asked for."""

    in_flight = most = 0

    def submit(self, step: Step) -> FakeHandle:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        return super().submit(step)

    def run(self, step: Step) -> StepResult:
        self.in_flight -= 1
        return super().run(step)


@pytest.mark.parametrize("overlap", [False, True])
def test_two_steps_are_in_flight_with_overlap_and_answers_are_the_same(overlap: bool) -> None:
    async def run() -> None:
        executor = CountingExecutor(TEXT)
        loop = engine_loop(PoolConfig(block_size=4), overlap=overlap, executor=executor)
        await loop.start(lambda: pytest.fail("the engine failed"))
        tickets = [loop.add(request(number, 5 + number, 20), stream=False) for number in range(3)]
        for ticket in tickets:
            assert (await ticket.ended()).reason == "length"
            assert ticket.tokens == expected(ticket)
            assert len(ticket.tokens) == 20
        await loop.stop()
        assert (executor.most, executor.in_flight) == (2 if overlap else 1, 0)

    asyncio.run(run())


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_random_arrivals_and_aborts_end_each_request_once(seed: int, overlap: bool) -> None:
    asyncio.run(_random_run(random.Random(seed), overlap))


async def _random_run(draw: random.Random, overlap: bool) -> None:
    # 40 blocks of 4 tokens and prompts of up to 60: some wait, some are preempted.
    loop = engine_loop(PoolConfig(block_size=4, token_budget=16, max_seqs=8), overlap=overlap)
    await loop.start(lambda: pytest.fail("the engine failed"))
    tickets: list[Ticket] = []
    aborted: set[str] = set()
    for number in range(150):
        ticket = loop.add(request(number, draw.randint(1, 60), draw.randint(1, 40)), stream=draw.random() < 0.5)
        tickets.append(ticket)
        if draw.random() < 0.3:
            victim = draw.choice(tickets)
            aborted.add(victim.request.id)
            loop.abort(victim)
            loop.abort(victim)  # twice, and of ended requests too: both must do nothing
        if draw.random() < 0.3:
            await asyncio.sleep(0.001)
        loop.check_invariants()
    endings = [await ticket.ended() for ticket in tickets]
    await loop.stop()
    loop.check_invariants()
    assert (loop.open, loop.waiting) == (0, 0)
    for ticket, ending in zip(tickets, endings, strict=True):
        assert ticket.tokens == expected(ticket)
        if ending.reason == "length":
            assert len(ticket.tokens) == ticket.request.sampling.max_tokens
        else:
            assert ending.reason == "abort"
            assert ticket.request.id in aborted


@pytest.mark.parametrize("seed", range(5))
def test_choices_that_wait_for_the_first_end_once_whatever_is_aborted_or_finished(seed: int) -> None:
    async def run(draw: random.Random) -> None:
        loop = engine_loop(PoolConfig(block_size=4, token_budget=16, max_seqs=8), shared_block=4)
        await loop.start(lambda: pytest.fail("the engine failed"))
        tickets: list[Ticket] = []
        early: dict[str, set[str]] = {}
        for number in range(60):
            group = [request(10 * number + n, draw.randint(1, 60), 20) for n in range(draw.randint(1, 4))]
            group = [replace(one, prompt=group[0].prompt) for one in group]
            tickets += loop.add_choices(group, asyncio.Event(), stream=False)
            for _ in range(draw.choice([0, 0, 1, 3])):
                victim = draw.choice(tickets[-6:])
                reason = draw.choice(["abort", "stop"])
                early.setdefault(victim.request.id, set()).add(reason)
                loop.abort(victim) if reason == "abort" else loop.finish(victim)
            if draw.random() < 0.3:
                await asyncio.sleep(0.001)
            loop.check_invariants()
        endings = [await ticket.ended() for ticket in tickets]
        await loop.stop()
        loop.check_invariants()
        assert (loop.open, loop.waiting) == (0, 0)
        for ticket, ending in zip(tickets, endings, strict=True):
            assert ticket.tokens == expected(ticket)
            assert ending.reason in {"length", *early.get(ticket.request.id, ())}

    asyncio.run(run(random.Random(seed)))


def test_a_slow_reader_gets_every_token_in_order() -> None:
    async def run() -> None:
        loop = engine_loop(PoolConfig())
        await loop.start(lambda: pytest.fail("the engine failed"))
        ticket, got = loop.add(request(0, 3, 200), stream=True), []
        while ticket.ending is None:
            await ticket.wake.wait()
            ticket.wake.clear()
            got += ticket.tokens[len(got) :]
            await asyncio.sleep(0.002)
        await loop.stop()
        assert got + ticket.tokens[len(got) :] == expected(ticket)
        assert len(ticket.tokens) == 200

    asyncio.run(run())


def test_a_request_that_the_core_refuses_ends_with_an_error() -> None:
    async def run() -> None:
        loop = engine_loop(PoolConfig())
        await loop.start(lambda: pytest.fail("the engine failed"))
        ticket = loop.add(request(0, 600, 1), stream=False)  # over the 512 tokens of max_len
        assert (await ticket.ended()).reason == "error"
        assert (await loop.add(request(1, 3, 1), stream=False).ended()).reason == "length"
        await loop.stop()

    asyncio.run(run())


def test_a_failure_ends_running_and_waiting_requests_and_is_kept() -> None:
    async def run() -> None:
        failed = asyncio.Event()
        loop = engine_loop(PoolConfig(max_seqs=1), fail_at=1)
        await loop.start(failed.set)
        tickets = [loop.add(request(n, 3, 100), stream=False) for n in range(3)]
        assert [(await ticket.ended()).reason for ticket in tickets] == ["error"] * 3
        await failed.wait()
        assert "told to fail" in str(loop.failure)
        await loop.stop()

    asyncio.run(run())
