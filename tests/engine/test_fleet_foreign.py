"""Requests whose prefill another fleet has done: adopted, pulled, let go once, computed here where that fails.

What keeps the KV is in another launch behind another router (docs/two-call.md). Nobody tells this fleet of its
death, so a pull that fails is taken for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from engine.config import PoolConfig, RouterConfig
from engine.errors import InputError
from engine.fleet.actions import Abort, Action, Pull, Reject, Release, Reserve, Serve, StartDecode
from engine.fleet.fleet import Fleet
from engine.fleet.roster import FOREIGN
from engine.invariants import InvariantError
from engine.request import Request, SamplingParams

PROMPT = (1, 2, 3, 4, 5)
TOKEN = 70
LET_GO = Release(FOREIGN, "r")


def request(name: str = "r", max_tokens: int = 10) -> Request:
    return Request(name, PROMPT, SamplingParams(max_tokens=max_tokens, min_tokens=4, seed=3))


def decode_fleet(count: int = 1, max_queued: int = 100) -> Fleet:
    return Fleet([PoolConfig(role="decode", count=count)], RouterConfig(), lease_s=30.0, max_queued=max_queued)


def nothing(_: str) -> Sequence[int]:
    raise AssertionError("nobody runs")


def rest(tokens: int = 1) -> Request:
    """The request behind its first `tokens` output tokens, all TOKEN."""
    left = SamplingParams(max_tokens=10 - tokens, min_tokens=4 - tokens, seed=3)
    return Request("r", (*PROMPT, *[TOKEN] * tokens), left)


class Adopted:
    """One request brought to a phase of its life."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.attempt = 0

    def to(self, phase: str) -> list[Action]:
        """The actions of the last step."""
        out = self.fleet.adopt(request(), TOKEN, now=0.0)
        for step in ("reserving", "pulling", "decoding"):
            last = out[0]
            assert not isinstance(last, Reject | Release | Abort)
            self.attempt = last.attempt
            if step == phase:
                break
            if step == "reserving":
                out = self.fleet.reserved("r", self.attempt, 2)
            else:
                out = self.fleet.pulled("r", self.attempt, now=1.0)
            self.fleet.check_invariants()
        return out


def test_it_reserves_pulls_what_is_not_cached_decodes_behind_the_token_and_lets_go() -> None:
    fleet = decode_fleet()
    [reserve] = Adopted(fleet).to("reserving")
    assert isinstance(reserve, Reserve)
    assert (reserve.instance, reserve.request) == (0, request())
    [pull] = fleet.reserved("r", reserve.attempt, 2)
    assert isinstance(pull, Pull)
    assert (pull.source, pull.target, pull.start, pull.stop) == (FOREIGN, 0, 2, len(PROMPT))
    assert fleet.leases == 1
    assert fleet.pulled("r", pull.attempt, now=1.0) == [StartDecode(0, "r", pull.attempt, TOKEN), LET_GO]
    assert (fleet.leases, fleet.counts.transferred) == (0, 1)
    assert fleet.finished("r", pull.attempt) == []
    assert fleet.in_flight == 0
    fleet.check_invariants()


def test_it_counts_as_queued_until_it_decodes() -> None:
    """Its first token is not this fleet's work; if it counted, nothing would bound what waits here."""
    fleet = decode_fleet(max_queued=1)
    life = Adopted(fleet)
    life.to("pulling")
    assert fleet.queued == 1
    assert fleet.adopt(request("s"), TOKEN, now=0.0) == [
        Reject("s", "the queue is full"),
        Release(FOREIGN, "s"),
    ]
    fleet.pulled("r", life.attempt, now=1.0)
    fleet.prefilled("r", life.attempt, 71, now=1.1)
    assert fleet.queued == 0
    fleet.check_invariants()


def test_a_pull_that_fails_is_not_tried_again_the_prompt_is_computed_here() -> None:
    fleet = decode_fleet()
    life = Adopted(fleet)
    life.to("pulling")
    let_go, abort, serve = fleet.pull_failed("r", life.attempt, now=1.0)
    assert (let_go, abort) == (LET_GO, Abort(0, "r"))
    assert isinstance(serve, Serve)
    assert (serve.instance, serve.request) == (0, rest())
    assert (fleet.counts.voided, fleet.counts.requeued) == (1, 1)
    fleet.check_invariants()


