"""Bounds against closed forms: what means and step times allow at the very most."""

from __future__ import annotations

import pytest
from helpers.planning import devices, layout
from helpers.simulating import Affine

from advisor.advice.load import Traffic
from advisor.advice.search.bounds import SUSTAINED, predicted_rps
from advisor.simulation.slo import Slo

PREFILLS = Affine(prefill=1e-3)  # 1 ms a prompt token, decodes free
DECODES = Affine(fixed=0.02)  # 20 ms a step, whatever is in it


def bound(one: object, step_time: Affine, traffic: Traffic, slo: Slo) -> float:
    return predicted_rps(one, devices(step_time=step_time), traffic, slo) / SUSTAINED  # type: ignore[arg-type]


def test_prefill_alone_bounds_a_prefill_pool_by_its_uncached_tokens() -> None:
    """1,000 tokens, half cached: 0.5 s each; three instances serve 6 a second."""
    one = layout("split", 100, prefill=3)
    assert bound(one, PREFILLS, Traffic(1, 1000, 500, 10), Slo()) == pytest.approx(6.0)


def test_a_decode_pool_is_bound_by_the_rows_that_its_memory_holds() -> None:
    """Steps of 20 ms; 10 rows of 500 + 100/2 tokens fit 5,500: 10 / (100 x 0.02) = 5 a second."""
    one = layout("split", 1, prefill=1000, kv_tokens=5500)
    assert bound(one, DECODES, Traffic(1, 500, 500, 100), Slo()) == pytest.approx(5.0)


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_stages_serve_as_many_prompts_at_once_and_none_sooner(pp: int) -> None:
    """DistServe, section 3.1: prompts of 0.5 s in one chunk; each of the stages is busy for its share."""
    one, traffic = layout("split", 1000, prefill=3, pp=pp), Traffic(1, 500, 500, 2)
    assert bound(one, PREFILLS, traffic, Slo()) == pytest.approx(6.0 * pp, rel=0.01)
    assert bound(one, PREFILLS, traffic, Slo(ttft_s=0.49)) == 0


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_stages_decode_as_many_batches_at_once_in_the_same_memory_and_none_sooner(pp: int) -> None:
    """Steps of 20 ms, as many in flight as stages; 40 rows of 500 + 100/2 tokens fit 22,000 together."""
    one, traffic = layout("split", 1, prefill=1000, kv_tokens=22_000, pp=pp), Traffic(1, 500, 500, 100)
    assert bound(one, DECODES, traffic, Slo()) == pytest.approx(40 / (100 * 0.02), rel=1e-2)
    assert bound(one, DECODES, traffic, Slo(tpot_s=0.0199)) == 0


def test_a_colocated_instance_shares_its_time_between_both_phases() -> None:
    """Prompts of 1,000 at 1 ms a token: 1 s of prefill a request, decodes ride along for nothing."""
    assert bound(layout("one"), PREFILLS, Traffic(1, 1000, 1000, 2), Slo()) == pytest.approx(1.0, rel=0.01)


def test_the_slowest_pool_decides() -> None:
    """A prefill instance does 50 prompts a second; 256 rows of 2,560 tokens at 0.02 s a step are 5 a second."""
    for decodes, expected in ((1, 5.0), (9, 45.0), (11, 50.0), (20, 50.0)):
        one = layout("split", decodes, prefill=1, kv_tokens=10**6)
        assert bound(one, DECODES, Traffic(1, 10, 10, 2560), Slo()) == pytest.approx(expected)


def test_a_target_below_what_the_mean_request_takes_alone_is_out_of_reach() -> None:
    traffic = Traffic(1, 1000, 1000, 10)
    for one in (layout("one"), layout("split", 1, prefill=1)):
        assert bound(one, PREFILLS, traffic, Slo(ttft_s=0.9)) == 0
        assert bound(one, PREFILLS, traffic, Slo(ttft_s=1.1)) > 0
        assert bound(one, DECODES, traffic, Slo(tpot_s=0.019)) == 0


def test_prefills_beside_decodes_count_against_a_per_token_target_unless_the_pools_are_apart() -> None:
    """Decodes are free, a prompt takes 1 s: with 10 tokens out, gaps of 0.1 s on the average, 0 in a split."""
    traffic = Traffic(1, 1000, 1000, 10)
    assert bound(layout("one", token_budget=2048), PREFILLS, traffic, Slo(tpot_s=0.05)) == 0
    assert bound(layout("split", 1, prefill=1), PREFILLS, traffic, Slo(tpot_s=0.05)) == pytest.approx(1.0)


def test_a_largest_gap_target_rules_out_large_budgets() -> None:
    """A chunk of 512 takes 0.5 s, one of 2,048 as long as the prompt of 1,000: 1 s (Sarathi-Serve)."""
    traffic, slo = Traffic(1, 1000, 1000, 10), Slo(tbt_s=0.6)
    assert bound(layout("one", token_budget=512), PREFILLS, traffic, slo) > 0
    assert bound(layout("one", token_budget=2048), PREFILLS, traffic, slo) == 0
