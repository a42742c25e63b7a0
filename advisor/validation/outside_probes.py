"""The probes of a calibration from outside: which are sent, in which order, and what is kept of them.

    a first look (speed) -> the token budget -> passes of lone prompts, streams, prompts beside streams

Knows no network and no clock of its own: `Answer` serves requests, so that an endpoint on a virtual clock is
measured by the same code. Never sends two probes at once.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from advisor.validation.outside_design import LONG_S, Design, Speed, budget_of, design, longest_prompt
from advisor.validation.outside_rows import (
    Row,
    complete,
    decode_rows,
    excess_s,
    lone_row,
    mixed_rows,
    tokens_per_chunk,
)
from advisor.validation.record import COMPLETE, OPEN, Record
from engine.errors import MachineError
from engine.progress import Progress

LIMIT_S = 300.0
ENOUGH_S = 120.0  # passes go on for so long, two at least (ours)
_LOOK, _LOOK_OUTPUT, _BUDGET_OUTPUT = 64, 16, 80  # tokens


class Ask(NamedTuple):
    """One request of a probe: when it is sent, seconds on the clock that is measured, and its tokens."""

    at_s: float
    prompt: int
    output: int


Answer = Callable[[Sequence[Ask]], Awaitable[list[Record]]]


@dataclass(slots=True)
class Measured:
    """What the probes have shown so far."""

    design: Design
    lone: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    refused: set[int] = field(default_factory=set)  # numbers of streams that were not all served
    cached: bool = False
    coarse: float = 1.0  # tokens a chunk, the most of a probe
    passes: int = 0

    @property
    def steps(self) -> int:
        """Rows of a fit."""
        return len(self.lone) + len(self.rows)


async def measure(
    answer: Answer,
    *,
    on_cpu: bool,
    max_len: int | None,
    budget: int | None = None,
    most_streams: int | None = None,
    enough_s: float = ENOUGH_S,
    limit_s: float = LIMIT_S,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
    say: Progress = lambda _words: None,
) -> Measured:
    """All probes, as `answer` serves them; `clock` says when time is up. Raises MachineError: nothing is."""
    probes, began_s = _Probes(answer), clock()
    speed = await probes.look()
    longest = longest_prompt(speed, on_cpu=on_cpu, max_len=max_len)
    budget = budget or await probes.budget(speed, longest)
    measured = probes.measured = Measured(
        design(speed, budget, on_cpu=on_cpu, max_len=max_len, most_streams=most_streams)
    )
    for tokens in measured.design.lone:  # kernels are made ready for each length
        await probes.answer([Ask(0.0, tokens, 1)])
    random, plan = Random(seed), measured.design
    # The shortest twice as often: what it takes beside its step is taken out of all of them.
    kinds: list[tuple[int, int]] = [(tokens, 0) for tokens in (*plan.lone, plan.lone[0]) for _ in range(2)]
    kinds += [(0, streams) for streams in plan.streams] + list(plan.mixed)
    while measured.passes < 2 or clock() - began_s < enough_s:
        random.shuffle(kinds)
        for tokens, streams in kinds:
            if clock() - began_s >= limit_s:
                return measured
            if streams not in measured.refused:
                await probes.run(tokens, streams, speed, random.random(), max_len)
        measured.passes += 1
        say(f"pass {measured.passes}: {measured.steps} steps in {clock() - began_s:.0f} s")
    return measured


class _Probes:
    """Sends probes one after another and keeps what they show."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.measured: Measured

    async def look(self) -> Speed:
        """The speed of the endpoint, after a request that makes it ready."""
        await self.answer([Ask(0.0, _LOOK, 2)])
        records = await self.answer([Ask(0.0, _LOOK, _LOOK_OUTPUT)])
        if not complete(records) or len(records[0].t_chunk) < 2:
            raise MachineError(
                "the endpoint does not serve",
                why=f"a request of {_LOOK} tokens ended as {records[0].status}",
                hint="advise doctor --endpoint URL",
            )
        [record] = records
        gap_s = (record.t_chunk[-1] - record.t_chunk[0]) / (len(record.t_chunk) - 1)
        return Speed(_LOOK / lone_row(record).seconds, max(gap_s / tokens_per_chunk(records), 1e-4))

    async def budget(self, speed: Speed, longest: int) -> int | None:
        """The token budget, by what most of a few long prompts beside one stream say."""
        found = []
        for _ in range(1 if speed.gap_s > LONG_S else 3):
            at_s = 2 * _LOOK / speed.prompt_tokens_per_s + 6 * speed.gap_s
            records = await self.answer([Ask(0.0, _LOOK, _BUDGET_OUTPUT), Ask(at_s, longest, 1)])
            if complete(records):
                found.append(budget_of(longest, 1, excess_s(records[:1], records[1])))
        known = sorted(one for one in found if one is not None)
        return known[len(known) // 2] if 2 * len(known) > len(found) else None

    async def run(self, tokens: int, streams: int, speed: Speed, share: float, max_len: int | None) -> None:
        """One probe: a lone prompt (no streams), streams (no tokens), or prompts beside streams."""
        if not streams:
            records = await self._counted([Ask(0.0, tokens, 1)])
            if complete(records):
                self.measured.lone.append(lone_row(records[0]))
            return
        plan = self.measured.design
        context = plan.context(streams, share)
        begins_s = 1.5 * streams * context / speed.prompt_tokens_per_s + 4 * speed.gap_s
        every_s = 1.5 * tokens / speed.prompt_tokens_per_s + 8 * speed.gap_s
        repeats = plan.repeats * (3 if (tokens, streams) == plan.mixed[0] else 1)
        beside = [begins_s + every_s * number for number in range(repeats)] if tokens else []
        output = plan.output(streams, context, begins_s + every_s * len(beside) if tokens else 0.0, speed.gap_s)
        output = min(output, (max_len or output + context) - context)
        asks = [Ask(0.0, context, output)] * streams + [Ask(at_s, tokens, 1) for at_s in beside]
        records = await self._counted(asks)
        running = records[:streams]
        if not complete(running):
            if any(one.status not in (*COMPLETE, *OPEN) for one in running):  # else time was up
                self.measured.refused.add(streams)
            return
        served = [one for one in records[streams:] if complete([one])]
        self.measured.rows += mixed_rows(running, served, plan.budget) if tokens else decode_rows(running)
        self.measured.coarse = max(self.measured.coarse, tokens_per_chunk(running))

    async def _counted(self, asks: Sequence[Ask]) -> list[Record]:
        records, measured = await self.answer(asks), self.measured
        measured.requests += len(asks)
        measured.prompt_tokens += sum(ask.prompt for ask in asks)
        measured.output_tokens += sum(ask.output for ask in asks)
        measured.cached = measured.cached or any((one.n_cached or 0) > 0 for one in records)
        return records
