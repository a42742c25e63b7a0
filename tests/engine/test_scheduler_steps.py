"""Which rows a step holds: budget, order, admission, preemption."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.core_driver import Driver, request
from helpers.echo import expected_output

from engine.config import PoolConfig
from engine.step import Step


def pool(**options: Any) -> PoolConfig:
    return PoolConfig(**{"token_budget": 8, "block_size": 4, "max_seqs": 8, "prefix_cache": False, **options})


def shape(step: Step) -> list[tuple[str, int]]:
    """(request, query tokens) of each row."""
    return [(row.request_id, len(row.tokens)) for row in step.rows]


def test_decodes_then_running_prefills_then_new_ones_share_the_budget() -> None:
    """Sarathi-Serve Algorithm 3 by hand: budget 8; "a" of 3 tokens, "b" of 9, "c" of 4, all at once."""
    driver = Driver(pool())
    steps = driver.run(
        request("a", range(3), output=4), request("b", range(9), output=2), request("c", range(4), output=1)
    )
    assert [shape(step) for step in steps] == [
        [("a", 3), ("b", 5)],
        [("a", 1), ("b", 4), ("c", 3)],
        [("a", 1), ("b", 1), ("c", 1)],
        [("a", 1)],
    ]


@pytest.mark.parametrize("budget", [1, 2, 7, 64])
def test_no_step_exceeds_the_budget_and_no_decode_ever_stalls(budget: int) -> None:
    """Decodes count against the budget, so no more requests run than it has tokens."""
    driver = Driver(pool(token_budget=budget))
    steps = driver.run(*(request(f"r{i}", range(i * 3 + 1), output=6) for i in range(10)))
    assert max(step.query_tokens for step in steps) <= budget
    last_seen: dict[str, int] = {}
    for step in steps:
        for row in step.rows:
            if not row.prefill:
                assert last_seen[row.request_id] == step.id - 1
            last_seen[row.request_id] = step.id


def test_decodes_of_prefill_first_fit_in_the_budget_too() -> None:
    driver = Driver(pool(batching="prefill_first", token_budget=2))
    steps = driver.run(*(request(f"r{i}", [i], output=5) for i in range(6)))
    assert max(step.query_tokens for step in steps) == 2


def test_prefill_first_runs_whole_prompts_before_any_decode() -> None:
    """The papers' baseline (original vLLM): prompts up to the budget, a longer one alone, else decodes."""
    driver = Driver(pool(batching="prefill_first"))
    driver.add(
        request("a", range(3), output=3), request("b", range(5), output=2), request("long", range(30), output=2)
    )
    driver.add(request("c", range(2), output=2))
    steps = [shape(step) for step in driver.run()]
    assert steps == [
        [("a", 3), ("b", 5)],
        [("long", 30)],
        [("c", 2)],
        [("a", 1), ("b", 1), ("long", 1), ("c", 1)],
        [("a", 1)],
    ]


def test_chunks_follow_the_hit() -> None:
    """nano-vllm#211, dynamo#13312: match the whole prompt first, then plan the chunks of what is left."""
    driver = Driver(pool(prefix_cache=True))
    driver.run(request("first", range(20), output=1))
    [step] = driver.run(request("second", [*range(20), 1, 2, 3], output=1))
    [row] = step.rows
    assert (row.start, len(row.tokens)) == (20, 3)


def test_requests_of_one_step_do_not_hit_each_other() -> None:
    """vllm#37152, nano-vllm#209: a page is matched only after the step that wrote it has completed."""
    driver = Driver(pool(prefix_cache=True, token_budget=64))
    driver.run(request("a", range(20)), request("b", range(20)))
    assert driver.last["b"].cached_tokens == 0
    driver.run(request("c", range(20)))
    assert driver.last["c"].cached_tokens == 16


