"""Jumping over pure decodes leaves a core as stepping does: tokens, blocks, ends, and the cache."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from engine.config import PoolConfig
from engine.core import EngineCore, TokenEvent
from engine.request import Request, Run, SamplingParams

BLOCK = 4


def requests(random: Random, number: int) -> list[Request]:
    """Prompts of 1 to 30 tokens, half of them behind one of two documents."""
    made = []
    for i in range(number):
        prompt = random.randrange(1, 31)
        pages = min(random.randrange(0, 5), prompt // BLOCK)
        runs = (Run(("document", random.randrange(2)), 0, pages),) if pages else ()
        made.append(
            Request(f"r{i}", range(prompt), SamplingParams(max_tokens=random.randrange(1, 60)), runs=runs)
        )
    return made


def state(core: EngineCore) -> list[Any]:
    """Everything that later steps depend on."""
    scheduler = core._scheduler
    running = [
        (name, seq.computed, seq.length, seq.table.blocks, seq.table.published, seq.preemptions)
        for name, seq in scheduler.running.items()
    ]
    return [core.stats(), running, list(scheduler.waiting), core._cache.pool._free, core.has_work]


def step(core: EngineCore, now: float) -> list[TokenEvent]:
    flight = core.next_flight(now)
    assert flight is not None
    return core.complete(flight.id, None, now)


@pytest.mark.parametrize("batching", ["chunked", "prefill_first"])
@pytest.mark.parametrize("blocks", [200, 40, 24])
def test_a_jump_is_as_many_steps(batching: Any, blocks: int) -> None:
    """Jumps of any length up to the bound, arrivals in between; few blocks make preemptions and evictions."""
    jumped = 0
    for seed in range(25):
        random = Random(seed)
        pool = PoolConfig(token_budget=32, max_seqs=6, block_size=BLOCK, batching=batching)
        stepping, jumping = (EngineCore(pool, num_blocks=blocks, max_len=1000) for _ in range(2))
        todo, now = requests(random, 30), 0.0
        while todo or stepping.has_work:
            now += 1.0
            for _ in range(min(len(todo), random.randrange(3)) if random.random() < 0.2 or not now % 9 else 0):
                one = todo.pop()
                stepping.add(one, now)
                jumping.add(one, now)
            if not stepping.has_work:
                continue
            bound = jumping.decode_run()
            steps = random.randint(1, bound) if bound else 0
            if steps:
                before: list[TokenEvent] = []
                for _ in range(steps):
                    assert not before, "a request ended before the last step of the run"
                    before = step(stepping, now)
                assert jumping.jump(steps, now) == before
                jumped += steps
            else:
                assert step(stepping, now) == step(jumping, now)
            assert state(stepping) == state(jumping)
            jumping.check_invariants()
    assert jumped > 1000


def test_a_run_ends_with_the_first_request_that_ends() -> None:
    core = EngineCore(PoolConfig(token_budget=64, block_size=BLOCK), num_blocks=100, max_len=1000)
    for name, output in (("a", 30), ("b", 12)):
        core.add(Request(name, range(8), SamplingParams(max_tokens=output), runs=()), 0.0)
    assert core.decode_run() == 0
    step(core, 1.0)
    assert core.decode_run() == 11
    [event] = core.jump(11, 2.0)
    assert (event.request_id, event.index, event.finish_reason) == ("b", 11, "length")
    assert core.decode_run() == 18


def test_no_run_while_somebody_could_be_admitted_or_a_step_is_in_flight() -> None:
    pool = PoolConfig(token_budget=64, block_size=BLOCK, max_seqs=2)
    core = EngineCore(pool, num_blocks=100, max_len=1000)
    for name in "ab":
        core.add(Request(name, range(8), SamplingParams(max_tokens=30), runs=()), 0.0)
        step(core, 1.0)
    flight = core.next_flight(2.0)
    assert flight is not None
    assert core.decode_run() == 0
    core.complete(flight.id, None, 3.0)
    assert core.decode_run() == 27
    core.add(Request("c", range(8), SamplingParams(max_tokens=30), runs=()), 3.0)
    assert core.decode_run() == 27, "both places are taken"
    core.abort("a", 3.0)
    assert core.decode_run() == 0, "the third can begin"


def test_no_run_where_an_end_of_sequence_may_come() -> None:
    pool = PoolConfig(token_budget=64, block_size=BLOCK)
    core = EngineCore(pool, num_blocks=100, max_len=1000, eos_token_ids=frozenset({5}))
    core.add(Request("a", range(8), SamplingParams(max_tokens=30, ignore_eos=True), runs=()), 0.0)
    step(core, 1.0)
    assert core.decode_run() == 29
    core.add(Request("b", range(8), SamplingParams(max_tokens=30), runs=()), 1.0)
    step(core, 2.0)
    assert core.decode_run() == 0
