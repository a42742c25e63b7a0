"""The three routing policies, the bypass rule and the router's index of prefixes."""

from __future__ import annotations

from random import Random
from typing import Literal

import pytest

from engine.config import PoolConfig, RouterConfig
from engine.errors import InputError
from engine.fleet.actions import Prefill, Serve
from engine.fleet.bypass import queue_is_full, stays_on_decode_side
from engine.fleet.fleet import Fleet
from engine.fleet.prefixes import PrefixIndex
from engine.fleet.roster import Instance, Roster
from engine.fleet.routing import LeastLoaded, PrefixAffinity, RoundRobin
from engine.request import Request, Run, SamplingParams

BLOCK = 4


def request(tokens: list[int], namespace: str = "", runs: tuple[Run, ...] | None = None) -> Request:
    return Request("r", tuple(tokens), SamplingParams(), namespace, runs)


def instances(*loads: tuple[int, int], kv_tokens: int | None = None) -> tuple[Instance, ...]:
    """Instances with (requests, tokens)."""
    pool = PoolConfig(count=len(loads), block_size=BLOCK, kv_tokens=kv_tokens)
    members = Roster([pool], colocate_alone=True).instances
    for one, (requests, tokens) in zip(members, loads, strict=True):
        one.requests, one.tokens = requests, tokens
    return members


def test_round_robin_goes_on_from_the_last_one_whoever_is_there() -> None:
    a, b, c = members = instances((9, 0), (0, 0), (0, 0))
    policy = RoundRobin()
    chosen = [policy.choose(who, request([1]))[0] for who in (members, members, [a, c], [a, b], [a, b, c], [b])]
    assert chosen == [a, b, c, a, b, b]


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ([(3, 0), (2, 900), (4, 0)], 1),  # fewest requests
        ([(2, 900), (2, 100), (3, 0)], 1),  # then fewest tokens
        ([(2, 100), (2, 100), (2, 100)], 0),  # then the first
    ],
)
def test_least_loaded_breaks_ties_by_tokens_then_index(loads: list[tuple[int, int]], chosen: int) -> None:
    assert LeastLoaded().choose(instances(*loads), request([1]))[0].index == chosen


@pytest.mark.parametrize(
    ("loads", "shared", "length", "chosen", "cached"),
    [
        ([5, 0], 12, 39, 0, 12),  # 12 of 39 tokens are more than 0.3
        ([5, 0], 12, 40, 1, 0),  # 12 of 40 are not
        ([64, 0], 12, 20, 0, 12),  # a difference of 64 is still even
        ([65, 0], 12, 20, 1, 0),  # 65 is not, and is over 1.5 x 0
        ([195, 130], 12, 20, 0, 12),  # 65 apart, but not over 1.5 x 130
        ([196, 130], 12, 20, 1, 0),
    ],
)
def test_prefix_affinity_follows_the_rule_of_sglangs_router(
    loads: list[int], shared: int, length: int, chosen: int, cached: int
) -> None:
    members = instances(*((load, 0) for load in loads))
    index = PrefixIndex(members)
    index.record(request(list(range(shared))), members[0])
    prompt = [*range(shared), *range(1_000, 1_000 + length - shared)]
    assert PrefixAffinity(index).choose(members, request(prompt)) == (members[chosen], cached)


def test_a_session_stays_where_its_first_turn_went() -> None:
    fleet = Fleet([PoolConfig(count=4)], RouterConfig(policy="prefix_affinity"), max_queued=10_000)
    random, homes = Random(2), {}
    for turn in range(6):
        for session in random.sample(range(40), 40):
            runs = tuple(Run((session, i), i * 10, i * 10 + 10) for i in range(turn + 1))
            prompt = range(160 * (turn + 1) + 5)
            [action] = fleet.submit(Request(f"{session}/{turn}", prompt, SamplingParams(), runs=runs))
            assert homes.setdefault(session, action.instance) == action.instance
    assert sorted(homes.values()) == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 10


def shared_pages(one: list[int], other: list[int]) -> int:
    pages = 0
    while (pages + 1) * BLOCK <= min(len(one) - 1, len(other)) and (
        one[pages * BLOCK : (pages + 1) * BLOCK] == other[pages * BLOCK : (pages + 1) * BLOCK]
    ):
        pages += 1
    return pages


def test_the_index_finds_the_longest_prefix_that_anybody_was_sent() -> None:
    """Against comparing with every prompt sent so far."""
    random, members = Random(3), instances((0, 0), (0, 0), (0, 0))
    index = PrefixIndex(members)
    sent: list[list[list[int]]] = [[], [], []]
    for _ in range(300):
        prompt = [random.randrange(2) for _ in range(random.randrange(1, 10)) for _ in range(BLOCK)]
        prompt += [0] * random.randrange(BLOCK)
        best = [max((shared_pages(prompt, other) for other in one), default=0) for one in sent]
        holders, tokens = index.match(request(prompt), 0b111)
        assert tokens == max(best) * BLOCK
        assert not tokens or holders == sum(1 << i for i, pages in enumerate(best) if pages == max(best))
        assert index.match(request(prompt), 0b010)[1] == best[1] * BLOCK
        to = random.randrange(3)
        index.record(request(prompt), members[to])
        sent[to].append(prompt)
        index.check_invariants()


