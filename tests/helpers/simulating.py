"""Simulations for tests: step times with round numbers, small loads, and a record of every step and token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

from advisor.logs.trace import FloatColumn
from advisor.simulation.deployment import Deployment, Pool, Transport
from advisor.simulation.load import Load
from engine.config import PoolConfig, RouterConfig
from engine.core import EngineCore, Flight, TokenEvent
from engine.request import Request, Run, SamplingParams
from engine.step import StepResult
from engine.step_time.model import StepShape

BLOCK = 16
Rows = tuple[tuple[str, int, int], ...]  # of a step: request id, new tokens, context


@dataclass(frozen=True)
class Affine:
    """Seconds: `fixed` a step, and so much a prefill token, cached token, decode row and context token."""

    fixed: float = 0.0
    prefill: float = 0.0
    cached: float = 0.0
    row: float = 0.0
    context: float = 0.0
    source: Literal["published"] = "published"
    error_p90: float | None = None
    bend: float = float("inf")

    def seconds(self, shape: StepShape) -> float:
        if not shape.tokens:
            return 0.0
        new = sum(new for new, _ in shape.prefill)
        cached = sum(context for _, context in shape.prefill)
        decode = self.row * shape.decode_rows + self.context * shape.decode_context
        return self.fixed + self.prefill * new + self.cached * cached + decode

    def decode_line(self, rows: int, context: int) -> tuple[float, float]:
        return self.fixed + self.row * rows + self.context * context, self.context * rows


TYPICAL = Affine(fixed=0.011, prefill=3.1e-4, cached=1.7e-6, row=7.3e-4, context=2.3e-6)


def make_load(
    arrival_s: Sequence[float] | FloatColumn,
    prompt: Sequence[int] | int,
    output: Sequence[int] | int,
    *,
    runs: Sequence[tuple[Run, ...]] | None = None,
    parent: Sequence[int] | None = None,
    think_s: Sequence[float] | None = None,
) -> Load:
    n = len(arrival_s)
    return Load(
        arrival_s=np.asarray(arrival_s, dtype=np.float64),
        prompt_tokens=np.broadcast_to(np.asarray(prompt, dtype=np.int64), n),
        output_tokens=np.broadcast_to(np.asarray(output, dtype=np.int64), n),
        runs=((),) * n if runs is None else tuple(runs),
        block_size=BLOCK,
        session=np.arange(n),
        parent=np.full(n, -1) if parent is None else np.asarray(parent, dtype=np.int64),
        think_s=np.full(n, np.nan) if think_s is None else np.asarray(think_s, dtype=np.float64),
    )


def random_load(seed: int, n: int = 150, *, rate: float = 20.0, output: int = 60) -> Load:
    """Poisson arrivals; two thirds begin with one of four documents, of which they may have only the front.

    A third goes on from an earlier request, after a think time.
    """
    rng = np.random.default_rng(seed)
    prompt = rng.integers(1, 260, n)
    documents, pages = rng.integers(0, 6, n), (12, 7, 3, 15)
    runs = []
    for document, tokens in zip(documents.tolist(), prompt.tolist(), strict=True):
        shared = min(pages[document], tokens // BLOCK) if document < len(pages) else 0
        runs.append((Run(("document", document), 0, shared),) if shared else ())
    parent = np.where(rng.random(n) < 1 / 3, (rng.random(n) * np.arange(n)).astype(np.int64), -1)
    parent[0] = -1
    return make_load(
        np.cumsum(rng.exponential(1 / rate, n)),
        prompt.tolist(),
        rng.integers(1, output, n).tolist(),
        runs=runs,
        parent=parent.tolist(),
        think_s=np.where(parent >= 0, rng.exponential(0.5, n), np.nan).tolist(),
    )


def requests_of(load: Load) -> list[Request]:
    """The requests of a load, named by their rows."""
    columns = zip(load.prompt_tokens.tolist(), load.output_tokens.tolist(), load.runs, strict=True)
    return [
        Request(str(row), range(prompt), SamplingParams(max_tokens=output), runs=runs)
        for row, (prompt, output, runs) in enumerate(columns)
    ]


def one_pool(step_time: Affine = TYPICAL, *, kv_tokens: int = 1 << 20, **pool: Any) -> Deployment:
    """Colocated instances of one kind."""
    config = PoolConfig(block_size=BLOCK, kv_tokens=kv_tokens, **pool)
    return Deployment((Pool(config, step_time),))


def split(
    prefill: int,
    decode: int,
    *,
    step_time: Affine = TYPICAL,
    transport: Transport | None = None,
    router: RouterConfig | None = None,
    kv_tokens: int = 1 << 20,
    **pool: Any,
) -> Deployment:
    """Prefill and decode instances of one kind."""
    configs = [
        PoolConfig(role="prefill", count=prefill, block_size=BLOCK, kv_tokens=kv_tokens, **pool),
        PoolConfig(role="decode", count=decode, block_size=BLOCK, kv_tokens=kv_tokens, **pool),
    ]
    pools = tuple(Pool(config, step_time) for config in configs)
    return Deployment(pools, router or RouterConfig(), transport)


@dataclass
class Recording:
    """What cores did: `steps` of each core made, when each began, and the time of every token of a request.

    Steps within a jump have no time of their own: their `began_s` is NaN, and their tokens have none.
    """

    steps: list[list[Rows]] = field(default_factory=list)
    began_s: list[list[float]] = field(default_factory=list)
    token_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def largest_gaps(self, requests: int) -> FloatColumn:
        """The largest gap between two tokens of each request, in order of id; NaN for one token."""
        times = (np.array(self.token_s[str(row)]) for row in range(requests))
        return np.array([np.diff(one).max() if len(one) > 1 else np.nan for one in times])


def record(monkeypatch: pytest.MonkeyPatch, *, jumps: bool) -> Recording:
    """Record all cores that simulations make from here on; without `jumps` they carry out every step."""
    recording = Recording()

    class Core(EngineCore):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.steps: list[Rows] = []
            self.began_s: list[float] = []
            recording.steps.append(self.steps)
            recording.began_s.append(self.began_s)

        def next_flight(self, now: float) -> Flight | None:
            flight = super().next_flight(now)
            if flight is not None:
                running = self._scheduler.running.values() if flight.work.decodes else ()
                rows = [seq for seq in running if seq.group is flight.work.group]
                self._flights[-1] = flight._replace(rows=rows)
                decodes = [(seq.request.id, 1, seq.computed) for seq in rows]
                chunks = [(seq.request.id, new, start) for seq, new, start in flight.work.chunks]
                self.steps.append((*decodes, *chunks))
                self.began_s.append(now)
            return flight

        def complete(self, step_id: int, result: StepResult | None, now: float) -> list[TokenEvent]:
            rows = self._flights[0].rows or ()
            named = {seq.request.id for seq in rows if not seq.status.ended}
            events = super().complete(step_id, result, now)
            for name in named | {event.request_id for event in events}:
                recording.token_s[name].append(now)
            return events

        def decode_run(self) -> int:
            return super().decode_run() if jumps else 0

        def jump(self, steps: int, now: float) -> list[TokenEvent]:
            rows = [(seq.request.id, seq.computed) for seq in self._scheduler.running.values()]
            self.steps += [tuple((name, 1, context + i) for name, context in rows) for i in range(steps)]
            self.began_s += [float("nan")] * steps
            return super().jump(steps, now)

    monkeypatch.setattr("advisor.simulation.simulate.EngineCore", Core)
    return recording
