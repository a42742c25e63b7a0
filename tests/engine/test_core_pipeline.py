"""A pipeline of stages has as many steps in flight: who may be in them, and what each computes."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import pytest

from engine.config import PoolConfig
from engine.core import EngineCore, Flight
from engine.request import Request, SamplingParams

BLOCK = 4


def core_of(pp: int, blocks: int = 200, **pool: Any) -> EngineCore:
    return EngineCore(PoolConfig(pp=pp, block_size=BLOCK, **pool), num_blocks=blocks, max_len=1000)


def ask(name: str, prompt: int, output: int) -> Request:
    return Request(name, range(prompt), SamplingParams(max_tokens=output), runs=())


def decodes(core: EngineCore, flight: Flight) -> list[str]:
    """Who decodes in a step that has just been made."""
    return [name for name, seq in core._scheduler.running.items() if seq.group is flight.work.group]


def chunks(flight: Flight) -> list[tuple[str, int, int]]:
    return [(seq.request.id, start, tokens) for seq, tokens, start in flight.work.chunks]


def test_chunks_of_one_prompt_follow_each_other_into_consecutive_steps() -> None:
    core = core_of(3, token_budget=8)
    core.add(ask("a", 40, 2), 0.0)
    flights = [core.next_flight(0.0) for _ in range(3)]
    assert [chunks(one) for one in flights if one] == [[("a", 0, 8)], [("a", 8, 8)], [("a", 16, 8)]]
    assert core.next_flight(0.0) is None, "all stages are busy"
    for start in (24, 32):
        assert core.complete(flights.pop(0).id, None, 1.0) == []  # type: ignore[union-attr]
        flight = core.next_flight(1.0)
        assert flight is not None
        assert chunks(flight) == [("a", start, 8)]
        flights.append(flight)
    assert core.complete(flights.pop(0).id, None, 2.0) == []  # type: ignore[union-attr]
    assert core.next_flight(2.0) is None, "its last chunk is in flight, and no token is there to decode"
    core.complete(flights.pop(0).id, None, 3.0)  # type: ignore[union-attr]
    [event] = core.complete(flights.pop(0).id, None, 4.0)  # type: ignore[union-attr]
    assert (event.request_id, event.index) == ("a", 0)


def test_decodes_are_dealt_into_as_many_groups_as_stages() -> None:
    """Four requests whose prompts take a step each end up two in each of two steps in flight."""
    core = core_of(2, token_budget=8)
    for name in "abcd":
        core.add(ask(name, 8, 50), 0.0)
    flights: deque[Flight] = deque()
    for _ in range(8):
        while (flight := core.next_flight(0.0)) is not None:
            flights.append(flight)
        core.complete(flights.popleft().id, None, 1.0)
    while (flight := core.next_flight(0.0)) is not None:
        flights.append(flight)
    one, other = (decodes(core, flight) for flight in flights)
    assert len(one) == len(other) == 2
    assert sorted(one + other) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("batching", ["chunked", "prefill_first"])
def test_nobody_is_twice_in_flight_and_positions_follow_each_other(pp: int, batching: Any) -> None:
    """Random loads in small pools. A request goes on where its last row ended, or begins again at a page."""
    preemptions = 0
    for seed in range(15):
        random = Random(seed)
        core = core_of(pp, blocks=40, token_budget=24, max_seqs=10, batching=batching)
        todo = [ask(f"r{i}", random.randrange(1, 50), random.randrange(1, 40)) for i in range(30)]
        asked = {one.id: one for one in todo}
        flights: deque[tuple[Flight, list[str]]] = deque()
        position: dict[str, int] = {}
        ended = []
        while todo or core.has_work:
            if todo and random.random() < 0.3:
                core.add(todo.pop(), 0.0)
            flight = core.next_flight(0.0)
            core.check_invariants()
            for name in core.preempted:
                assert not any(name in names for _, names in flights), "preempted in flight"
                position[name] = 0
            if flight is not None:
                rows = [(name, core._scheduler.running[name].computed, 1) for name in decodes(core, flight)]
                rows = rows if flight.work.decodes else []
                busy = {name for _, names in flights for name in names}
                assert not busy & {name for name, *_ in rows}, "a decode is twice in flight"
                for name, start, tokens in rows + chunks(flight):
                    begins = position.get(name, 0)
                    assert start == begins or (begins == 0 and start % BLOCK == 0)
                    position[name] = start + tokens
                assert sum(tokens for *_, tokens in rows + chunks(flight)) <= 24 or batching == "prefill_first"
                flights.append((flight, [name for name, *_ in rows]))
            if flights and (len(flights) == pp or flight is None or random.random() < 0.4):
                done, _ = flights.popleft()
                ended += [e.request_id for e in core.complete(done.id, None, 1.0) if e.finish_reason]
                core.check_invariants()
            assert len(flights) <= pp
        assert sorted(ended) == sorted(asked)
        assert all(position[n] == len(o.prompt) + o.sampling.max_tokens - 1 for n, o in asked.items())
        assert core.stats().blocks_used == 0
        preemptions += core.stats().preemptions
    assert preemptions > 10
