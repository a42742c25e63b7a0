"""One request through the core: refusals, ends, events, counters."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.core_driver import Driver, request

from engine.config import PoolConfig
from engine.core import EngineCore
from engine.errors import InputError
from engine.invariants import InvariantError
from engine.request import Request, SamplingParams, Status
from engine.sequence import Sequence
from engine.step import StepResult

POOL = PoolConfig(token_budget=16, block_size=4)


@pytest.mark.parametrize(
    ("prompt", "output", "fits"),
    [(0, 1, False), (1, 0, False), (30, 10, True), (31, 10, False), (20, 5, True), (20, 6, False)],
)
def test_a_request_that_can_never_run_is_refused(prompt: int, output: int, fits: bool) -> None:
    """mini-sglang only logs an over-long prompt, and its client waits for ever. max_len is 40; the last two
    cases have 6 blocks of 4 = 24 positions, and the last output token needs none."""
    small = prompt == 20
    core = EngineCore(POOL, num_blocks=7 if small else 100, max_len=40)
    one = request("r", range(prompt), output)
    if fits:
        core.add(one, 0.0)
    else:
        with pytest.raises(InputError, match=r"request|max_tokens"):
            core.add(one, 0.0)
    assert core.has_work == fits


def test_an_id_in_use_is_refused() -> None:
    driver = Driver(POOL)
    driver.add(request("r", [1, 2]))
    with pytest.raises(InputError, match="already"):
        driver.core.add(request("r", [3]), 0.0)


def answer(driver: Driver, tokens: list[int]) -> list[str | None]:
    """Feed sampled tokens to the only request; its finish reasons, event by event."""
    reasons: list[str | None] = []
    while driver.core.has_work:
        step = driver.core.next_step(0.0)
        assert step is not None
        result = StepResult(step.id, (tokens[len(reasons)],))
        reasons += [event.finish_reason for event in driver.core.complete(step.id, result, 0.0)]
    return reasons


EOS = 9


@pytest.mark.parametrize(
    ("sampling", "tokens", "reasons"),
    [
        (SamplingParams(max_tokens=3), [1, 2, 3], [None, None, "length"]),
        (SamplingParams(max_tokens=3), [1, EOS], [None, "stop"]),
        (SamplingParams(max_tokens=3), [1, 2, EOS], [None, None, "stop"]),
        (SamplingParams(max_tokens=3, ignore_eos=True), [EOS, EOS, EOS], [None, None, "length"]),
        (SamplingParams(max_tokens=4, min_tokens=2), [EOS, EOS, EOS], [None, None, "stop"]),
        (SamplingParams(max_tokens=1), [1], ["length"]),
    ],
)
def test_when_a_request_ends(sampling: SamplingParams, tokens: list[int], reasons: list[str | None]) -> None:
    driver = Driver(POOL, eos=frozenset({EOS}))
    driver.add(Request("r", (1, 2, 3), sampling))
    assert answer(driver, tokens) == reasons


def test_rows_say_what_a_sampler_needs() -> None:
    """`output_index` under `min_tokens` forbids end-of-sequence: 0 at the prefill, one more each decode."""
    driver = Driver(PoolConfig(token_budget=4, block_size=4))
    steps = driver.run(request("r", range(6), output=3))
    rows = [step.rows[0] for step in steps]
    assert [(row.start, len(row.tokens), row.sample, row.prefill, row.output_index) for row in rows] == [
        (0, 4, False, True, 0),
        (4, 2, True, True, 0),
        (6, 1, True, False, 1),
        (7, 1, True, False, 2),
    ]
    assert [step.id for step in steps] == [1, 2, 3, 4]


def test_abort_of_unknown_and_ended_requests_is_nothing() -> None:
    """smg#2426, vllm#25067: aborts may be late, or twice."""
    driver = Driver(POOL)
    driver.run(request("done", [1]))
    assert driver.core.abort("done", 9.0) == driver.core.abort("never", 9.0) == []
    assert driver.core.stats().aborted == 0


def test_abort_while_a_step_is_in_flight_holds_the_blocks() -> None:
    """mini-sglang#111 frees twice, vllm-ascend#14055 too early: blocks stay held until the step is retired."""
    driver = Driver(POOL)
    driver.add(request("a", range(10)))
    step = driver.begin()
    assert step is not None
    [event] = driver.core.abort("a", 2.0)
    assert (event.token, event.finish_reason, event.at) == (None, "abort", 2.0)
    driver.core.check_invariants()
    assert driver.core.stats().blocks_used == 3
    assert driver.core.next_step(2.0) is None
    assert driver.core.has_work, "the step in flight is still to be completed"
    assert driver.core.complete(step.id, driver.echo.submit(step).result(), 3.0) == []
    stats = driver.core.stats()
    assert (stats.blocks_used, stats.blocks_cached, stats.aborted) == (0, 0, 1)
    assert not driver.core.has_work


