"""Public bugs of prefix caches and block accounting (docs/bugs.md) that no other test of ours is about."""

from __future__ import annotations

import pytest
from helpers.core_driver import Driver, request
from helpers.echo import expected_output

from engine.config import PoolConfig
from engine.kv.cache import BlockTable, KVCache
from engine.kv.identity import own_from, runs_of
from engine.request import Request, Run, SamplingParams

BLOCK = 4


def driver_of(num_blocks: int = 1000, **pool: object) -> Driver:
    return Driver(PoolConfig(**{"block_size": BLOCK, "token_budget": 64, **pool}), num_blocks=num_blocks)  # type: ignore[arg-type]


@pytest.mark.parametrize("pages", [1, 2, 5])
def test_bug_3_a_full_hit_on_a_block_boundary_leaves_one_token_to_compute(pages: int) -> None:
    """nano-vllm#144, vllm#11186, vllm#17999: all n tokens cached, and no query row that could be sampled."""
    driver = driver_of()
    prompt = range(pages * BLOCK)
    driver.run(request("first", prompt, output=BLOCK))
    [step, *_] = driver.run(request("again", prompt, output=BLOCK))
    [row] = step.rows
    assert (row.start, len(row.tokens), row.sample) == ((pages - 1) * BLOCK, BLOCK, True)
    assert driver.outputs["again"] == expected_output(request("again", prompt, output=BLOCK))


def preempted(length: int, budget: int) -> tuple[Driver, str]:
    """A driver in whose pool of 10 blocks a request was preempted when it had `length` tokens or more."""
    driver = driver_of(11, token_budget=budget)
    driver.add(request("old", range(20), output=20))
    while not driver.outputs["old"]:
        driver.step()
    driver.add(request("new", range(30, 30 + length - 1), output=16))
    while not driver.core.stats().preemptions:
        driver.step()
    return driver, "new"


@pytest.mark.parametrize("length", [BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1])
@pytest.mark.parametrize("budget", [2, 3, 64])
def test_bugs_4_and_5_who_was_preempted_computes_again_exactly_what_the_new_hit_leaves(
    length: int, budget: int
) -> None:
    """nano-vllm#211, #233: chunks planned before the hit is known run out of bounds after a preemption.
    nano-vllm#217: of block + 1 tokens to compute again, one is dropped."""
    driver, name = preempted(length, budget)
    rows = []
    while driver.core.has_work:
        step = driver.step()
        rows += [row for row in step.rows if row.request_id == name and row.prefill]
    again = next(
        i for i, row in enumerate(rows) if i == 0 or row.start != rows[i - 1].start + len(rows[i - 1].tokens)
    )
    rows = rows[again:]
    assert rows[0].start % BLOCK == 0
    positions = [row.start + i for row in rows for i in range(len(row.tokens))]
    assert positions == list(range(rows[0].start, rows[0].start + len(positions)))
    assert [row.sample for row in rows] == [False] * (len(rows) - 1) + [True]
    one = request(name, range(30, 30 + length - 1), output=16)
    assert driver.outputs[name] == expected_output(one)


def test_bug_10_eviction_gives_whole_blocks_each_once() -> None:
    """mini-sglang#80: with pages of more than a token, what is evicted is cut at a wrong place."""
    cache = KVCache(9, BLOCK)
    for start in (0, 100):
        table = table_of(list(range(start, start + 14)))
        assert cache.match(table, 14) == 0
        assert cache.admit(table, 14, spare=0)
        cache.release(table, 14)
    for count in (1, 2, 3):
        taken = cache.tree.evict(count)
        assert len(set(taken)) == count
        cache.pool.give_back(taken)
        cache.check_invariants([])
    assert (cache.pool.free, cache.tree.evictable) == (8, 0)


def table_of(tokens: list[int], runs: tuple[Run, ...] | None = None) -> BlockTable:
    one = Request("r", tokens, SamplingParams(), runs=runs)
    return BlockTable("", runs_of(one, tokens, BLOCK), own_from(one))


def test_bug_14_pages_that_two_requests_share_are_counted_once() -> None:
    """sglang#35270: the evictable size counts shared pages twice, so that the sum of all is over the pool."""
    driver = driver_of(21)
    driver.run(request("first", range(16), output=1))
    driver.add(request("a", [*range(16), 1], output=8), request("b", [*range(16), 2], output=8))
    driver.step()
    stats = driver.core.stats()
    # Four shared pages, and one block each for what is their own.
    assert (stats.blocks_used, stats.blocks_cached) == (4 + 2, 0)
    driver.abort("a")
    stats = driver.core.stats()
    assert stats.blocks_used + stats.blocks_cached + stats.blocks_free == 20
    assert stats.blocks_used == 5, "the pages that b reads are still in use"
    driver.run()


