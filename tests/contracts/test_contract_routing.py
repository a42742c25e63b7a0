"""What every routing policy keeps to: one of those it is given, nobody left out, always the same."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Literal, get_args

import pytest

from engine.config import PoolConfig, RouterConfig
from engine.fleet.fleet import Fleet
from engine.fleet.prefixes import PrefixIndex
from engine.fleet.roster import Roster
from engine.fleet.routing import RoutingPolicy, policy_for
from engine.request import Request, SamplingParams

INSTANCES = 4
Name = Literal["round_robin", "least_loaded", "prefix_affinity"]


def test_the_contract_covers_every_policy_of_the_configuration() -> None:
    assert get_args(RouterConfig.model_fields["policy"].annotation) == get_args(Name)


@pytest.fixture(params=get_args(Name))
def name(request: pytest.FixtureRequest) -> Name:
    policy: Name = request.param
    return policy


def roster() -> Roster:
    return Roster([PoolConfig(count=INSTANCES)], colocate_alone=True)


def prompt(name: str, random: Random) -> Request:
    """Half of them share one of three prefixes of 64 tokens."""
    shared = [random.randrange(3)] * 64 if random.random() < 0.5 else []
    tail = [random.randrange(10**9) for _ in range(random.randrange(1, 60))]
    return Request(name, (*shared, *tail), SamplingParams())


def choices(name: Name, seed: int) -> list[int]:
    """Choices among random subsets of instances with random loads."""
    instances, random = roster().instances, Random(seed)
    index = PrefixIndex(instances)
    policy: RoutingPolicy = policy_for(name, index)
    chosen = []
    for number in range(500):
        candidates = sorted(random.sample(instances, random.randrange(1, INSTANCES + 1)), key=lambda i: i.index)
        for one in instances:
            one.requests, one.tokens = random.randrange(200), random.randrange(5_000)
        request = prompt(str(number), random)
        instance, cached = policy.choose(candidates, request)
        assert instance in candidates
        assert 0 <= cached < len(request.prompt)
        index.record(request, instance)
        chosen.append(instance.index)
    return chosen


def test_chooses_one_of_the_candidates_and_always_the_same(name: Name) -> None:
    assert choices(name, 5) == choices(name, 5)


@pytest.mark.parametrize("seed", range(3))
def test_requests_that_share_nothing_are_spread_evenly(name: Name, seed: int) -> None:
    """Nobody finishes: fewest requests and each in turn come to the same."""
    fleet, random = (
        Fleet([PoolConfig(count=INSTANCES)], RouterConfig(policy=name), max_queued=10_000),
        Random(seed),
    )
    for number in range(400):
        tail = tuple(random.randrange(10**9) for _ in range(random.randrange(1, 200)))
        fleet.submit(Request(str(number), tail, SamplingParams()))
    assert fleet.loads() == [100] * INSTANCES


def test_an_instance_that_is_not_up_gets_nothing_and_one_that_returns_gets_some(name: Name) -> None:
    fleet, random = (
        Fleet([PoolConfig(count=INSTANCES)], RouterConfig(policy=name), max_queued=10_000),
        Random(1),
    )
    counts = []
    for phase in range(3):
        if phase == 1:
            fleet.drain(1)
            fleet.instance_down(2, lambda _: ())
        if phase == 2:
            fleet.instance_up(1, lambda _: ())
            fleet.instance_up(2, lambda _: ())
        sent: Counter[int] = Counter()
        for number in range(200):
            [action] = fleet.submit(prompt(f"{phase}/{number}", random))
            sent[action.instance] += 1
            fleet.finished(action.request.id, action.attempt)
        counts.append(sent)
    if name == "round_robin":  # the others go on to the first of equals, nobody being busy
        assert counts[0] == counts[2] == {0: 50, 1: 50, 2: 50, 3: 50}
    assert set(counts[1]) <= {0, 3}
    assert sum(counts[1].values()) == 200