def test_the_id_of_an_aborted_request_can_be_used_at_once() -> None:
    """A result in flight belongs to the old request, not to the new one of the same name."""
    driver = Driver(POOL)
    driver.add(request("a", range(10)))
    step = driver.begin()
    assert step is not None
    result = driver.echo.submit(step).result()
    driver.abort("a")
    driver.last.clear()
    driver.add(request("a", range(20, 23)))
    assert driver.core.complete(step.id, result, 1.0) == []
    driver.run()
    assert len(driver.outputs["a"]) == 4


def test_a_failed_step_ends_its_requests_and_publishes_nothing() -> None:
    """sglang#38355, #28374, vllm#50283: what a failed prefill left behind must not poison later prompts."""
    driver = Driver(POOL)
    driver.add(request("a", range(10)))
    step = driver.begin()
    assert step is not None
    [event] = driver.core.fail(step.id, 1.0)
    assert (event.request_id, event.finish_reason) == ("a", "error")
    driver.run(request("b", range(10)))
    assert driver.last["b"].cached_tokens == 0
    assert driver.core.stats().failed == 1


def test_a_result_of_another_step_is_a_bug() -> None:
    driver = Driver(POOL)
    driver.add(request("a", range(10)))
    step = driver.begin()
    assert step is not None
    with pytest.raises(InvariantError, match="not the oldest in flight"):
        driver.core.complete(step.id + 1, StepResult(step.id + 1, (1,)), 0.0)


def test_hits_are_counted_once_at_first_admission() -> None:
    """vllm#25780, sglang#2555: recomputing after a preemption, or going on with a chunk, is no cache hit."""
    driver = Driver(PoolConfig(token_budget=8, block_size=4, max_seqs=2), num_blocks=9)
    first, second = request("a", range(12), output=12), request("b", range(20, 32), output=12)
    driver.run(first, second)
    stats = driver.core.stats()
    assert stats.preemptions > 0
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (24, 0)
    assert driver.last["b"].cached_tokens == 0


def test_events_tell_how_long_a_request_queued() -> None:
    driver = Driver(PoolConfig(token_budget=8, block_size=4, max_seqs=1))
    driver.run(request("a", range(4), output=5), request("b", range(4), output=2))
    # Five steps of one second each before "a" leaves its only place.
    assert (driver.last["a"].queued_s, driver.last["b"].queued_s) == (0.0, 5.0)
    assert driver.last["b"].at == 7.0


def test_decode_run_is_exact() -> None:
    """Each of the steps that it promises is a pure decode of the same rows, and none ends but with the last."""
    driver = Driver(PoolConfig(token_budget=64, block_size=4, max_seqs=3), num_blocks=40)
    driver.add(*(request(f"r{i}", range(i, i + 6), output=9 + 5 * i) for i in range(5)))
    jumped = 0
    while driver.core.has_work:
        ahead = driver.core.decode_run()
        before = driver.core.stats()
        for left in reversed(range(ahead)):
            rows = driver.step().rows
            assert not any(row.prefill for row in rows)
            assert len(rows) == before.running
            after = driver.core.stats()
            assert (after.waiting, after.preemptions) == (before.waiting, 0)
            assert after.finished == before.finished or left == 0
        jumped += ahead
        if not ahead:
            driver.step()
    assert jumped > 20
    assert driver.core.decode_run() == 0


def test_decode_run_stops_before_blocks_are_short() -> None:
    driver = Driver(PoolConfig(block_size=4), num_blocks=11)
    driver.add(request("a", range(8), output=20), request("b", range(30, 38), output=20))
    while driver.core.has_work:
        ahead, preempted = driver.core.decode_run(), driver.core.stats().preemptions
        for _ in range(ahead):
            driver.step()
        assert driver.core.stats().preemptions == preempted
        if not ahead:
            driver.step()
    assert driver.core.stats().preemptions > 0


def test_decode_run_promises_nothing_where_an_end_may_come() -> None:
    driver = Driver(POOL, eos=frozenset({EOS}))
    driver.add(request("a", range(4), output=20))
    driver.step()
    assert driver.core.decode_run() == 0


def test_every_state_can_only_move_as_the_table_says() -> None:
    for start in Status:
        for end in Status:
            seq = Sequence(request("r", [1]), 0.0, 4)
            seq.status = start
            if end in start.after:
                seq.move(end)
            else:
                with pytest.raises(InvariantError):
                    seq.move(end)


def test_prompt_tokens_do_not_show_in_reprs() -> None:
    driver = Driver(POOL)
    [step, *_] = driver.run(request("r", [987654321]))
    assert "987654321" not in repr(step)
    assert "987654321" not in repr(request("r", [987654321]))
    assert dataclasses.asdict(driver.core.stats())["finished"] == 1
