"""The chosen layout looked at more closely: bursts, length classes, the loss of an instance, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.planning import devices, layout, plan_for
from helpers.planted import independent
from helpers.quick import only_the_decision
from helpers.simulating import Affine, make_load
from helpers.workload_traces import make_trace

from advisor.advice.chosen import by_class, by_regime, in_bursts, lose_one
from advisor.advice.plan import Loss, Simulation
from advisor.advice.search.judge import Goal, simulate_layout
from advisor.advice.search.layout import Layout
from advisor.logs.trace import FloatColumn
from advisor.simulation.load import Load
from advisor.simulation.outcome import Outcome
from advisor.simulation.slo import Slo
from advisor.workload.classes import find_classes
from engine.config import RouterConfig

SECOND = Affine(fixed=1.0)  # a step


def outcome_of(load: Load, one: Layout, step_time: Affine) -> Outcome:
    return simulate_layout(load, one, devices(step_time=step_time))


def loss_of(load: Load, one: Layout, slo: Slo) -> Loss:
    hardware, goal = devices(step_time=SECOND), Goal(slo)
    return lose_one(load, one, hardware, goal, outcome_of(load, one, SECOND), 600.0)


def with_a_burst() -> FloatColumn:
    """One request a second for 1,000 s, and 100 more at 500 s."""
    return np.sort(np.concatenate((np.arange(1000.0), np.full(100, 500.0))))


def test_a_burst_is_the_window_that_poisson_arrivals_do_not_explain() -> None:
    """1,100 in 999 s are 11.0 in 10 s, and 21.0 with three deviations: only the window at 500 s has more."""
    arrival_s = with_a_burst()
    expected = (arrival_s >= 500) & (arrival_s < 510)
    assert in_bursts(arrival_s).tolist() == expected.tolist()
    assert expected.sum() == 110


@pytest.mark.parametrize("rate", [0.01, 0.5, 5.0])
def test_poisson_arrivals_are_steady_at_any_rate(rate: float) -> None:
    """The share of requests in windows of N >= c is P(N >= c - 1): 0.7 % for a mean of 10, c = 20."""
    arrival_s = np.cumsum(np.random.default_rng(3).exponential(1 / rate, 20_000))
    mean = max(10.0, 10 * rate)
    least = math.floor(mean + 3 * math.sqrt(mean))
    below = sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(least))
    assert in_bursts(arrival_s).mean() == pytest.approx(1 - below, abs=0.005)


def test_a_log_of_one_moment_has_no_bursts() -> None:
    assert in_bursts(np.zeros(0)).tolist() == []
    assert in_bursts(np.full(50, 7.0)).tolist() == [False] * 50


def test_bursts_miss_what_steady_arrivals_keep() -> None:
    """One prompt a step of 0.1 s: 100 at once wait for each other, and 1,000 a second apart for nobody.

    The queue by Lindley's recursion: a TTFT of 2 s is kept by 20 of the 101 that come at 500 s, by none of the
    nine that follow until 510 s, and missed by none that come later.
    """
    arrival_s = with_a_burst()
    one = layout("one", token_budget=100)
    outcome = outcome_of(make_load(arrival_s, 100, 1), one, Affine(fixed=0.1))
    waits = [0.0]
    for gap in np.diff(arrival_s):
        waits.append(max(0.0, waits[-1] + 0.1 - gap))
    ttft_s = np.array(waits) + 0.1
    np.testing.assert_allclose(outcome.ttft_s, ttft_s, atol=1e-9)
    steady, bursts = by_regime(outcome, Slo(ttft_s=2.05))
    burst = (arrival_s >= 500) & (arrival_s < 510)
    assert (steady.name, bursts.name) == ("steady", "bursts")
    assert (steady.share, bursts.share) == (990 / 1100, 110 / 1100)
    assert steady.attainment == 1.0
    assert bursts.attainment == pytest.approx((ttft_s[burst] <= 2.05).mean())
    assert 20 / 110 <= (bursts.attainment or 0.0) < 25 / 110
    assert bursts.ttft_p90_s == pytest.approx(np.percentile(ttft_s[burst], 90))
    assert steady.ttft_p90_s == pytest.approx(0.1)
    assert steady.tpot_p90_s is None


def test_arrivals_without_a_burst_are_one_part() -> None:
    load = make_load(np.arange(200.0), 10, 2)
    [steady] = by_regime(outcome_of(load, layout("one"), Affine(fixed=0.01)), Slo(ttft_s=1))
    assert (steady.name, steady.share, steady.attainment) == ("steady", 1.0, 1.0)


def two_classes() -> tuple[list[int], list[int], list[float]]:
    """240 short prompts and 60 of 4,000 tokens, ten seconds apart; outputs of about 20."""
    rng = np.random.default_rng(0)
    prompt = [
        int(4000 * rng.uniform(0.9, 1.1)) if i % 5 == 4 else int(rng.uniform(90, 110)) for i in range(300)
    ]
    return prompt, rng.integers(18, 23, 300).tolist(), [10.0 * i for i in range(300)]


def test_the_long_class_misses_a_target_that_its_prompts_cannot_keep() -> None:
    """A millisecond a token and nobody waits: 0.1 s for the short, 3.6 s and more for the long."""
    prompt, output, arrival_s = two_classes()
    one = layout("one", token_budget=8192)
    outcome = outcome_of(make_load(arrival_s, prompt, output), one, Affine(fixed=0.01, prefill=1e-3))
    short, long = by_class(outcome, Slo(ttft_s=1.0, tpot_s=0.05), 0)
    assert (short.share, long.share) == (0.8, 0.2)
    assert (short.attainment, long.attainment) == (1.0, 0.0)
    lengths = np.array(prompt)
    assert long.prompt_p50 == np.median(lengths[lengths > 1000])
    assert long.ttft_p90_s == pytest.approx(0.01 + 1e-3 * np.percentile(lengths[lengths > 1000], 90))
    assert long.tpot_p90_s == pytest.approx(0.01)


def test_the_classes_are_those_of_the_workload() -> None:
    prompt, output, arrival_s = two_classes()
    outcome = outcome_of(make_load(arrival_s, prompt, output), layout("one"), Affine(fixed=0.01))
    measured = find_classes(make_trace(prompt, output, arrivals=arrival_s), np.random.default_rng(0))
    assert [(one.share, one.prompt_p50, one.output_p50) for one in measured] == [
        (one.share, one.prompt_p50, one.output_p50) for one in by_class(outcome, Slo(), 0)
    ]


def test_equal_lengths_are_no_classes() -> None:
    outcome = outcome_of(make_load(np.arange(100.0), 50, 5), layout("one"), Affine(fixed=0.01))
    assert by_class(outcome, Slo(), 0) == ()


def test_the_only_instance_dies_and_everybody_waits_until_it_is_back() -> None:
    """A request every 10 s, served in a second. Death at 100 s, as the eleventh has come; back at 160 s.

    Then seven wait, the one of 160 s included, and are served by 161 s; at 170 s the queue is as without. Six
    of them waited for more than 5 s.
    """
    load = make_load([10.0 * i for i in range(20)], 20, 1)
    loss = loss_of(load, layout("one"), Slo(ttft_s=5))
    assert (loss.role, loss.left) == ("colocated", 0)
    assert (loss.at_s, loss.down_s, loss.caught_up_s) == (100, 60, 70)
    assert (loss.requests, loss.attainment, loss.attainment_without) == (7, 1 / 7, 1.0)
    assert (loss.rerun, loss.dropped) == (1, 0)
    assert loss.attainment_of_all == 14 / 20


def test_of_two_instances_those_that_were_on_the_one_that_dies_begin_again() -> None:
    """Steps of a second, ten tokens each. Two on either instance, a fifth comes to the first as that dies.

    The two have four tokens by 4.5 s and the next at 6 s on the other instance: 10 gaps in 9, a TPOT of 1.11 s.
    Nobody else is later for it, and nobody misses who came since.
    """
    load = make_load([0, 0, 0, 0, 4.5, 100, 100, 100, 100], 20, 10)
    two = layout("two", 2)
    loss = loss_of(load, Layout("two", two.pools, RouterConfig(policy="round_robin")), Slo(tpot_s=1.05))
    assert (loss.role, loss.left, loss.at_s, loss.caught_up_s) == ("colocated", 1, 4.5, 60)
    assert (loss.rerun, loss.dropped) == (3, 0)
    assert (loss.requests, loss.attainment, loss.attainment_without) == (1, 1.0, 1.0)
    assert loss.attainment_of_all == 7 / 9


def test_of_a_split_a_decode_instance_dies() -> None:
    """As in the simulator's own test by hand: the one request that it had gets its last token a second late."""
    load = make_load([0, 0, 4.5, 100, 100], 20, 10)
    loss = loss_of(load, layout("split", 2, prefill=1), Slo(tpot_s=1.08))
    assert (loss.role, loss.left, loss.at_s, loss.rerun) == ("decode", 1, 4.5, 1)
    assert (loss.attainment, loss.attainment_of_all) == (1.0, 4 / 5)


