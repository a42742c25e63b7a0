"""The fleet over real engine cores and the echo model: every KV that is read must be the right one.

A copy moves the echo's KV from the source's blocks to the target's, so answers prove what was computed, moved,
skipped and read. Answers are compared with what the model says without any engine.
"""

from __future__ import annotations

from random import Random

import pytest
from helpers.core_driver import request
from helpers.echo import EchoExecutor, expected_output

from engine.config import PoolConfig, RouterConfig
from engine.core import EngineCore, TokenEvent
from engine.fleet.actions import (
    Action,
    Prefill,
    Pull,
    Reject,
    Release,
    Reserve,
    Serve,
    StartDecode,
    prefill_half,
)
from engine.fleet.fleet import Fleet
from engine.request import Request

BLOCKS, BLOCK = 60, 4
EOS = frozenset({7, 33})


class Member:
    """One instance: a core, its echo model and the attempt of each request it runs."""

    def __init__(self, pool: PoolConfig) -> None:
        self.core = EngineCore(pool, num_blocks=BLOCKS, max_len=200, eos_token_ids=EOS, shuffle=Random(1))
        self.echo = EchoExecutor(BLOCKS, BLOCK, EOS)
        self.attempts: dict[str, int] = {}
        self.halves: set[str] = set()

    def slot(self, name: str, position: int) -> tuple[int, int]:
        """Where the KV of a request's position is, kept here or about to be written."""
        core = self.core
        table = (core._kept.get(name) or core._scheduler.pulling[name]).table
        return table.blocks[position // BLOCK], position % BLOCK


class Cluster:
    """Carries actions out at once; a copy takes until the next `copy`."""

    def __init__(self, fleet: Fleet, pools: list[PoolConfig]) -> None:
        self.fleet = fleet
        self.pools = [pool for pool in pools for _ in range(pool.count)]
        self.members = [Member(pool) for pool in self.pools]
        self.streams: dict[str, list[int]] = {}
        self.copies: list[Pull] = []
        self.pulls: list[Pull] = []
        self.now = 0.0

    def submit(self, one: Request) -> None:
        self.streams[one.id] = []
        self.do(self.fleet.submit(one))

    def do(self, actions: list[Action]) -> None:
        for one in actions:
            self.fleet.check_invariants()
            assert not isinstance(one, Reject)
            if isinstance(one, Pull):
                self.copies.append(one)
                self.pulls.append(one)
                continue
            member = self.members[one.instance]
            if isinstance(one, Serve | Prefill):
                self.add(member, one)
            elif isinstance(one, Reserve):
                member.echo.expect(one.request)
                member.attempts[one.request.id] = one.attempt
                member.halves.discard(one.request.id)
                cached = member.core.reserve(one.request, self.now)
                self.do(self.fleet.reserved(one.request.id, one.attempt, cached))
            elif isinstance(one, StartDecode):
                member.echo._tokens[one.request_id].append(one.token)
                member.core.start_decode(one.request_id, one.token, self.now)
            elif isinstance(one, Release):
                member.core.release_kv(one.request_id, self.now)
            else:
                member.core.abort(one.request_id, self.now)

    def add(self, member: Member, one: Serve | Prefill) -> None:
        name = one.request.id
        member.echo.expect(one.request)
        member.attempts[name] = one.attempt
        member.halves.discard(name)
        if isinstance(one, Prefill):
            member.halves.add(name)
        member.core.add(prefill_half(one.request) if isinstance(one, Prefill) else one.request, self.now)

    def step(self) -> None:
        """A step of every instance, then every copy."""
        self.now += 1.0
        for member in self.members:
            step = member.core.next_step(self.now)
            if step is not None:
                for event in member.core.complete(step.id, member.echo.submit(step).result(), self.now):
                    self.hear(member, event)
            member.core.check_invariants()
        for pull in self.copies:
            self.copy(pull)
        self.copies = []

    def copy(self, pull: Pull) -> None:
        source, target = self.members[pull.source], self.members[pull.target]
        for position in range(pull.start, pull.stop):
            (block, offset), (to, at) = (one.slot(pull.request_id, position) for one in (source, target))
            target.echo._kv[to][at] = source.echo._kv[block][offset]
        self.do(self.fleet.pulled(pull.request_id, pull.attempt, self.now))

    def hear(self, member: Member, event: TokenEvent) -> None:
        name = event.request_id
        attempt, token = member.attempts[name], event.token
        assert token is not None
        self.streams[name].append(token)
        if event.finish_reason is None or (event.finish_reason == "length" and name in member.halves):
            self.do(self.fleet.prefilled(name, attempt, token, self.now) if event.index == 0 else [])
        else:
            self.do(self.fleet.finished(name, attempt))

    def kill(self, index: int) -> None:
        """The instance dies with all it holds, and one step later another has taken its place."""
        self.members[index] = Member(self.pools[index])
        self.copies = [one for one in self.copies if index not in (one.source, one.target)]
        self.do(self.fleet.instance_down(index, self.streams.__getitem__))
        self.step()
        self.do(self.fleet.instance_up(index, self.streams.__getitem__))

    def finish(self) -> None:
        for _ in range(5_000):
            if not self.fleet.in_flight:
                break
            self.step()
        assert self.fleet.in_flight == self.fleet.leases == 0
        for member in self.members:
            assert member.core.stats().blocks_used == 0


def cluster(prefill: int, decode: int, router: RouterConfig, **pool: int) -> Cluster:
    roles = (("prefill", prefill), ("decode", decode))
    pools = [PoolConfig(role=role, count=count, block_size=BLOCK, **pool) for role, count in roles]  # type: ignore[arg-type]
    return Cluster(Fleet(pools, router), pools)


def requests(number: int, random: Random) -> list[Request]:
    """Prompts of 1 to 40 tokens, some behind one of three documents."""
    made = []
    for i in range(number):
        document = random.randrange(3)
        prefix = range(document * 15, document * 15 + random.choice([0, 8, 15, 30]))
        tail = [random.randrange(50) for _ in range(random.randrange(1, 11))]
        made.append(request(f"r{i}", [one % 50 for one in prefix] + tail, random.randrange(1, 20)))
    return made


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
@pytest.mark.parametrize("deaths", [False, True])
def test_answers_are_those_of_the_model_whatever_dies(
    shape: tuple[int, int], bypass: bool, deaths: bool
) -> None:
    random = Random(4)
    world = cluster(*shape, RouterConfig(policy="prefix_affinity", bypass=bypass), token_budget=16)
    todo = requests(80, random)
    for number, one in enumerate(todo):
        world.submit(one)
        for _ in range(random.randrange(4)):
            world.step()
        if deaths and number % 10 == 9:
            world.kill(random.randrange(sum(shape)))
    world.finish()
    assert world.streams == {one.id: expected_output(one, EOS) for one in todo}
    assert world.fleet.counts.finished == 80
    assert len(world.pulls) > 10


def test_one_pull_moves_what_the_decode_side_has_not_and_it_computes_one_token_a_step() -> None:
    world = cluster(1, 1, RouterConfig())
    prompt = [5, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    first, second = (request(name, prompt, 3) for name in "ab")
    for one in (first, second):
        world.submit(one)
        world.finish()
    # Two of the three pages are full: tokens x (1 - share already held).
    assert [(pull.start, pull.stop) for pull in world.pulls] == [(0, 10), (8, 10)]
    decode = world.members[1].echo
    assert [len(row.tokens) for step in decode.steps for row in step.rows] == [1] * 4
    assert decode.computed == {"a": 2, "b": 2}
