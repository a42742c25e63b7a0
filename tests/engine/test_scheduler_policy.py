"""The order of admission, and the bound on waiting that docs/scheduling.md states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
from helpers.core_driver import request

import engine.policy
from engine.config import PoolConfig
from engine.core import EngineCore
from engine.executors.modelled import ModelledExecutor
from engine.policy import AGING_TOKENS_PER_S, FCFS_ABOVE_WAITING, fcfs, prefix_first
from engine.request import Request, SamplingParams
from engine.sequence import Sequence
from engine.step_time.model import StepShape


def order(policy: engine.policy.Policy, *waiting: tuple[str, float, int]) -> list[str]:
    """Ids as `policy` orders (id, arrival, cached tokens)."""
    cached = {name: tokens for name, _, tokens in waiting}
    queue = [Sequence(request(name, [1]), arrival, 4) for name, arrival, _ in waiting]
    return [seq.request.id for seq in policy(queue, lambda seq: cached[seq.request.id])]


def test_prefix_first_lets_a_prefix_overtake_for_its_length_over_the_rate() -> None:
    hit_s = 500 / AGING_TOKENS_PER_S
    assert order(prefix_first, ("cold", 0.0, 0), ("hot", hit_s * 0.9, 500)) == ["hot", "cold"]
    assert order(prefix_first, ("cold", 0.0, 0), ("hot", hit_s * 1.1, 500)) == ["cold", "hot"]
    assert order(fcfs, ("cold", 0.0, 0), ("hot", hit_s * 0.9, 500)) == ["cold", "hot"]


def test_long_queues_are_first_come_first_served() -> None:
    """SGLang's schedule_policy.py drops longest-prefix order when more than 128 requests wait."""
    queue = [(f"r{i}", i * 1e-6, i) for i in range(FCFS_ABOVE_WAITING)]
    assert FCFS_ABOVE_WAITING == 128
    assert order(prefix_first, *queue)[0] == "r127"
    assert order(prefix_first, *queue, ("last", 1.0, 0))[0] == "r0"


def test_preempted_requests_stay_in_front() -> None:
    preempted, hot = Sequence(request("p", [1]), 0.0, 4), Sequence(request("hot", [1]), 0.0, 4)
    preempted.preemptions = 1
    ordered = prefix_first([preempted, hot], lambda seq: 100 if seq is hot else 0)
    assert ordered == [preempted, hot]


@dataclass(frozen=True)
class PerToken:
    """Steps cost 2 ms a query token and nothing else, so that capacity has a closed form."""

    source: Literal["published"] = "published"
    error_p90: float | None = None

    def seconds(self, shape: StepShape) -> float:
        return 0.002 * shape.tokens


HOT_PREFIX, TAIL, OUTPUT = 2000, 48, 3
SERVICE_S = 0.002 * (TAIL + OUTPUT - 1)  # of a hot request: its prefix is cached
LOAD = 1.2


def hot(i: int) -> Request:
    tail = range(10_000 + i * TAIL, 10_000 + (i + 1) * TAIL)
    return Request(f"hot{i}", (*range(HOT_PREFIX), *tail), SamplingParams(max_tokens=OUTPUT))


def cold_wait(until_s: float) -> tuple[float | None, float]:
    """Hot requests at 1.2x capacity, for ever; one cold request after 10 s.

    Returns its wait for admission, None if it still waits, and the work queued when it came, seconds.
    """
    pool = PoolConfig(token_budget=256, block_size=16, max_seqs=4, queue_policy="prefix_first")
    core = EngineCore(pool, num_blocks=4000, max_len=4000)
    executor = ModelledExecutor(PerToken())
    cold = Request("cold", tuple(range(5000, 5500)), SamplingParams(max_tokens=1))
    arrivals = [(i * SERVICE_S / LOAD, hot(i)) for i in range(1, int(until_s * LOAD / SERVICE_S))]
    arrivals = sorted([*arrivals, (10.0, cold)], key=lambda arrival: arrival[0], reverse=True)
    now, backlog_s = -10.0, 0.0
    core.add(hot(0), now)  # fills the cache before the clock starts
    while now < until_s:
        while arrivals and arrivals[-1][0] <= now:
            at, one = arrivals.pop()
            if one is cold:
                backlog_s = (core.stats().waiting + core.stats().running) * SERVICE_S
            core.add(one, at)
        step = core.next_step(now)
        if step is None:
            now = arrivals[-1][0]
            continue
        handle = executor.submit(step)
        now += handle.seconds
        for event in core.complete(step.id, handle.result(), now):
            if event.request_id == "cold":
                return event.queued_s, backlog_s
    return None, backlog_s


def test_a_cold_request_is_admitted_within_the_documented_bound() -> None:
    """Bound: work queued at its arrival + load x hot prefix / aging rate (sglang#31954, #31723, #33210)."""
    wait_s, backlog_s = cold_wait(until_s=60.0)
    assert wait_s is not None
    assert 1.0 < wait_s <= backlog_s + LOAD * HOT_PREFIX / AGING_TOKENS_PER_S


def test_without_aging_the_same_request_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the stream of the test above does starve; 50 s of it keep the queue under SGLang's 128."""
    monkeypatch.setattr(engine.policy, "AGING_TOKENS_PER_S", 0.0)
    wait_s, _ = cold_wait(until_s=50.0)
    assert wait_s is None
