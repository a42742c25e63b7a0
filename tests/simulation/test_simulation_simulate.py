"""The simulator: a jump over decodes changes nothing, whatever the deployment; and turns, drops and stops."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.simulating import TYPICAL, Affine, make_load, one_pool, random_load, record, split

from advisor.simulation.deployment import Deployment, Transport
from advisor.simulation.load import Load
from advisor.simulation.outcome import Outcome
from advisor.simulation.simulate import Turns, simulate
from engine.config import RouterConfig
from engine.request import Run

AFFINITY = RouterConfig(policy="prefix_affinity", bypass=True)
DEPLOYMENTS = {
    "chunked": one_pool(token_budget=64, max_seqs=12),
    "small KV": one_pool(token_budget=64, max_seqs=32, kv_tokens=640),
    "small KV, prefix first": one_pool(
        token_budget=64, max_seqs=32, kv_tokens=640, queue_policy="prefix_first"
    ),
    "no cache": one_pool(token_budget=48, max_seqs=32, kv_tokens=640, prefix_cache=False),
    "prefill first": one_pool(token_budget=128, max_seqs=32, kv_tokens=640, batching="prefill_first"),
    "pipeline": one_pool(token_budget=64, max_seqs=32, kv_tokens=900, pp=2),
    "three instances": one_pool(token_budget=64, max_seqs=8, kv_tokens=640, count=3),
    "a bend": one_pool(Affine(0.01, 1e-4, 1e-6, 1e-3, 0.0, bend=100.0), token_budget=64, max_seqs=12),
    "split": split(1, 2, transport=Transport(2e6, 1000.0, 0.001), token_budget=64, kv_tokens=640),
    "split with bypass": split(
        2, 1, transport=Transport(2e6, 1000.0), router=AFFINITY, token_budget=64, kv_tokens=640
    ),
}
COLUMNS = ("arrival_s", "ttft_s", "e2e_s", "tpot_s", "max_gap_s", "queued_s", "cached_tokens", "served")


def assert_same(one: Outcome, other: Outcome) -> None:
    for name in COLUMNS:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=0, atol=1e-9, err_msg=name)
    assert one.preemptions == other.preemptions
    assert one.busy_s == pytest.approx(other.busy_s, abs=1e-7)
    assert one.gap_count.sum() == pytest.approx(other.gap_count.sum())
    for q in (0.1, 0.5, 0.9, 0.99, 1.0):
        assert one.gap_quantile(q) == pytest.approx(other.gap_quantile(q), rel=3e-3)


@pytest.mark.parametrize("turns", ["open", "causal"])
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_jump_over_decodes_changes_no_time_and_no_step(
    name: str, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    preemptions = jumped = 0
    for seed in range(3):
        load = random_load(seed, rate=(2.0, 8.0, 40.0)[seed])
        with monkeypatch.context() as patch:
            jumping = record(patch, jumps=True)
            fast = simulate(load, DEPLOYMENTS[name], turns=turns)
        with monkeypatch.context() as patch:
            stepping = record(patch, jumps=False)
            slow = simulate(load, DEPLOYMENTS[name], turns=turns)
        assert jumping.steps == stepping.steps
        assert_same(fast, slow)
        assert fast.served.all()
        preemptions += fast.preemptions
        jumped += int(sum(np.isnan(one).sum() for one in jumping.began_s))
    assert preemptions > 0 or "KV" not in name
    assert jumped > 0 or name == "pipeline"


def test_every_request_gets_its_tokens_and_waits_only_before_the_first_step() -> None:
    load = random_load(5)
    outcome = simulate(load, one_pool(token_budget=64, max_seqs=12))
    assert outcome.served.all()
    assert (outcome.queued_s >= 0).all()
    assert (outcome.ttft_s > outcome.queued_s).all()
    assert outcome.gap_count.sum() == (load.output_tokens - 1).sum()
    many = load.output_tokens > 1
    mean = (outcome.e2e_s - outcome.ttft_s)[many] / (load.output_tokens[many] - 1)
    np.testing.assert_allclose(outcome.tpot_s[many], mean, atol=1e-9)
    assert np.isnan(outcome.tpot_s[~many]).all()


def test_cached_tokens_are_the_full_pages_that_an_earlier_request_computed() -> None:
    """100 tokens of a document of 6 pages: the second hits 96, the third has 40 of it and hits 2 pages."""
    runs = [(Run("d", 0, 6),), (Run("d", 0, 6),), (Run("d", 0, 2),), ()]
    outcome = simulate(make_load([0, 50, 100, 150], [100, 100, 40, 100], 2, runs=runs), one_pool())
    assert outcome.cached_tokens.tolist() == [0, 96, 32, 0]
    assert outcome.hit_rate_tokens == pytest.approx(128 / 340)


def test_a_request_that_cannot_fit_or_finds_the_queue_full_is_not_served() -> None:
    deployment = one_pool(Affine(fixed=1.0), kv_tokens=160, token_budget=160, max_seqs=1)
    outcome = simulate(make_load([0, 0, 10], [100, 161, 100], 4), deployment)
    assert outcome.served.tolist() == [True, False, True]
    assert np.isnan([outcome.ttft_s[1], outcome.e2e_s[1], outcome.queued_s[1]]).all()
    bounded = Deployment(deployment.pools, max_queued=2)
    outcome = simulate(make_load([0, 0, 0, 0], 100, 4), bounded)
    assert outcome.served.tolist() == [True, True, False, False]
    short = Deployment(deployment.pools, max_len=103)
    assert not simulate(make_load([0], 100, 4), short).served.any()


TURNS = make_load([0.0, 3.0, 20.0], 10, 5, parent=[-1, 0, 1], think_s=[np.nan, 0.5, 2.0])


@pytest.mark.parametrize(
    ("turns", "sent", "early"),
    [("open", [0.0, 3.0, 20.0], 0.5), ("causal", [0.0, 5.5, 12.5], 0.0), ("held", [0.0, 5.0, 20.0], 0.0)],
)
def test_causal_turns_wait_for_the_turn_before_and_its_think_time(
    turns: Turns, sent: list[float], early: float
) -> None:
    """Steps of 1 s: a turn takes 5 s. In an open run the second comes 2 s before the first has ended.

    A held one comes at that end, and the third, due long after the second's, when it is due.
    """
    outcome = simulate(TURNS, one_pool(Affine(fixed=1.0)), turns=turns)
    assert outcome.arrival_s.tolist() == sent
    assert outcome.early_turns == early


def test_a_turn_whose_predecessor_is_not_served_still_comes() -> None:
    load = make_load([0.0, 3.0], [500, 10], 5, parent=[-1, 0], think_s=[np.nan, 0.5])
    outcome = simulate(load, one_pool(Affine(fixed=1.0), kv_tokens=160), turns="causal")
    assert outcome.served.tolist() == [False, True]
    assert outcome.arrival_s.tolist() == [0.0, 0.5]


def test_a_held_turn_needs_no_think_time() -> None:
    load = make_load([0.0, 3.0, 4.0], 10, 5, parent=[-1, 0, 0], think_s=[np.nan, np.nan, np.nan])
    outcome = simulate(load, one_pool(Affine(fixed=1.0)), turns="held")
    assert outcome.arrival_s.tolist() == [0.0, 5.0, 5.0]
    np.testing.assert_allclose(outcome.ttft_s, [1.0, 1.0, 1.0])


class Until:
    """Ends a simulation after some requests; keeps what it heard."""

    def __init__(self, ends: int) -> None:
        self.ends = ends
        self.heard: list[tuple[float, float, float]] = []

    def ended(self, *, ttft_s: float, tpot_s: float, max_gap_s: float) -> bool:
        self.heard.append((ttft_s, tpot_s, max_gap_s))
        return len(self.heard) >= self.ends

    def dropped(self) -> bool:
        self.heard.append((np.nan, np.nan, np.nan))
        return len(self.heard) >= self.ends


def test_a_watch_hears_every_end_and_may_stop() -> None:
    load, deployment = random_load(1), DEPLOYMENTS["small KV"]
    whole = Until(1000)
    outcome = simulate(load, deployment, watch=whole)
    assert not outcome.stopped_early
    gaps = np.nan_to_num([outcome.ttft_s, outcome.tpot_s, outcome.max_gap_s])
    order = np.argsort(outcome.arrival_s + outcome.e2e_s, kind="stable")
    np.testing.assert_allclose(sorted(whole.heard), sorted(gaps[:, order].T.tolist()), atol=1e-9)
    part = simulate(load, deployment, watch=Until(40))
    assert part.stopped_early
    assert 40 <= part.served.sum() < 60  # others may end in the same step


def test_busy_time_is_that_of_the_steps() -> None:
    """A request alone: its prompt in two chunks, then decodes with a growing context."""
    outcome = simulate(make_load([2.0], 100, 10), one_pool(TYPICAL, token_budget=64))
    prompt = 2 * 0.011 + 3.1e-4 * 100 + 1.7e-6 * 64
    decodes = 9 * (0.011 + 7.3e-4) + 2.3e-6 * sum(range(100, 109))
    assert outcome.ttft_s[0] == pytest.approx(prompt, abs=1e-12)
    assert outcome.busy_s == pytest.approx(prompt + decodes, abs=1e-12)
    assert outcome.end_s == pytest.approx(2 + prompt + decodes, abs=1e-12)


def test_more_instances_serve_an_overload_sooner() -> None:
    load: Load = random_load(3, rate=100.0)
    ends = [simulate(load, one_pool(token_budget=64, max_seqs=8, count=count)).end_s for count in (1, 2, 4)]
    assert ends[0] > 1.6 * ends[1] > 2 * ends[2]