def test_bug_17_who_matched_a_part_of_a_run_gives_all_of_it_back() -> None:
    """bytedance sglang#508: a match that ends inside a node leaves it locked."""
    cache = KVCache(20, BLOCK)
    whole = table_of(list(range(24)), (Run("document", 0, 6),))
    cache.match(whole, 24)
    assert cache.admit(whole, 24, spare=0)
    cache.release(whole, 24)
    part = table_of(list(range(13)), (Run("document", 0, 3),))
    assert cache.match(part, 13) == 12
    assert cache.admit(part, 13, spare=0)
    cache.check_invariants([part])
    cache.release(part, 13)
    cache.check_invariants([])
    assert len(cache.tree.evict(cache.tree.evictable)) + cache.pool.free == 19


def test_bug_18_of_an_aborted_prefill_only_complete_steps_are_reused() -> None:
    """sglang#38355, sglang#28374, vllm#50283: what a prefill left that ended early poisons others."""
    driver = driver_of(token_budget=8)
    driver.add(request("a", range(24)))
    driver.step()
    step = driver.begin()
    assert step is not None
    driver.abort("a")
    driver.core.complete(step.id, driver.echo.submit(step).result(), 1.0)
    driver.run(request("b", range(24)))
    assert driver.last["b"].cached_tokens == 8
    assert driver.outputs["b"] == expected_output(request("b", range(24)))


def test_bug_19_without_a_cache_chunks_of_a_long_prompt_use_its_blocks_and_no_more() -> None:
    """sglang#36855: with inserts skipped, chunked prefill starts over for ever, or takes ever more blocks."""
    driver = driver_of(prefix_cache=False, token_budget=6)
    one = request("a", range(50), output=3)
    driver.add(one)
    steps = 0
    while driver.core.has_work:
        driver.step()
        steps += 1
        assert driver.core.stats().blocks_used <= 13  # 52 positions
    assert steps == 9 + 2  # chunks, of which the last gives the first token
    assert driver.outputs["a"] == expected_output(one)


def test_bug_21_pages_whose_hashes_collide_are_told_apart() -> None:
    """vllm#12621, vllm#8229, openvino.genai#3722. In Python -1 and -2 have one hash, so have their tuples."""
    ones, twos = [-1] * 9, [-2] * 9
    assert hash(tuple(ones)) == hash(tuple(twos))
    cache = KVCache(100, BLOCK)
    table = table_of(ones)
    cache.match(table, 9)
    assert cache.admit(table, 9, spare=0)
    cache.release(table, 9)
    assert cache.match(table_of(ones), 9) == 8
    assert cache.match(table_of(twos), 9) == 0


@pytest.mark.parametrize("budget", [1, 3, 5, 7, 64])
def test_bug_24_pages_are_those_of_the_prompt_wherever_its_chunks_end(budget: int) -> None:
    """inference-sim#196: hashes relative to the chunk, so that what was computed in chunks is never found."""
    driver = driver_of(token_budget=budget)
    driver.run(request("a", range(30), output=1))
    driver.run(request("b", [*range(30), 1, 2, 3], output=1))
    assert driver.last["b"].cached_tokens == 28


def test_bug_26_a_turn_whose_history_was_rewritten_hits_up_to_the_change() -> None:
    """vllm#49449: a session that was rebuilt keeps the hashes of what it said before."""
    driver = driver_of()
    driver.run(request("turn 1", range(20), output=8))
    history = [*range(20), *driver.outputs["turn 1"]]
    rewritten = [*history[:10], 49, *history[11:], 1]
    driver.run(request("turn 2", rewritten))
    assert driver.last["turn 2"].cached_tokens == 8
    assert driver.outputs["turn 2"] == expected_output(request("turn 2", rewritten))


def test_bug_35_who_goes_on_behind_its_prompt_after_a_preemption_is_no_decode() -> None:
    """tt-plugin#52: more tokens than the prompt has, so it is taken for a decode of one token."""
    driver, name = preempted(9, budget=64)
    had = len(driver.outputs[name])
    assert had > 1
    while True:
        [row] = [row for row in driver.step().rows if row.request_id == name] or [None]  # type: ignore[list-item]
        if row is not None:
            break
    assert row.prefill
    assert row.start + len(row.tokens) == 8 + had
    assert (row.sample, row.output_index) == (True, had)
