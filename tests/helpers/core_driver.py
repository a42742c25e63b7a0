"""Drives an EngineCore with the echo model on a clock that counts steps, checking invariants on the way."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from helpers.echo import EchoExecutor

from engine.config import PoolConfig
from engine.core import EngineCore, TokenEvent
from engine.request import Request, SamplingParams
from engine.step import Step


def request(
    name: str, prompt: Iterable[int], output: int = 4, *, namespace: str = "", min_tokens: int = 0
) -> Request:
    """A request for up to `output` tokens."""
    sampling = SamplingParams(max_tokens=output, min_tokens=min_tokens)
    return Request(name, tuple(prompt), sampling, namespace)


class Driver:
    """One core with its executor; `outputs` and `last` (event) by request id."""

    def __init__(
        self,
        pool: PoolConfig,
        *,
        num_blocks: int = 1000,
        max_len: int = 10_000,
        eos: frozenset[int] = frozenset(),
        max_preemptions: int = 3,
        seed: int | None = None,
        overlap: bool = False,
    ) -> None:
        self.core = EngineCore(
            pool,
            num_blocks=num_blocks,
            max_len=max_len,
            eos_token_ids=eos,
            max_preemptions=max_preemptions,
            shuffle=None if seed is None else Random(seed),
            overlap=overlap,
        )
        self.echo = EchoExecutor(num_blocks, pool.block_size, eos)
        self.outputs: dict[str, list[int]] = {}
        self.last: dict[str, TokenEvent] = {}
        self.now = 0.0

    def add(self, *requests: Request) -> None:
        for one in requests:
            self.core.add(one, self.now)
            self.echo.expect(one)
            self.outputs[one.id] = []
            self.core.check_invariants()

    def begin(self) -> Step | None:
        step = self.core.next_step(self.now)
        self.core.check_invariants()
        return step

    def finish(self, step: Step) -> None:
        self.now += 1.0
        self.record(self.core.complete(step.id, self.echo.submit(step).result(), self.now))

    def abort(self, request_id: str) -> None:
        self.record(self.core.abort(request_id, self.now))

    def record(self, events: list[TokenEvent]) -> None:
        self.core.check_invariants()
        for event in events:
            if event.token is not None:
                assert event.index == len(self.outputs[event.request_id])
                self.outputs[event.request_id].append(event.token)
            previous = self.last.get(event.request_id)
            assert previous is None or previous.finish_reason is None, "an event after the last"
            self.last[event.request_id] = event

    def step(self) -> Step:
        """One whole step; there must be work."""
        step = self.begin()
        assert step is not None, "requests are open but no step is made"
        self.finish(step)
        return step

    def run(self, *requests: Request) -> list[Step]:
        """Add, then step until nothing is left to do."""
        self.add(*requests)
        steps = []
        while self.core.has_work:
            steps.append(self.step())
        stats = self.core.stats()
        assert stats.blocks_used == 0, "blocks leak"
        return steps