def test_the_index_forgets_the_least_recently_sent_and_tails_first() -> None:
    members = instances((0, 0), kv_tokens=4 * BLOCK)
    index = PrefixIndex(members)
    old, new = [1] * 12 + [0], [2] * 8 + [0]
    index.record(request(old), members[0])
    index.record(request(new), members[0])
    index.check_invariants()
    assert index.match(request(new), 1)[1] == 8
    assert index.match(request(old), 1)[1] == 8
    index.record(request(old), members[0])
    assert index.match(request(old), 1)[1] == 12
    assert index.match(request(new), 1)[1] == 4


def test_namespaces_share_nothing_and_the_dead_hold_nothing() -> None:
    members = instances((0, 0), (0, 0))
    index = PrefixIndex(members)
    index.record(request([1] * 9, "a"), members[0])
    assert index.match(request([1] * 9, "b"), 0b11) == (0, 0)
    assert index.match(request([1] * 9, "a"), 0b11) == (0b01, 8)
    index.forget(members[0])
    assert index.match(request([1] * 9, "a"), 0b11) == (0, 0)
    index.check_invariants()


def test_a_shorter_form_of_a_run_matches_as_far_as_it_goes() -> None:
    members = instances((0, 0))
    index = PrefixIndex(members)
    index.record(request([0] * 9, runs=(Run("a", 0, 2),)), members[0])
    longer = request([0] * 41, runs=(Run("a", 0, 5), Run("b", 5, 10)))
    assert index.match(longer, 1) == (1, 8)
    index.record(longer, members[0])
    assert index.match(longer, 1) == (1, 40)


@pytest.mark.parametrize(
    ("prompt", "cached", "stays"),
    [
        (2_047, 0, False),  # few tokens, but all of them: 1.0 of the prompt
        (1_000, 300, False),  # 0.7 is not below 0.7
        (1_000, 301, True),
        (10_000, 7_952, False),  # 2,048 uncached are not below 2,048
        (10_000, 7_953, True),
    ],
)
def test_bypass_needs_few_uncached_tokens_in_number_and_in_share(prompt: int, cached: int, stays: bool) -> None:
    """Dynamo: below 2048 and below 0.7 of the prompt."""
    assert stays_on_decode_side(prompt, cached) is stays


def test_the_prefill_queue_is_full_only_if_everybodys_is() -> None:
    members = instances((1, 8 * 512), (1, 8 * 512 - 1))
    assert not queue_is_full(members)
    members[1].tokens += 1
    assert queue_is_full(members)


def test_a_second_turn_is_prefilled_where_the_first_was_decoded() -> None:
    """PPD: the KV of the first turn is on the decode instance."""
    pools = [PoolConfig(role="prefill", count=2), PoolConfig(role="decode", count=2)]
    fleet = Fleet(pools, RouterConfig(bypass=True))
    first, second = (tuple(Run(("s", i), i * 50, i * 50 + 50) for i in range(turn)) for turn in (1, 2))
    [prefill] = fleet.submit(Request("a", range(801), SamplingParams(), runs=first))
    [reserve] = fleet.prefilled("a", prefill.attempt, 5, 0.0)
    assert (prefill.instance, reserve.instance) == (0, 2)
    [serve] = fleet.submit(Request("b", range(1_601), SamplingParams(), runs=second))  # 800 are cached there
    assert isinstance(serve, Serve)
    assert serve.instance == 2
    [other] = fleet.submit(Request("c", range(1_601), SamplingParams(), runs=(Run("t", 0, 100),)))
    assert isinstance(other, Prefill)
    assert fleet.counts.bypassed == 1


def test_pools_that_do_not_make_a_fleet_are_refused() -> None:
    with pytest.raises(InputError, match="prefill and decode"):
        Fleet([PoolConfig(), PoolConfig(role="prefill")], RouterConfig())
    with pytest.raises(InputError, match="block_size"):
        Fleet([PoolConfig(), PoolConfig(block_size=32)], RouterConfig())


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("on_loss", ["colocate", "reject"])
def test_a_lone_side_serves_whole_requests_and_is_not_degraded(
    role: Literal["prefill", "decode"], on_loss: Literal["colocate", "reject"]
) -> None:
    """Another router pairs it, and sends it halves; what comes without is served."""
    fleet = Fleet([PoolConfig(role=role)], RouterConfig(on_partner_loss=on_loss))
    asked = Request("r", (1, 2, 3), SamplingParams(max_tokens=5))
    (action,) = fleet.submit(asked)
    assert isinstance(action, Serve)
    assert not fleet.degraded
