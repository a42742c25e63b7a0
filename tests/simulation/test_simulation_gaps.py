"""Gaps between tokens against a record of every token, and the counting by itself."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.simulating import Affine, make_load, one_pool, random_load, record, split

from advisor.simulation.deployment import Fault, Transport
from advisor.simulation.gaps import GapCounts, TickGaps
from advisor.simulation.simulate import simulate

SMALL = {"token_budget": 64, "max_seqs": 32, "kv_tokens": 640}
DEPLOYMENTS = {
    "chunked": one_pool(**SMALL),
    "prefill first": one_pool(**SMALL, batching="prefill_first"),
    "pipeline": one_pool(token_budget=64, kv_tokens=900, pp=3),
    "two instances": one_pool(**SMALL, count=2),
    "split": split(1, 1, transport=Transport(2e6, 1000.0), token_budget=64, kv_tokens=640),
}


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize("faults", [(), (Fault(3.0, 0, 4.0), Fault(5.0, 0, 5.2))])
def test_gaps_are_those_of_a_record_of_every_token(
    name: str, faults: tuple[Fault, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preemptions, lost instances and transfers make gaps too."""
    for seed in range(3):
        load = random_load(seed, rate=15.0)
        with monkeypatch.context() as patch:
            recording = record(patch, jumps=False)
            simulate(load, DEPLOYMENTS[name], faults=faults)
        times = [recording.token_s[str(row)] for row in range(len(load))]
        assert [len(one) for one in times] == load.output_tokens.tolist()
        outcome = simulate(load, DEPLOYMENTS[name], faults=faults)
        np.testing.assert_allclose(
            outcome.max_gap_s, recording.largest_gaps(len(load)), rtol=0, atol=1e-9, equal_nan=True
        )
        first, last = np.array([(one[0], one[-1]) for one in times]).T
        np.testing.assert_allclose(outcome.ttft_s, first - load.arrival_s, rtol=0, atol=1e-9)
        np.testing.assert_allclose(outcome.e2e_s, last - load.arrival_s, rtol=0, atol=1e-9)
        gaps = np.sort(np.concatenate([np.diff(one) for one in times]))
        assert outcome.gap_count.sum() == pytest.approx(len(gaps))
        for q in (0.01, 0.25, 0.5, 0.9, 0.99):
            low, high = gaps[int(q * len(gaps)) - 1], gaps[int(q * len(gaps)) + 1]
            assert low * 0.998 <= (outcome.gap_quantile(q) or 0.0) <= high * 1.002
        assert (outcome.preemptions > 0) or name in ("pipeline", "split")


def test_a_preempted_request_waits_for_its_next_token_until_all_is_computed_again() -> None:
    """By hand: 4 pages of 16, two requests of 16 + 17 tokens, steps of 1 s.

    Both have their prompt at 1 s and need a second page each for the first decode; there are two. At 17 s both
    need a third, of which there is none: the second is preempted with 17 tokens out. The first ends at 17 s +
    its remaining token; the second computes 33 tokens in one step then.
    """
    deployment = one_pool(Affine(fixed=1.0), token_budget=64, kv_tokens=64)
    outcome = simulate(make_load([0, 0], 16, 20), deployment)
    assert outcome.preemptions == 1
    assert outcome.e2e_s[0] == 20
    assert outcome.max_gap_s.tolist() == [1.0, 21 - 17]
    assert outcome.e2e_s[1] == 20 + 3


def test_a_lost_instance_makes_one_long_gap() -> None:
    """Steps of 1 s; 4 tokens are out at 4.5 s, the instance is back at 10 s, the fifth token comes at 11 s."""
    deployment = one_pool(Affine(fixed=1.0))
    outcome = simulate(make_load([0], 10, 6), deployment, faults=[Fault(4.5, 0, 10.0)])
    assert (outcome.ttft_s[0], outcome.e2e_s[0], outcome.max_gap_s[0]) == (1.0, 12.0, 7.0)
    assert outcome.gap_quantile(1.0) == pytest.approx(7.0, rel=1e-3)
    assert outcome.gap_count.sum() == 5


def test_without_gaps_there_is_none() -> None:
    outcome = simulate(make_load([0, 1], 10, 1), one_pool())
    assert np.isnan(outcome.max_gap_s).all()
    assert outcome.gap_quantile(0.5) is None


def test_counts_are_exact_and_gaps_within_a_tenth_of_a_percent() -> None:
    rng = np.random.default_rng(2)
    gaps = np.exp(rng.uniform(-9, 3, 500))
    counts = GapCounts()
    for gap in gaps.tolist():
        counts.add(gap, 1)
    counts.add(0.0, 5)
    got, number = counts.columns()
    assert number.sum() == 500
    np.testing.assert_allclose(np.repeat(got, number.astype(int)), np.sort(gaps), rtol=1e-3)


@pytest.mark.parametrize("growth", [0.0, 1e-6, 1e-3])
def test_a_line_of_gaps_has_the_mean_and_the_spread_of_its_steps(growth: float) -> None:
    counts = GapCounts()
    counts.add_line(0.02, growth, 800, 3)
    gaps, number = counts.columns()
    exact = 0.02 + growth * np.arange(800)
    assert number.sum() == pytest.approx(2400)
    assert float(gaps @ number) / 2400 == pytest.approx(exact.mean(), rel=1e-3)
    assert gaps.min() >= exact.min() * 0.999
    assert gaps.max() <= exact.max() * 1.001


def test_the_largest_gap_since_a_tick_is_that_of_a_list() -> None:
    rng = np.random.default_rng(1)
    ticks, gaps = TickGaps(), []
    for _ in range(400):
        gap = float(rng.exponential())
        gaps.append(gap)
        ticks.add(1, float(sum(gaps)), gap)
        since = int(rng.integers(0, len(gaps)))
        assert ticks.largest_since(since) == max(gaps[since:])
    assert ticks.largest_since(400) == 0.0