def test_a_copy_that_ends_after_its_lease_is_not_believed() -> None:
    fleet = decode_fleet()
    life = Adopted(fleet)
    life.to("pulling")
    let_go, _, serve = fleet.pulled("r", life.attempt, now=30.0)
    assert let_go == LET_GO
    assert isinstance(serve, Serve)
    assert fleet.counts.transferred == 0


def test_a_lease_that_expires_in_the_queue_is_given_up_and_a_heartbeat_renews_it() -> None:
    fleet = decode_fleet()
    life = Adopted(fleet)
    life.to("reserving")
    assert fleet.reserved("r", life.attempt, None) == []
    assert fleet.wanted_by(0) == {FOREIGN: ["r"]}
    fleet.heartbeat(0, now=20.0)
    [again] = fleet.tick(now=40.0)
    assert isinstance(again, Reserve)
    let_go, _, serve = fleet.tick(now=50.0)
    assert let_go == LET_GO
    assert isinstance(serve, Serve)
    assert serve.request == rest()
    fleet.check_invariants()


@pytest.mark.parametrize("phase", ["reserving", "pulling"])
def test_kv_is_pulled_by_another_instance_where_one_dies_before_it_decodes(phase: str) -> None:
    fleet = decode_fleet(count=2)
    Adopted(fleet).to(phase)
    [reserve] = fleet.instance_down(0, nothing)
    assert isinstance(reserve, Reserve)
    assert reserve.instance == 1
    [pull] = fleet.reserved("r", reserve.attempt, 0)
    assert isinstance(pull, Pull)
    assert (pull.source, pull.target, pull.start) == (FOREIGN, 1, 0)
    fleet.check_invariants()


def test_a_decode_that_dies_goes_on_as_prompt_and_tokens() -> None:
    fleet = decode_fleet(count=2)
    Adopted(fleet).to("decoding")
    [serve] = fleet.instance_down(0, lambda _: (TOKEN, TOKEN))
    assert isinstance(serve, Serve)
    assert (serve.instance, serve.request) == (1, rest(2))
    fleet.check_invariants()


def test_with_no_instance_up_it_waits_without_its_kv() -> None:
    fleet = decode_fleet()
    fleet.instance_down(0, nothing)
    assert fleet.adopt(request(), TOKEN, now=0.0) == [LET_GO]
    [serve] = fleet.instance_up(0, nothing)
    assert isinstance(serve, Serve)
    assert serve.request == rest()
    fleet.check_invariants()


@pytest.mark.parametrize("phase", ["reserving", "pulling", "decoding"])
def test_it_is_let_go_once_when_its_client_leaves(phase: str) -> None:
    fleet = decode_fleet()
    life = Adopted(fleet)
    out = life.to(phase) + fleet.aborted("r")
    if phase == "pulling":
        out += fleet.pull_failed("r", life.attempt, now=1.0)
    assert out.count(LET_GO) == 1
    assert out[-1] == Abort(0, "r")
    assert (fleet.in_flight, fleet.leases, fleet.loads()) == (0, 0, [0])
    fleet.check_invariants()


def test_what_cannot_be_adopted() -> None:
    fleet = decode_fleet()
    with pytest.raises(InvariantError, match="no more tokens"):
        fleet.adopt(request(max_tokens=1), TOKEN, now=0.0)
    fleet.adopt(request(), TOKEN, now=0.0)
    with pytest.raises(InputError, match="in flight"):
        fleet.adopt(request(), TOKEN, now=0.0)


def test_kv_kept_for_another_fleet_is_freed_where_the_client_leaves_as_the_prefill_ends() -> None:
    """The abort may come behind the end of the prefill, when its KV is kept already."""
    fleet = Fleet([PoolConfig(role="prefill")], RouterConfig())
    keeping = Request("r", PROMPT, SamplingParams(max_tokens=1), keep_kv=True)
    [serve] = fleet.submit(keeping)
    assert isinstance(serve, Serve)
    assert fleet.aborted("r") == [Abort(0, "r"), Release(0, "r")]
    fleet.submit(request("s"))
    assert fleet.aborted("s") == [Abort(0, "s")]


