"""A split simulated: pulls over a link, decodes elsewhere, and what the loss of an instance costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers.simulating import TYPICAL, Affine, make_load, one_pool, random_load, record, split

from advisor.simulation.deployment import Fault, Transport
from advisor.simulation.simulate import simulate
from engine.config import RouterConfig
from engine.fleet import fleet
from engine.request import Run

STEP = Affine(fixed=1.0)
BYTES = 1000.0  # of a token's KV


def test_the_decode_side_goes_on_when_the_kv_has_arrived() -> None:
    """Prefill 1 s; 100 tokens of 1,000 bytes at 50 kB/s and 0.25 s of latency 2.25 s; then two decodes."""
    outcome = simulate(
        make_load([0], 100, 3), split(1, 1, step_time=STEP, transport=Transport(5e4, BYTES, 0.25))
    )
    assert outcome.ttft_s[0] == 1
    assert outcome.e2e_s[0] == pytest.approx(1 + 2.25 + 2, abs=1e-9)
    assert outcome.max_gap_s[0] == pytest.approx(2.25 + 1, abs=1e-9)
    assert outcome.queued_s[0] == 0
    instant = simulate(make_load([0], 100, 3), split(1, 1, step_time=STEP))
    assert instant.e2e_s[0] == 3


def test_one_output_token_is_never_moved() -> None:
    outcome = simulate(make_load([0], 100, 1), split(1, 1, step_time=STEP, transport=Transport(1.0, BYTES)))
    assert outcome.e2e_s[0] == 1


def test_what_the_decode_side_has_already_is_not_moved() -> None:
    """A document of 6 pages of 16 tokens: the second request moves 4 of its 100 tokens, at 10 a second."""
    load = make_load([0, 100], 100, 2, runs=[(Run("d", 0, 6),)] * 2)
    outcome = simulate(load, split(1, 1, step_time=STEP, transport=Transport(1e4, BYTES)))
    assert outcome.e2e_s == pytest.approx([1 + 10 + 1, 1 + 0.4 + 1])
    assert outcome.cached_tokens.tolist() == [0, 96]


def test_two_copies_into_one_instance_share_its_port() -> None:
    """Two prefill instances end at 1 s; each copy alone takes 2 s, both into one decode instance 4 s."""
    outcome = simulate(
        make_load([0, 0], 100, 2),
        split(2, 1, step_time=STEP, transport=Transport(5e4, BYTES), token_budget=512),
    )
    assert outcome.e2e_s == pytest.approx([1 + 4 + 1] * 2)
    outcome = simulate(
        make_load([0, 0], 100, 2),
        split(2, 2, step_time=STEP, transport=Transport(5e4, BYTES), token_budget=512),
    )
    assert outcome.e2e_s == pytest.approx([1 + 2 + 1] * 2)


def test_a_full_decode_side_lets_requests_wait_with_their_kv_kept() -> None:
    """7 pages each and 10 on either side: the second prefill waits until the first request's KV is pulled.

    The first decodes from 1 s to 10 s; the second, prefilled at 2 s, is taken in then and decodes until 19 s.
    """
    outcome = simulate(make_load([0, 0], 100, 10), split(1, 1, step_time=STEP, kv_tokens=160, token_budget=100))
    assert outcome.ttft_s.tolist() == [1, 2]
    assert outcome.e2e_s.tolist() == [10, 19]


def test_a_request_that_arrives_within_a_step_joins_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode steps take 1 s: the first request's begin at 1, 2, ...; the second's KV is there at 2.5."""
    recording = record(monkeypatch, jumps=False)
    load = make_load([0, 1.5], 10, 6)
    outcome = simulate(load, split(1, 1, step_time=STEP))
    assert outcome.e2e_s.tolist() == [6, 6.5]
    decode = recording.steps[1]
    assert [len(step) for step in decode] == [1, 1, 2, 2, 2, 1, 1]
    assert recording.began_s[1] == [1, 2, 3, 4, 5, 6, 7]
    assert decode[2] == (("0", 1, 12), ("1", 1, 10))


def test_everyone_ends_once_and_nothing_is_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = record(monkeypatch, jumps=True)
    load = random_load(0, 200)
    load = replace(load, runs=((),) * 200)
    outcome = simulate(load, split(2, 2, transport=Transport(1e6, BYTES, 0.001), kv_tokens=2000))
    assert outcome.served.all()
    computed: Counter[str] = Counter()
    for step in (step for core in recording.steps for step in core):
        computed.update({name: new for name, new, _ in step})
    expected = load.prompt_tokens + load.output_tokens - 1
    assert [computed[str(row)] for row in range(200)] == expected.tolist()


