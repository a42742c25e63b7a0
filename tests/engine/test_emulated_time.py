"""When emulated steps are over: the ideal clock, its pauses, what a late host changes; and the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ulp
from random import Random
from typing import Any

import numpy as np
import pytest
from helpers.simulating import BLOCK, TYPICAL, Affine, Rows, make_load, random_load, record, requests_of

from advisor.simulation.deployment import Deployment, Pool
from advisor.simulation.load import Load
from advisor.simulation.simulate import simulate
from engine.config import PoolConfig
from engine.core import EngineCore
from engine.executors.emulated import PAUSE_S, STANDSTILL_S, EmulatedExecutor, EmulatedHandle
from engine.request import SamplingParams
from engine.step import Step, StepRow

PLANS: dict[str, dict[str, Any]] = {
    "chunked": {"token_budget": 64, "max_seqs": 12, "kv_tokens": 4000},
    "without cache": {"token_budget": 48, "max_seqs": 16, "kv_tokens": 900, "prefix_cache": False},
    "prefill first": {"token_budget": 128, "max_seqs": 16, "kv_tokens": 900, "batching": "prefill_first"},
    "prefix first": {"token_budget": 64, "max_seqs": 32, "kv_tokens": 640, "queue_policy": "prefix_first"},
}


@dataclass
class Clock:
    """Time passes where somebody sleeps; `oversleep` is added to each sleep."""

    now: float = 0.0
    oversleep: Callable[[], float] = lambda: 0.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.oversleep()


def executor(clock: Clock, step_time: Affine, pool: PoolConfig, time_scale: float = 1.0) -> EmulatedExecutor:
    assert pool.kv_tokens is not None
    kv = np.zeros((2, pool.kv_tokens // pool.block_size + 1, pool.block_size), np.uint32)
    return EmulatedExecutor(step_time, kv, sleep=clock.sleep, clock=clock, time_scale=time_scale)


@dataclass
class Emulated:
    """What an emulation did; times on the wall."""

    steps: list[Rows] = field(default_factory=list)
    handles: list[EmulatedHandle] = field(default_factory=list)

    @property
    def began_s(self) -> list[float]:
        """Ideal beginnings."""
        return [handle.ends_s - handle.seconds for handle in self.handles]


def emulate(
    load: Load, pool: PoolConfig, clock: Clock, time_scale: float, host: Callable[[], float] = lambda: 0.0
) -> Emulated:
    """A load through one core and an emulated executor; between two steps the host takes `host()` seconds.

    The core lives on modelled time, as the aging of its queue does.
    """
    assert pool.kv_tokens is not None
    core = EngineCore(pool, num_blocks=pool.kv_tokens // pool.block_size + 1, max_len=1 << 30)
    runs, did = executor(clock, TYPICAL, pool, time_scale), Emulated()
    todo = list(zip((load.arrival_s * time_scale).tolist(), requests_of(load), strict=True))[::-1]
    while True:
        while todo and todo[-1][0] <= clock.now:
            at, request = todo.pop()
            core.add(request, at / time_scale)
        step = core.next_step(clock.now / time_scale)
        if step is None and not todo:
            return did
        if step is None:
            clock.now = todo[-1][0]
            continue
        handle = runs.submit(step)
        did.steps.append(tuple((row.request_id, len(row.tokens), row.start) for row in step.rows))
        did.handles.append(handle)
        core.complete(step.id, handle.result(), clock.now / time_scale)
        clock.now += host()


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("time_scale", [0.25, 1.0, 3.0])
def test_steps_and_their_times_are_the_simulators_times_the_scale(
    name: str, time_scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, load = PoolConfig(block_size=BLOCK, **PLANS[name]), random_load(4, 150, rate=8.0)
    did = emulate(load, pool, Clock(), time_scale)
    recording = record(monkeypatch, jumps=False)
    outcome = simulate(load, Deployment((Pool(pool, TYPICAL),)))
    assert [did.steps] == recording.steps
    assert len(did.steps) > 400
    began = np.array(did.began_s) / time_scale
    assert began == pytest.approx(np.array(recording.began_s[0]), abs=1e-9)
    assert did.handles[-1].ends_s / time_scale == pytest.approx(outcome.end_s, abs=1e-9)
    ended = np.array([handle.ends_s for handle in did.handles]) / time_scale
    assert (began[1:] - ended[:-1] > 1e-6).sum() >= 3  # it was idle in between


def test_a_late_host_does_not_move_the_steps_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All arrive at once; the host oversleeps and dawdles: steps are ideally where the simulator has them."""
    random = Random(7)
    clock = Clock(oversleep=lambda: random.expovariate(1 / 0.0005))
    pool, load = PoolConfig(block_size=BLOCK, **PLANS["chunked"]), make_load([0.0] * 60, 70, 12)
    did = emulate(load, pool, clock, 2.0, host=lambda: random.expovariate(1 / 0.001))
    recording = record(monkeypatch, jumps=False)
    outcome = simulate(load, Deployment((Pool(pool, TYPICAL),)))
    assert [did.steps] == recording.steps
    assert np.array(did.began_s) / 2 == pytest.approx(np.array(recording.began_s[0]), abs=1e-9)
    lags = [handle.lag_s for handle in did.handles]
    assert min(lags) >= 0
    assert np.mean(lags) == pytest.approx(0.0005, rel=0.4)
    # Late by what was overslept and what the host took.
    assert np.mean([handle.late_s for handle in did.handles[1:]]) == pytest.approx(0.0015, rel=0.4)
    assert clock.now - did.handles[-1].ends_s < 0.02
    assert did.handles[-1].ends_s / 2 == pytest.approx(outcome.end_s)


