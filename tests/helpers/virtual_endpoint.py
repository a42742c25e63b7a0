"""An endpoint on a virtual clock: the engine's own core, steps of a known model, a way of known time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from random import Random

from advisor.validation.outside_probes import Ask
from advisor.validation.record import Record, Status
from engine.config import PoolConfig
from engine.core import EngineCore
from engine.request import Request, SamplingParams
from engine.step import StepResult
from engine.step_time.model import StepShape


class VirtualEndpoint:
    """Answers probes as records. `way_s`: of a request and its first token together; `most`: at once.

    `late_s` is the most that each stamp of the client is late by, at random. At `until_s` the client gives up.
    """

    def __init__(
        self,
        seconds: Callable[[StepShape], float],
        *,
        token_budget: int = 8192,
        way_s: float = 0.0,
        most: int = 256,
        late_s: float = 0.0,
        until_s: float = inf,
    ) -> None:
        self.seconds, self.way_s, self.most, self.late_s, self.until_s = seconds, way_s, most, late_s, until_s
        pool = PoolConfig(token_budget=token_budget, max_seqs=256, prefix_cache=False, kv_tokens=400_000)
        self.core = EngineCore(pool, num_blocks=25_001, max_len=1 << 20)
        self.now, self.steps, self.names = 0.0, 0, count()
        self.random = Random(1)

    async def answer(self, asks: Sequence[Ask]) -> list[Record]:
        start_s = self.now
        waiting = sorted(range(len(asks)), key=lambda number: asks[number].at_s)
        names = {str(next(self.names)): number for number in range(len(asks))}
        name_of = {number: name for name, number in names.items()}
        stamps: dict[int, list[float]] = {number: [] for number in range(len(asks))}
        refused = set(waiting[self.most :])
        waiting = [number for number in waiting if number not in refused]
        while waiting or self.core.has_work:
            if waiting and not self.core.has_work:
                self.now = max(self.now, start_s + asks[waiting[0]].at_s + self.way_s / 2)
            while waiting and start_s + asks[waiting[0]].at_s + self.way_s / 2 <= self.now:
                ask = asks[number := waiting.pop(0)]
                sampling = SamplingParams(max_tokens=ask.output, ignore_eos=True)
                self.core.add(Request(name_of[number], range(ask.prompt), sampling), self.now)
            if self.now > self.until_s:
                break
            step = self.core.next_step(self.now)
            assert step is not None
            self.now += self.seconds(StepShape.of(step))
            self.steps += 1
            sampled = tuple(1 if row.sample else None for row in step.rows)
            for event in self.core.complete(step.id, StepResult(step.id, sampled), self.now):
                if event.token is not None:
                    late_s = self.random.uniform(0, self.late_s)
                    stamps[names[event.request_id]].append(self.now + self.way_s / 2 + late_s - start_s)
        return [
            Record(
                number,
                ask.at_s,
                ask.prompt,
                ask.output,
                self._status(number in refused, len(stamps[number]), ask.output),
                t_send=ask.at_s,
                t_chunk=tuple(stamps[number]),
                n_in=ask.prompt,
                n_out=ask.output,
            )
            for number, ask in enumerate(asks)
        ]

    @staticmethod
    def _status(refused: bool, tokens: int, wanted: int) -> Status:
        if refused:
            return "http_429"
        return "ok" if tokens == wanted else "interrupted"
