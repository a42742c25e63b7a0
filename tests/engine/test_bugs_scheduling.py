"""Public bugs of scheduling and preemption (docs/bugs.md) that no other test of ours is about."""

from __future__ import annotations

from collections import deque
from typing import Literal

import pytest
from helpers.core_driver import Driver, request
from helpers.echo import expected_output

from engine.config import PoolConfig
from engine.step import Step


@pytest.mark.parametrize("pp", [2, 3])
@pytest.mark.parametrize("batching", ["chunked", "prefill_first"])
def test_bug_36_with_frees_deferred_by_steps_in_flight_preemption_stays_bounded(
    pp: int, batching: Literal["chunked", "prefill_first"]
) -> None:
    """inference-sim#1057, vllm-ascend#16315, vllm#49675: what a preemption frees comes back steps later, so the
    next one is preempted too, and round it goes. Aborts while steps are in flight defer frees all the time."""
    limit = 2
    pool = PoolConfig(pp=pp, block_size=4, token_budget=16, max_seqs=8, batching=batching)
    driver = Driver(pool, num_blocks=20, max_preemptions=limit, seed=1)
    asked = [request(f"r{i}", range(i, i + 9), output=30) for i in range(24)]
    flights: deque[Step] = deque()
    todo, steps = list(asked), 0
    while todo or driver.core.has_work:
        if todo:
            driver.add(todo.pop())
        while (step := driver.begin()) is not None:
            flights.append(step)
        steps += 1
        if steps % 15 == 0:
            driver.abort(flights[-1].rows[-1].request_id)
        driver.finish(flights.popleft())
        assert steps < 2000, "thrashes"
    stats = driver.core.stats()
    assert 0 < stats.preemptions <= limit * len(asked)
    assert stats.blocks_used == 0
    ended = [one for one in asked if driver.last[one.id].finish_reason == "length"]
    assert len(ended) > 3
    assert all(driver.outputs[one.id] == expected_output(one) for one in ended)


@pytest.mark.parametrize("queue_policy", ["fcfs", "prefix_first"])
def test_bug_38_what_time_it_is_changes_no_step(queue_policy: Literal["fcfs", "prefix_first"]) -> None:
    """sglang#27221, #28881: every rank plans by its own clock, plans differ, and ranks wait for each other.
    Ours are told their steps by rank 0 (engine/executors); and only differences of arrival times order a queue,
    so that a clock which is off or was set changes nothing."""

    def steps(offset: float) -> list[tuple[object, ...]]:
        driver = Driver(PoolConfig(block_size=4, token_budget=16, max_seqs=3, queue_policy=queue_policy))
        driver.now = offset
        made: list[tuple[object, ...]] = []
        for i in range(12):
            driver.add(request(f"r{i}", range(i % 3 * 20, i % 3 * 20 + 5 + i), output=6))
            if i % 3 == 0:
                made.append(driver.step().rows)
        while driver.core.has_work:
            made.append(driver.step().rows)
        return made

    assert steps(0.0) == steps(1e6)


@pytest.mark.parametrize("budget", [1, 2])
def test_bug_39_a_tiny_budget_costs_as_many_steps_as_it_has_to(budget: int) -> None:
    """vllm#25677: chunked prefill ten times slower than it need be. Here every step is full."""
    driver = Driver(PoolConfig(block_size=4, token_budget=budget))
    steps = driver.run(request("a", range(40), output=3))
    assert [step.query_tokens for step in steps] == [budget] * (40 // budget) + [1, 1]
