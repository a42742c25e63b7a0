"""Both sides of a split on one core: kept KV, reserved blocks, and decodes that begin with KV from elsewhere.

A model-based random test beside examples: any calls in any order, invariants after each, and at the end every
request has ended once and no block is held.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from engine.config import PoolConfig
from engine.core import EngineCore, Flight, TokenEvent
from engine.errors import InputError
from engine.invariants import InvariantError
from engine.request import Request, Run, SamplingParams

BLOCK = 4
SIZES = {"prompt": st.integers(1, 24), "output": st.integers(1, 40), "pages": st.integers(0, 5)}


def ask(name: str, prompt: int, output: int, *, pages: int = 0, keep: bool = False) -> Request:
    """`pages` of the prompt are a document that others have too."""
    runs = (Run("document", 0, pages),) if pages else ()
    return Request(name, range(prompt), SamplingParams(max_tokens=output), runs=runs, keep_kv=keep)


def core_of(blocks: int = 50, **pool: Any) -> EngineCore:
    return EngineCore(PoolConfig(block_size=BLOCK, **pool), num_blocks=blocks + 1, max_len=1000)


def step(core: EngineCore) -> list[TokenEvent]:
    flight = core.next_flight(0.0)
    assert flight is not None
    return core.complete(flight.id, None, 1.0)


def test_kept_kv_is_held_until_it_is_released_and_hits_at_once() -> None:
    core = core_of()
    core.add(ask("a", 10, 1, pages=2, keep=True), 0.0)
    [event] = step(core)
    assert event.finish_reason == "length"
    assert not core.has_work
    assert core.stats().blocks_used == 3
    core.add(ask("b", 10, 1, pages=2), 1.0)
    [event] = step(core)
    assert event.cached_tokens == 8, "what is kept is there for others"
    assert core.stats().blocks_used == 3
    core.release_kv("a", 2.0)
    core.release_kv("a", 2.0)
    assert core.stats().blocks_used == 0
    assert core.stats().blocks_cached > 0


def test_a_reservation_takes_the_blocks_of_the_whole_life_or_none() -> None:
    """10 + 15 - 1 positions are 6 blocks of 4."""
    core = core_of(11)
    assert core.reserve(ask("a", 10, 15), 0.0) == 0
    assert core.stats().blocks_used == 6
    assert core.reserve(ask("b", 10, 15), 0.0) is None
    assert core.stats().blocks_used == 6
    core.abort("a", 1.0)
    assert core.stats().blocks_used == 0
    assert core.reserve(ask("b", 10, 15), 2.0) == 0
    with pytest.raises(InputError):
        core.reserve(ask("c", 40, 15), 2.0)


def test_a_pulled_request_computes_one_token_a_step_and_its_prompt_hits_from_then_on() -> None:
    core = core_of()
    core.reserve(ask("a", 10, 4, pages=2), 0.0)
    assert core.next_flight(0.0) is None
    core.start_decode("a", 7, 1.0)
    assert core.decoding == (1, 10)
    assert core.reserve(ask("b", 10, 4, pages=2), 1.0) == 8
    assert step(core) == step(core) == []
    [event] = step(core)
    assert (event.request_id, event.index, event.finish_reason) == ("a", 3, "length")
    with pytest.raises(InvariantError):
        core.start_decode("c", 7, 1.0)


@pytest.mark.parametrize("ends", ["complete", "fail"])
def test_a_decode_that_comes_while_a_step_is_in_flight_joins_the_next(ends: str) -> None:
    core = core_of()
    core.reserve(ask("a", 8, 5), 0.0)
    core.start_decode("a", 7, 0.0)
    core.reserve(ask("b", 8, 3), 0.0)
    flight = core.next_flight(0.0)
    assert flight is not None
    core.start_decode("b", 7, 0.5)
    core.check_invariants()
    if ends == "complete":
        core.complete(flight.id, None, 1.0)
    else:
        assert [event.request_id for event in core.fail(flight.id, 1.0)] == ["a"]
    core.check_invariants()
    assert core.decoding == ((2, 9 + 8) if ends == "complete" else (1, 8))
    assert step(core) == []
    assert [event.request_id for event in step(core)] == ["b"]


def test_a_decode_aborted_before_it_could_join_leaves_nothing() -> None:
    core = core_of()
    for name in "ab":
        core.reserve(ask(name, 8, 5), 0.0)
    core.start_decode("a", 7, 0.0)
    flight = core.next_flight(0.0)
    assert flight is not None
    core.start_decode("b", 7, 0.5)
    assert [event.finish_reason for event in core.abort("b", 0.6)] == ["abort"]
    core.complete(flight.id, None, 1.0)
    core.check_invariants()
    assert core.decoding == (1, 9)


def test_who_was_pulled_may_be_preempted_and_computes_all_again_here() -> None:
    """10 blocks: the local request grows until the pulled one, admitted later, has to go."""
    core = core_of(10, token_budget=64)
    core.add(ask("local", 12, 28), 0.0)
    step(core)
    core.reserve(ask("pulled", 8, 12), 0.0)
    core.start_decode("pulled", 7, 0.0)
    events = [event for _ in range(60) if core.has_work for event in step(core)]
    assert core.stats().preemptions == 1
    assert [(e.request_id, e.index) for e in events if e.finish_reason] == [("local", 27), ("pulled", 11)]


class SplitMachine(RuleBasedStateMachine):
    """Rules are the calls of a driver that uses one core for everything."""

    events: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.flights: deque[Flight] = deque()
        self.open: set[str] = set()
        self.reserved: list[str] = []
        self.kept: list[str] = []
        self.ends: Counter[str] = Counter()
        self.names = 0

    @initialize(
        blocks=st.integers(17, 24),
        pp=st.sampled_from([1, 1, 2, 3]),
        budget=st.sampled_from([64, 16, 7]),
        batching=st.sampled_from(["chunked", "chunked", "prefill_first"]),
    )
    def start(self, blocks: int, pp: int, budget: int, batching: Any) -> None:
        self.pp = pp
        self.core = core_of(blocks, token_budget=budget, max_seqs=6, pp=pp, batching=batching)

    def make(self, prompt: int, output: int, pages: int) -> Request:
        self.names += 1
        return ask(f"r{self.names}", prompt, output, pages=min(pages, prompt // BLOCK))

    @rule(**SIZES)
    def add(self, prompt: int, output: int, pages: int) -> None:
        one = self.make(prompt, output, pages)
        self.core.add(one, 0.0)
        self.open.add(one.id)
        self.check("add")

    @rule(prompt=st.integers(1, 24), pages=st.integers(0, 5))
    def add_half(self, prompt: int, pages: int) -> None:
        one = replace(self.make(prompt, 1, pages), keep_kv=True)
        self.core.add(one, 0.0)
        self.open.add(one.id)
        self.check("half")

    @rule(**SIZES)
    def reserve(self, prompt: int, output: int, pages: int) -> None:
        one = self.make(prompt, output + 1, pages)
        cached = self.core.reserve(one, 0.0)
        if cached is not None:
            assert cached % BLOCK == 0
            assert cached < prompt
            self.open.add(one.id)
            self.reserved.append(one.id)
        self.check("no room" if cached is None else "reserve")

    @rule(which=st.integers(0, 9))
    @precondition(lambda self: self.reserved)
    def start_decode(self, which: int) -> None:
        name = self.reserved.pop(which % len(self.reserved))
        self.core.start_decode(name, 7, 0.0)
        self.check("late" if self.core._scheduler.late else "start")

    @rule(which=st.integers(0, 9))
    @precondition(lambda self: self.kept)
    def release(self, which: int) -> None:
        self.core.release_kv(self.kept.pop(which % len(self.kept)), 0.0)
        self.check("release")

    @rule(which=st.integers(0, 60))
    def abort(self, which: int) -> None:
        name = f"r{which}"
        if name in self.reserved:
            self.reserved.remove(name)
        self.hear(self.core.abort(name, 0.0))
        self.check("abort")

    @rule()
    def begin(self) -> None:
        flight = self.core.next_flight(0.0)
        if flight is not None:
            self.flights.append(flight)
        assert len(self.flights) <= self.pp
        self.check("begin")

    @rule()
    @precondition(lambda self: self.flights)
    def complete(self) -> None:
        self.hear(self.core.complete(self.flights.popleft().id, None, 1.0))
        self.check("complete")

    @rule(luck=st.integers(0, 9))
    @precondition(lambda self: self.flights)
    def fail(self, luck: int) -> None:
        if luck:
            return self.complete()
        self.hear(self.core.fail(self.flights.popleft().id, 1.0))
        return self.check("fail")

    @rule(share=st.floats(0, 1))
    def jump(self, share: float) -> None:
        """Once nothing is in flight, and after some steps only decodes may be left."""
        for _ in range(8):
            while self.flights:
                self.complete()
            if self.core.decode_run():
                break
            self.begin()
        while self.flights:
            self.complete()
        steps = round(share * self.core.decode_run())
        if steps:
            self.hear(self.core.jump(steps, 1.0))
            self.check("jump")

    def hear(self, events: list[TokenEvent]) -> None:
        for event in events:
            if event.finish_reason is not None:
                self.ends[event.request_id] += 1
                if event.request_id in self.core._kept:
                    self.kept.append(event.request_id)

    def check(self, what: str) -> None:
        type(self).events[what] += 1
        self.core.check_invariants()

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        while self.reserved:
            self.start_decode(0)
        while self.core.has_work or self.flights:
            while self.kept:
                self.release(0)
            self.begin()
            if self.flights:
                self.complete()
        while self.kept:
            self.release(0)
        stats = self.core.stats()
        type(self).events["preempted"] += stats.preemptions
        assert self.ends == Counter(dict.fromkeys(self.open, 1))
        assert (stats.waiting, stats.running, stats.blocks_used) == (0, 0, 0)
        assert stats.finished + stats.aborted + stats.failed == len(self.open)


def test_random_calls() -> None:
    class Counted(SplitMachine):
        events: ClassVar[Counter[str]] = Counter()

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Counted,
        settings=settings(
            max_examples=120,
            stateful_step_count=80,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(Counted.events)  # noqa: T201 - the figure that is asked for
    assert min(Counted.events[what] for what in ("late", "release", "jump", "no room", "fail")) > 3
    assert Counted.events["preempted"] > 10