class Ends:
    """Counts what ends."""

    def __init__(self) -> None:
        self.served = self.lost = 0

    def ended(self, *, ttft_s: float, tpot_s: float, max_gap_s: float) -> bool:  # noqa: ARG002 - as a Watch is called
        self.served += 1
        return False

    def dropped(self) -> bool:
        self.lost += 1
        return False


AFFINITY = RouterConfig(policy="prefix_affinity", bypass=True)


@pytest.mark.parametrize("router", [RouterConfig(), AFFINITY])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_dies_everyone_ends_once(
    shape: tuple[int, int], router: RouterConfig, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance every 0.7 s, some while others are down, some for no time; KV for few requests."""
    monkeypatch.setattr(fleet, "MAX_DEATHS", 1000)  # nobody is to blame here
    rng = np.random.default_rng(seed)
    at = np.arange(0.5, 9.0, 0.7).tolist()
    faults = [Fault(s, int(rng.integers(sum(shape))), s + float(rng.choice([0.0, 0.3, 2.0]))) for s in at]
    deployment = split(*shape, router=router, transport=Transport(2e6, BYTES, 0.01), kv_tokens=640)
    load, watch = random_load(seed, rate=18.0), Ends()
    outcome = simulate(load, deployment, faults=faults, watch=watch)
    assert outcome.served.all()
    assert (watch.served, watch.lost) == (len(load), 0)
    assert (outcome.max_gap_s[load.output_tokens > 1] > 0).all()
    assert outcome.gap_count.sum() == pytest.approx((load.output_tokens - 1).sum())


def test_those_that_the_decode_side_computes_itself_may_be_preempted_and_still_end() -> None:
    deployment = split(1, 1, router=AFFINITY, transport=Transport(2e6, BYTES), kv_tokens=640, token_budget=64)
    outcomes = [simulate(random_load(seed, rate=30.0), deployment) for seed in range(4)]
    assert sum(outcome.preemptions for outcome in outcomes) > 10
    assert all(outcome.served.all() for outcome in outcomes)


def test_the_loss_of_one_decode_instance_by_hand() -> None:
    """Steps of 1 s, no time to move. Two requests, one on each decode instance, 10 tokens each.

    At 4.5 s the second dies for good: its request has 4 tokens out (1 s and three decodes). The prefill side
    computes 20 + 4 tokens by 5.5 s and gives the fifth; five decodes follow on the other instance, whose steps
    end at 6, 7, ...: the sixth token comes with the step that begins at 6.
    """
    load = make_load([0, 0], 20, 10)
    outcome = simulate(load, split(1, 2, step_time=STEP), faults=[Fault(4.5, 2)])
    assert outcome.ttft_s.tolist() == [1, 1]
    assert outcome.e2e_s[0] == 10
    assert outcome.e2e_s[1] == 11
    assert outcome.max_gap_s[1] == 1.5
    calm = simulate(load, split(1, 2, step_time=STEP))
    assert calm.e2e_s.tolist() == [10, 10]


def test_a_split_that_lost_a_side_serves_colocated_or_not_at_all() -> None:
    load = make_load([0, 5], 20, 4)
    alone = simulate(load, split(1, 1, step_time=STEP), faults=[Fault(4.5, 1)])
    assert alone.e2e_s.tolist() == [4, 4]
    strict = split(1, 1, step_time=STEP, router=RouterConfig(on_partner_loss="reject"))
    assert simulate(load, strict, faults=[Fault(4.5, 1)]).served.tolist() == [True, False]


def test_with_everything_down_requests_wait_and_go_on() -> None:
    load = make_load([0, 2, 6], 20, 3)
    outcome = simulate(load, one_pool(STEP), faults=[Fault(1.5, 0, 10.0)])
    assert outcome.served.all()
    # The first had one token; its second comes with the step that computes 21 tokens, at 11 s.
    assert outcome.ttft_s.tolist() == [1, 9, 5]
    assert outcome.e2e_s[0] == 12
    never = simulate(load, one_pool(STEP), faults=[Fault(1.5, 0)])
    assert not never.served.any()
    assert np.isnan(never.ttft_s).all()


def test_a_split_spares_decodes_the_prefills() -> None:
    """Prompts of 400 beside decodes: 0.124 s of prefill in a colocated gap; a split's have only decodes.

    2 rows and 850 context tokens take 0.0144 s a step.
    """
    load = make_load(np.arange(60) * 0.2, 400, 50)
    colocated = simulate(load, one_pool(TYPICAL, token_budget=512, count=2))
    apart = simulate(load, split(1, 1, transport=Transport(1e9, BYTES), token_budget=512))
    assert (apart.gap_quantile(0.9) or 1) < 0.03 < 0.124 < (colocated.gap_quantile(0.99) or 0)