class Chaos:
    """Adopted and plain requests on decode instances that die, are full, and pull badly, in any order."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.fleet = decode_fleet(count=random.choice([1, 2, 3]), max_queued=random.choice([4, 50]))
        self.now = 0.0
        self.names = 0
        self.asked: list[Action] = []  # what instances still have to answer
        self.adopted: set[str] = set()
        self.open: set[str] = set()
        self.let_go: Counter[str] = Counter()
        self.calm = False

    def run(self, events: int) -> None:
        for _ in range(events):
            self.now += self.random.choice([0.0, 0.1, 1.0, 12.0])
            self.random.choice(
                [self.come, self.answer, self.answer, self.answer, self.leave, self.die, self.tick]
            )()
            self.fleet.check_invariants()
        self.calm = True
        for index, state in enumerate(self.fleet.states()):
            if state == "down":
                self.take(self.fleet.instance_up(index, self.produced))
        self.tick()
        while self.asked:
            self.answer()
            self.tick()
            self.fleet.check_invariants()
        assert not self.open
        assert self.fleet.in_flight == self.fleet.leases == 0
        assert self.let_go == Counter(self.adopted), "foreign KV was let go twice, or not at all"

    def come(self) -> None:
        name = f"r{self.names}"
        self.names += 1
        self.open.add(name)
        if self.random.random() < 0.8:
            self.adopted.add(name)
            self.take(self.fleet.adopt(request(name), TOKEN, self.now))
        else:
            self.take(self.fleet.submit(request(name)))

    def answer(self) -> None:
        if not self.asked:
            return
        one = self.asked.pop(self.random.randrange(len(self.asked)))
        fleet, good = self.fleet, self.calm or self.random.random() < 0.7
        if isinstance(one, Reserve):
            cached = self.random.choice([0, 4]) if good else None
            self.take(fleet.reserved(one.request.id, one.attempt, cached))
        elif isinstance(one, Pull):
            ended = fleet.pulled if good else fleet.pull_failed
            self.take(ended(one.request_id, one.attempt, self.now))
        elif isinstance(one, Serve | StartDecode):
            name = one.request.id if isinstance(one, Serve) else one.request_id
            fleet.prefilled(name, one.attempt, 9, self.now)
            before = fleet.counts.finished
            self.take(fleet.finished(name, one.attempt))
            if fleet.counts.finished > before:
                self.open.remove(name)

    def leave(self) -> None:
        if self.open:
            name = self.random.choice(sorted(self.open))
            self.open.remove(name)
            self.take(self.fleet.aborted(name))

    def die(self) -> None:
        index = self.random.randrange(len(self.fleet.states()))
        if self.fleet.states()[index] == "down":
            return self.take(self.fleet.instance_up(index, self.produced))
        self.asked = [one for one in self.asked if place(one) != index]
        return self.take(self.fleet.instance_down(index, self.produced))

    def tick(self) -> None:
        for index, state in enumerate(self.fleet.states()):
            if state == "up" and (self.calm or self.random.random() < 0.5):
                self.fleet.heartbeat(index, self.now)
        self.take(self.fleet.tick(self.now))

    def produced(self, name: str) -> Sequence[int]:
        return (TOKEN, TOKEN) if name in self.adopted else (TOKEN,)

    def take(self, actions: Sequence[Action]) -> None:
        for one in actions:
            if isinstance(one, Release):
                assert one.instance == FOREIGN
                self.let_go[one.request_id] += 1
            elif isinstance(one, Reject):
                self.open.remove(one.request_id)
            elif not isinstance(one, Abort):
                self.asked.append(one)


def place(action: Action) -> int:
    if isinstance(action, Pull):
        return action.target
    return -1 if isinstance(action, Reject) else action.instance


@pytest.mark.parametrize("seed", range(60))
def test_in_any_order_of_events_foreign_kv_is_let_go_exactly_once(seed: int) -> None:
    Chaos(seed).run(300)