class TestPauses:
    """A step of 10 ms ends at 10 ms; another one is submitted later."""

    POOL = PoolConfig(block_size=BLOCK, kv_tokens=160)
    STEP_S = 0.010

    def second(self, *, taken: float, submitted: float, goes_on: bool = False) -> EmulatedHandle:
        """The second step; the first's result is taken at `taken`. `goes_on`: it decodes the same request."""
        clock = Clock()
        runs = executor(clock, Affine(fixed=self.STEP_S), self.POOL)
        first = runs.submit(Step(1, (_row("a", (1, 2, 3), 0),)))
        clock.now = taken
        first.result()
        assert first.lag_s == pytest.approx(max(0.0, taken - self.STEP_S))
        clock.now = submitted
        row = _row("a", (5,), 3) if goes_on else _row("b", (1, 2), 0)
        return runs.submit(Step(2, (row,)))

    def test_straight_behind_the_one_before_it_begins_at_that_ones_end(self) -> None:
        handle = self.second(taken=0.0105, submitted=0.0105 + PAUSE_S / 2)
        assert handle.ends_s == pytest.approx(0.020)
        assert handle.late_s == pytest.approx(0.0005 + PAUSE_S / 2)

    def test_after_a_pause_it_begins_when_it_is_submitted(self) -> None:
        handle = self.second(taken=0.010, submitted=0.010 + PAUSE_S * 1.01)
        assert handle.ends_s == pytest.approx(0.020 + PAUSE_S * 1.01)
        assert handle.late_s == 0

    def test_an_oversleep_alone_is_no_pause(self) -> None:
        handle = self.second(taken=0.100, submitted=0.101)
        assert (handle.ends_s, handle.late_s) == pytest.approx((0.020, 0.091))

    def test_what_goes_on_where_it_was_has_not_paused(self) -> None:
        handle = self.second(taken=0.010, submitted=0.050, goes_on=True)
        assert (handle.ends_s, handle.late_s) == pytest.approx((0.020, 0.040))

    def test_a_standstill_of_the_host_is_not_caught_up_but_told(self) -> None:
        handle = self.second(taken=0.010, submitted=0.010 + STANDSTILL_S + 0.001, goes_on=True)
        assert (handle.ends_s, handle.late_s) == pytest.approx((0.021 + STANDSTILL_S, STANDSTILL_S + 0.001))

    def test_behind_a_step_in_flight_it_begins_at_that_ones_end(self) -> None:
        clock = Clock()
        runs = executor(clock, Affine(fixed=self.STEP_S), self.POOL)
        first = runs.submit(Step(1, (_row("a", (1,), 0),)))
        clock.now = 0.004
        second = runs.submit(Step(2, (_row("b", (1,), 0),)))
        assert (second.ends_s, second.late_s) == (pytest.approx(0.020), 0)
        first.result()
        second.result()
        assert clock.slept == pytest.approx([0.006, 0.010])
        assert second.lag_s <= ulp(1.0)

    def test_a_result_that_was_not_taken_yet_means_no_pause(self) -> None:
        clock = Clock()
        runs = executor(clock, Affine(fixed=self.STEP_S), self.POOL)
        runs.submit(Step(1, (_row("a", (1,), 0),)))
        clock.now = 0.5
        second = runs.submit(Step(2, (_row("b", (1,), 0),)))
        assert (second.ends_s, second.late_s) == pytest.approx((0.020, 0.490))

    def test_a_result_asked_for_twice_is_the_same_and_not_later(self) -> None:
        clock = Clock(oversleep=lambda: 0.001)
        runs = executor(clock, Affine(fixed=self.STEP_S), self.POOL)
        handle = runs.submit(Step(1, (_row("a", (1,), 0),)))
        first = handle.result()
        clock.now = 3.0
        assert handle.result() is first
        assert handle.lag_s == pytest.approx(0.001)


def _row(name: str, tokens: tuple[int, ...], start: int) -> StepRow:
    blocks = (1,) if name == "a" else (2,)
    return StepRow(name, tokens, start, blocks, True, not start, SamplingParams(), output_index=int(start > 0))