def test_a_hit_counts_the_pages_that_it_revives() -> None:
    """ATOM#902: an unreferenced page that we hit is no longer available for the rest of our own prompt."""
    driver = Driver(pool(prefix_cache=True, token_budget=64), num_blocks=9)
    driver.run(request("a", range(16), output=1))
    driver.add(request("b", range(90, 97), output=20))
    driver.step()
    # 8 blocks: "b" holds 2, 4 are cached, 2 free. "c" hits 3 pages and needs 3 more blocks: 1 cached + 2 free,
    # but one must stay spare for "b".
    driver.add(request("c", [*range(12), *range(60, 72)], output=1))
    assert shape(driver.step()) == [("b", 1)]
    driver.run()
    assert driver.outputs["c"] == expected_output(request("c", [*range(12), *range(60, 72)], output=1))


def test_preemption_takes_the_latest_and_puts_it_first_in_line() -> None:
    """9 free blocks; "a" and "b" hold 4 each and both want a fifth and more as they grow."""
    driver = Driver(pool(token_budget=64), num_blocks=10)
    driver.add(request("a", range(16), output=12), request("b", range(20, 36), output=12))
    driver.step()
    driver.add(request("new", range(50, 53), output=1))
    admitted: list[str] = []
    while driver.core.has_work:
        preempted = driver.core.stats().preemptions
        step = driver.step()
        if driver.core.stats().preemptions > preempted:
            assert shape(step) == [("a", 1)], "a step that preempts admits nothing"
        admitted += [row.request_id for row in step.rows if row.prefill]
    assert driver.core.stats().preemptions == 1
    assert admitted == ["b", "new"]
    for name, first in [("a", 0), ("b", 20)]:
        assert driver.outputs[name] == expected_output(request(name, range(first, first + 16), output=12))


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_preemptions_of_a_request_are_bounded(limit: int) -> None:
    """inference-sim#1057, vllm#49675: without a bound two growing requests can take turns for ever."""
    driver = Driver(pool(token_budget=64), num_blocks=10, max_preemptions=limit)
    driver.run(*(request(f"r{i}", range(8), output=28) for i in range(6)))
    assert driver.core.stats().preemptions <= limit * 6
    assert (driver.core.stats().preemptions > 0) == (limit > 0)


def test_published_pages_of_a_preempted_request_stay_matchable() -> None:
    driver = Driver(pool(prefix_cache=True, token_budget=64), num_blocks=11)
    driver.run(request("a", range(16), output=14), request("b", range(20, 36), output=14))
    assert driver.core.stats().preemptions == 1
    # "b" had computed at least 16 positions = 4 pages, and "a" needed at most the rest of the pool.
    assert driver.echo.computed["b"] < 2 * 16 + 14


def test_a_request_that_does_not_fit_lets_others_pass_but_only_so_many() -> None:
    """vllm#33499 (it blocks all behind it) and the opposite, starvation: 8 may pass, then the queue waits."""
    driver = Driver(pool(token_budget=64), num_blocks=21)
    driver.add(request("holder", range(40), output=24))
    driver.step()
    small = [request(f"s{i}", range(3), output=2) for i in range(30)]
    driver.add(request("big", range(60), output=1), *small)
    order: list[str] = []
    while driver.core.has_work:
        order += [row.request_id for row in driver.step().rows if row.prefill and row.start == 0]
    assert order.index("big") == 8


@pytest.mark.parametrize("batching", ["chunked", "prefill_first"])
def test_something_always_runs(batching: str) -> None:
    """vllm#45414: never running = 0, waiting > 0 and nothing scheduled (`Driver.step` checks). A lone request
    whose continuation is already published holds pages twice, preempts itself for room, and goes on at once."""
    driver = Driver(pool(batching=batching, prefix_cache=True, token_budget=64), num_blocks=9)
    for name in ("first", "again", "third"):
        driver.run(request(name, range(8), output=25))
        assert driver.outputs[name] == driver.outputs["first"]
    assert driver.core.stats().preemptions > 0