def test_a_request_too_long_for_the_side_that_is_left_is_lost() -> None:
    """A prefill instance that keeps 160 tokens serves alone: not the 100 + 100 of a request that decodes."""
    one = layout("split", 1, prefill=1)
    pools = (one.pools[0].model_copy(update={"kv_tokens": 160}), one.pools[1])
    load = make_load([0, 4.5, 200], [100, 100, 20], [100, 100, 5])
    loss = loss_of(load, Layout("split", pools, one.router), Slo(ttft_s=5))
    assert (loss.left, loss.dropped) == (0, 2)
    assert loss.attainment_of_all == 1 / 3


def test_a_death_with_the_last_requests_is_not_made_up_within_the_log() -> None:
    load = make_load([0.0, 1.5, 2.5], 20, 1)
    loss = loss_of(load, layout("one"), Slo(ttft_s=5))
    assert (loss.at_s, loss.caught_up_s, loss.requests) == (1.5, None, 2)
    assert (loss.attainment, loss.attainment_without, loss.attainment_of_all) == (0.0, 1.0, 1 / 3)


def test_the_parts_of_a_plan_add_up_to_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    only_the_decision(monkeypatch)
    trace = independent(120, 1.0, prompt=(500, 4000), output=(20, 200))
    found = plan_for(trace, "qwen2.5-32b", "a100-sxm-80g", 2, Slo(ttft_s=1.5, tpot_s=0.1))
    assert found.closer is not None
    assert found.at_log_rate is not None
    for parts in (found.closer.regimes, found.closer.classes):
        assert sum(part.share for part in parts) in (pytest.approx(1.0), 0)
        whole = sum(part.share * (part.attainment or 0.0) for part in parts)
        assert not parts or whole == pytest.approx(found.at_log_rate.attainment)
    assert found.closer.loss.attainment_of_all <= found.at_log_rate.attainment
    nothing = plan_for(trace, "qwen2.5-32b", "a100-sxm-80g", 2, Slo(ttft_s=4, tpot_s=0.005))
    assert nothing.closer is None


def test_a_plan_of_an_earlier_version_can_be_read() -> None:
    old = {"requests": 5, "simulated": 50, "needed_rps": 1.0, "why": "nothing that was tried is better"}
    read = Simulation.model_validate(old)
    assert (read.regimes, read.classes, read.loss) == (None, None, None)
