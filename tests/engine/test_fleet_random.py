"""Random test of the fleet against instances that answer late, twice and in any order, die and come back.

Instances and messages are fakes that know nothing of the fleet. A token is a function of the request and
its position, and an instance checks that a prompt it is given ends in exactly the tokens produced before, so a
stream proves that nothing was lost or repeated. A copy is good only if its source kept the KV until it ended;
decoding from a bad one fails the test. Invariants are checked after every event.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest

from engine.config import PoolConfig, RouterConfig
from engine.fleet.actions import Abort, Action, Prefill, Pull, Reject, Release, Reserve, Serve, StartDecode
from engine.fleet.fleet import Fleet
from engine.request import Request, Run, SamplingParams

BLOCK = 4
LEASE_S = 20.0


def token(name: str, position: int) -> int:
    """The output token of a request at a position of prompt plus output."""
    return hash((int(name), position)) % 1000


@dataclass
class Job:
    """A request on an instance."""

    request: Request
    attempt: int
    prefill: bool = False
    produced: int = 0


@dataclass
class Copy:
    """A pull in progress; `good` until its source forgets the KV."""

    pull: Pull
    good: bool = True


Answer = tuple[str, tuple[object, ...]]


@dataclass
class Fake:
    """One instance: what it holds, what it has still to read, and what it said that nobody has read yet."""

    alive: bool = True
    running: dict[str, Job] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    reserved: dict[str, Job] = field(default_factory=dict)
    copies: dict[str, Copy] = field(default_factory=dict)
    landed: dict[str, Copy] = field(default_factory=dict)
    inbox: deque[Action] = field(default_factory=deque)
    outbox: deque[Answer] = field(default_factory=deque)

    def held(self) -> set[str]:
        return set(self.running) | self.kept | set(self.reserved)

    def leaving(self) -> set[str]:
        """What messages on their way will free."""
        return {one.request_id for one in self.inbox if isinstance(one, Abort | Release)}


class World:
    """Drives a Fleet; every choice comes from `random`."""

    def __init__(self, fleet: Fleet, random: Random, lengths: tuple[int, int]) -> None:
        self.fleet, self.random, self.lengths = fleet, random, lengths
        self.fakes = [Fake() for _ in fleet.states()]
        self.requests: dict[str, Request] = {}
        self.streams: dict[str, list[int]] = {}
        self.ends: dict[str, list[str]] = {}
        self.now = 0.0
        self.events = 0
        self.delivered: deque[Answer] = deque(maxlen=50)

    def run(self, events: int) -> None:
        acts = [self.submit, self.abort, self.read, self.work, self.hear, self.repeat, self.pass_time]
        acts += [self.kill, self.revive, self.drain]
        weights = [5, 1, 30, 30, 30, 2, 1, 0.1, 1, 0.03]
        while self.events < events:
            self.random.choices(acts, weights)[0]()
            self.check()

    def settle(self) -> None:
        """Everybody is back and nobody new comes: all must end."""
        for index, fake in enumerate(self.fakes):
            if not fake.alive or self.fleet.states()[index] == "draining":
                self.up(index)
        for _ in range(200_000):
            if not self.fleet.in_flight and not any(f.inbox or f.outbox or f.held() for f in self.fakes):
                return
            self.random.choices([self.read, self.work, self.hear, self.pass_time], [10, 10, 10, 1])[0]()
            self.check()
        raise AssertionError("some requests never end")

    def check(self) -> None:
        self.events += 1
        self.fleet.check_invariants()
        holdings = self.fleet.holdings()
        for index, fake in enumerate(self.fakes):
            for name in fake.held() - fake.leaving():
                assert holdings[index, name] == 1, f"nobody knows that {index} holds {name}"

    def do(self, actions: list[Action]) -> None:
        """Put actions on their way."""
        for one in actions:
            if isinstance(one, Reject):
                self.end(one.request_id, "rejected")
            else:
                index = one.target if isinstance(one, Pull) else one.instance
                assert self.fakes[index].alive, "an action for a dead instance"
                self.fakes[index].inbox.append(one)

    def end(self, name: str, how: str) -> None:
        self.ends.setdefault(name, []).append(how)

    # What may happen.

    def submit(self) -> None:
        name = str(len(self.requests))
        length = self.random.randrange(1, self.lengths[0])
        prompt = tuple(self.random.randrange(3) for _ in range(length))
        runs = None
        if self.random.random() < 0.5:
            runs = tuple(Run((self.random.randrange(3), i), i, i + 1) for i in range(length // BLOCK))
        output = self.random.randrange(1, self.lengths[1])
        self.requests[name] = Request(name, prompt, SamplingParams(max_tokens=output), runs=runs)
        self.streams[name] = []
        self.do(self.fleet.submit(self.requests[name]))

    def abort(self) -> None:
        if self.requests:
            name = str(self.random.randrange(len(self.requests)))
            if name not in self.ends:
                self.end(name, "aborted")
            self.do(self.fleet.aborted(name))

    def read(self) -> None:
        """An instance reads one message."""
        fake = self.random.choice(self.fakes)
        if not fake.inbox:
            return
        one = fake.inbox.popleft()
        if isinstance(one, Serve | Prefill):
            self.accept(fake, Job(one.request, one.attempt, isinstance(one, Prefill)))
        elif isinstance(one, Reserve):
            room = not fake.held() or self.random.random() < 0.8
            if room:
                assert one.request.id not in fake.held()
                fake.reserved[one.request.id] = Job(one.request, one.attempt)
            cached = self.random.randrange(len(one.request.prompt)) // BLOCK * BLOCK if room else None
            fake.outbox.append(("reserved", (one.request.id, one.attempt, cached)))
        elif isinstance(one, Pull):
            source = self.fakes[one.source]
            assert one.request_id in fake.reserved
            assert one.stop == len(fake.reserved[one.request_id].request.prompt)
            fake.copies[one.request_id] = Copy(one, good=source.alive and one.request_id in source.kept)
        elif isinstance(one, StartDecode):
            assert fake.landed.pop(one.request_id).good, "decodes from KV that was not there"
            job = fake.reserved.pop(one.request_id)
            assert one.token == token(one.request_id, len(job.request.prompt))
            job.produced = 1
            fake.running[one.request_id] = job
        elif isinstance(one, Release):
            self.forget(fake, one.request_id)
        else:
            assert one.request_id not in fake.copies, "blocks freed under a copy"
            fake.landed.pop(one.request_id, None)
            fake.running.pop(one.request_id, None)
            fake.reserved.pop(one.request_id, None)

    def accept(self, fake: Fake, job: Job) -> None:
        name, original = job.request.id, self.requests[job.request.id]
        assert name not in fake.held(), "two attempts on one instance"
        start = len(original.prompt)
        assert job.request.prompt[:start] == original.prompt
        for position in range(start, len(job.request.prompt)):
            assert job.request.prompt[position] == token(name, position)
        assert len(job.request.prompt) + job.request.sampling.max_tokens == start + original.sampling.max_tokens
        fake.running[name] = job

    def forget(self, fake: Fake, name: str) -> None:
        """Kept KV is gone: copies of it are worthless from now on."""
        fake.kept.discard(name)
        for other in self.fakes:
            copy = other.copies.get(name)
            if copy and self.fakes[copy.pull.source] is fake:
                copy.good = False

    def work(self) -> None:
        """An instance computes a token, or a copy ends."""
        fake = self.random.choice(self.fakes)
        if fake.copies and self.random.random() < 0.5:
            name = self.random.choice(list(fake.copies))
            copy = fake.copies.pop(name)
            broken = self.random.random() < 0.05 or not self.fakes[copy.pull.source].alive
            fake.landed[name] = copy
            fake.outbox.append(("pull_failed" if broken else "pulled", (name, copy.pull.attempt)))
        elif fake.running:
            name = self.random.choice(list(fake.running))
            job = fake.running[name]
            value = token(name, len(job.request.prompt) + job.produced)
            job.produced += 1
            stops = self.random.random() < 0.03
            last = stops or (not job.prefill and job.produced == job.request.sampling.max_tokens)
            if job.prefill or last:
                del fake.running[name]
            if job.prefill:
                fake.kept.add(name)
            index = len(job.request.prompt) - len(self.requests[name].prompt) + job.produced - 1
            fake.outbox.append(("token", (name, job.attempt, index, value, last)))

    def hear(self) -> None:
        """The fleet reads one answer."""
        fake = self.random.choice(self.fakes)
        if fake.outbox:
            answer = fake.outbox.popleft()
            self.delivered.append(answer)
            self.deliver(answer)

    def repeat(self) -> None:
        """An answer that was read before comes again."""
        if self.delivered:
            self.deliver(self.random.choice(self.delivered))

    def deliver(self, answer: Answer) -> None:
        kind, (name, attempt, *rest) = answer
        if kind == "token":
            index, value, last = rest
            self.stream(name, attempt, index, value, last)
        elif kind == "reserved":
            self.do(self.fleet.reserved(name, attempt, rest[0]))
        elif kind == "pulled":
            self.do(self.fleet.pulled(name, attempt, self.now))
        else:
            self.do(self.fleet.pull_failed(name, attempt, self.now))

    def stream(self, name: str, attempt: int, index: int, value: int, last: bool) -> None:
        """A driver passes a token on to the client, unless it has it."""
        fresh = index == len(self.streams[name]) and name not in self.ends
        if fresh:
            self.streams[name].append(value)
            if last:
                self.end(name, "finished")
        if last:
            self.do(self.fleet.finished(name, attempt))
        elif fresh or self.random.random() < 0.5:
            self.do(self.fleet.prefilled(name, attempt, value, self.now))

    def pass_time(self) -> None:
        self.now += self.random.choice([0.1, 1.0, 8.0])
        for index, fake in enumerate(self.fakes):
            if fake.alive and self.random.random() < 0.5:
                self.fleet.heartbeat(index, self.now)
        self.do(self.fleet.tick(self.now))
        assert self.fleet._handover.leases.expired(self.now) == []

    def kill(self) -> None:
        index = self.random.randrange(len(self.fakes))
        if self.fakes[index].alive:
            for name in list(self.fakes[index].kept):
                self.forget(self.fakes[index], name)
            self.fakes[index] = Fake(alive=False)
            self.do(self.fleet.instance_down(index, self.streams.__getitem__))

    def revive(self) -> None:
        out = [index for index, state in enumerate(self.fleet.states()) if state != "up"]
        if out:
            self.up(self.random.choice(out))

    def up(self, index: int) -> None:
        for name in list(self.fakes[index].kept):
            self.forget(self.fakes[index], name)
        self.fakes[index] = Fake()
        self.do(self.fleet.instance_up(index, self.streams.__getitem__))

    def drain(self) -> None:
        self.fleet.drain(self.random.randrange(len(self.fakes)))


def pools(**counts: int) -> tuple[PoolConfig, ...]:
    return tuple(
        PoolConfig(role=role, count=count, block_size=BLOCK, kv_tokens=200, token_budget=16)  # type: ignore[arg-type]
        for role, count in counts.items()
    )


FLEETS = {
    "1P1D": (pools(prefill=1, decode=1), RouterConfig()),
    "2P2D, bypass": (pools(prefill=2, decode=2), RouterConfig(policy="prefix_affinity", bypass=True)),
    "2P2D, reject": (pools(prefill=2, decode=2), RouterConfig(on_partner_loss="reject")),
    "1P3D": (pools(prefill=1, decode=3), RouterConfig(policy="least_loaded")),
    "3 colocated": (pools(colocated=3), RouterConfig(policy="prefix_affinity")),
    "mixed": (pools(colocated=2, prefill=1, decode=1), RouterConfig(policy="least_loaded", bypass=True)),
}


def explore(name: str, seed: int, events: int) -> Fleet:
    fleet = Fleet(*FLEETS[name], max_queued=12, lease_s=LEASE_S)
    world = World(fleet, Random(seed), lengths=(40, 12))
    world.run(events)
    world.settle()
    assert fleet.in_flight == fleet.leases == sum(fleet.loads()) == 0
    for request_id, request in world.requests.items():
        [how] = world.ends[request_id]
        start = len(request.prompt)
        stream = world.streams[request_id]
        assert stream == [token(request_id, start + i) for i in range(len(stream))]
        assert how != "finished" or 1 <= len(stream) <= request.sampling.max_tokens
    ends = [how for [how] in world.ends.values()]
    counts = fleet.counts
    assert (ends.count("finished"), ends.count("rejected")) == (counts.finished, counts.rejected)
    assert counts.submitted == len(world.requests)
    return fleet


@pytest.mark.parametrize("name", FLEETS)
def test_every_request_ends_once_and_nothing_is_held_after(name: str) -> None:
    counts = explore(name, seed=7, events=5_000).counts
    print(name, counts)  # noqa: T201 - the figure that is asked for
    split = FLEETS[name][0][-1].role == "decode"
    assert min(counts.finished, 25 * counts.aborted, 25 * counts.rejected) > 100
    assert counts.requeued > 3
    assert (counts.transferred > 20, counts.voided > 5) == (split, split)


@pytest.mark.slow
@pytest.mark.parametrize("name", FLEETS)
@pytest.mark.parametrize("seed", range(2))
def test_every_request_ends_once_in_longer_runs(name: str, seed: int) -> None:
    explore(name, seed, events=20_000)
