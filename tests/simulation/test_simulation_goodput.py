"""The search for goodput against queues whose goodput is known: M/D/1 and D/D/1 in closed form, dense scans."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

from advisor.simulation.goodput import (
    Attainment,
    Capacity,
    MissBudget,
    Patient,
    goodput,
    throughput,
)
from advisor.simulation.load import Load
from advisor.simulation.outcome import Outcome
from advisor.simulation.rising import RisingTtft
from advisor.simulation.scaling import scaled, time_scaled
from advisor.simulation.simulate import Watch
from advisor.simulation.slo import Slo

Column = npt.NDArray[np.float64]
SERVICE_S = 0.1
NAN = float("nan")


def load_at(arrival_s: Column) -> Load:
    """Requests without turns or content."""
    count = len(arrival_s)
    return Load(
        arrival_s=arrival_s,
        prompt_tokens=np.full(count, 100),
        output_tokens=np.ones(count, dtype=np.int64),
        runs=((),) * count,
        block_size=16,
        session=np.arange(count),
        parent=np.full(count, -1),
        think_s=np.full(count, np.nan),
    )


def poisson(count: int, seed: int = 0) -> Load:
    """One request a second."""
    return load_at(np.cumsum(np.random.default_rng(seed).exponential(1.0, count)))


def waits(arrival_s: Column, service_s: float = SERVICE_S) -> Column:
    """Lindley's recursion for one server in order of arrival, unrolled."""
    number = np.arange(len(arrival_s))
    return np.asarray(np.maximum.accumulate(arrival_s - service_s * number) + service_s * number - arrival_s)


def outcome_of(load: Load, ttft_s: Column, watch: Watch, gap_s: Column | None = None) -> Outcome:
    """Requests of one token that end in order, as long as the watch lets them."""
    count = len(load)
    ended = next(
        (
            number + 1
            for number, value in enumerate(ttft_s.tolist())
            if watch.ended(ttft_s=value, tpot_s=NAN, max_gap_s=NAN)
        ),
        count,
    )
    served = np.arange(count) < ended
    nothing = np.full(count, np.nan)
    gaps = np.zeros(0) if gap_s is None else gap_s
    return Outcome(
        arrival_s=load.arrival_s,
        ttft_s=np.where(served, ttft_s, np.nan),
        e2e_s=np.where(served, ttft_s, np.nan),
        tpot_s=nothing,
        max_gap_s=nothing,
        queued_s=np.where(served, ttft_s - SERVICE_S, np.nan),
        cached_tokens=np.zeros(count, dtype=np.int64),
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        served=served,
        gap_s=gaps,
        gap_count=np.ones(len(gaps)),
        end_s=float((load.arrival_s + ttft_s).max()),
        stopped_early=ended < count,
    )


def one_server(load: Load, watch: Watch) -> Outcome:
    """D = 0.1 s a request, one at a time."""
    return outcome_of(load, waits(load.arrival_s) + SERVICE_S, watch)


def waits_at_most(limit_s: float, rate: float, service_s: float) -> float:
    """P(W <= t) of M/D/1 (Erlang 1909)."""
    return (1 - rate * service_s) * sum(
        (-rate * (limit_s - k * service_s)) ** k
        / math.factorial(k)
        * math.exp(rate * (limit_s - k * service_s))
        for k in range(int(limit_s / service_s + 1e-9) + 1)
    )


def md1_goodput(ttft_s: float, attainment: float) -> float:
    """The rate at which that share of requests waits no longer than the target leaves."""
    low, high = 1e-6, 1 / SERVICE_S - 1e-6
    while high - low > 1e-9:
        middle = (low + high) / 2
        kept = waits_at_most(ttft_s - SERVICE_S, middle, SERVICE_S) >= attainment
        low, high = (middle, high) if kept else (low, middle)
    return low


def search_with(seed: int) -> Callable[[Load, float], Load]:
    return lambda load, factor: scaled(load, factor, seed)


@pytest.mark.parametrize(("ttft_s", "attainment"), [(0.3, 0.90), (0.5, 0.99), (0.2, 0.80)])
@pytest.mark.parametrize("scale", [time_scaled, search_with(0)])
def test_goodput_of_a_queue_in_closed_form(
    ttft_s: float, attainment: float, scale: Callable[[Load, float], Load]
):
    # Poisson arrivals stay Poisson thinned and squeezed; copies on top of each other nearly so.
    load = time_scaled(poisson(40_000), 5.0)
    slo = Slo(ttft_s=ttft_s, attainment=attainment)
    found = goodput(one_server, load, Attainment(slo), scale=scale, lowest=0.01, highest=100)
    expected = md1_goodput(ttft_s, attainment)
    assert found.high_rps is not None
    assert found.high_rps <= found.low_rps * 1.025
    assert found.low_rps <= expected * 1.02
    assert found.high_rps >= expected * 0.98
    assert found.below_rps is None
    assert found.best is not None
    assert found.best.rate_rps == found.low_rps


@pytest.mark.parametrize("start", [0.1, 1.0, 30.0])
def test_goodput_is_where_a_dense_scan_has_it(start: float):
    load, slo = poisson(3000, 4), Slo(ttft_s=0.3)
    found = goodput(one_server, load, Attainment(slo), scale=time_scaled, lowest=0.01, highest=100, start=start)
    rate = len(load) / load.span_s
    factors = np.geomspace(1, 15, 1500)
    kept = [one_server(time_scaled(load, f), Patient()).attainment(slo) >= 0.9 for f in factors]
    last = float(factors[np.flatnonzero(kept)[-1]]) * rate
    assert found.high_rps is not None
    assert found.low_rps * 0.999 <= last <= found.high_rps
    assert len(found.probes) <= 17


def test_stopping_early_changes_no_answer_and_saves_requests():
    def stubborn(load: Load, watch: Watch) -> Outcome:
        return one_server(load, Patient())

    objective, load = Attainment(Slo(ttft_s=0.3)), poisson(3000)
    searches = [
        goodput(run, load, objective, scale=search_with(1), lowest=0.1, highest=50, start=10.0)
        for run in (one_server, stubborn)
    ]
    quick, slow = searches
    assert (quick.low_rps, quick.high_rps) == (slow.low_rps, slow.high_rps)
    assert [p.kept for p in quick.probes] == [p.kept for p in slow.probes]
    assert slow.simulated == sum(probe.requests for probe in slow.probes)
    assert quick.simulated == sum(
        probe.requests if probe.kept else int(probe.outcome.served.sum()) for probe in quick.probes
    )
    assert quick.simulated < 0.8 * slow.simulated


@pytest.mark.parametrize("attainment", [0.07, 0.29, 0.5, 0.58, 0.9, 0.95, 0.99, 1.0])
@pytest.mark.parametrize("requests", [1, 7, 10, 100, 1000])
def test_the_miss_budget_is_exact(attainment: float, requests: int):
    slo = Slo(ttft_s=1.0, tpot_s=0.1, tbt_s=0.5, attainment=attainment)
    random = Random(requests)
    kinds = {
        "kept": {"ttft_s": 1.0, "tpot_s": 0.1, "max_gap_s": 0.5},
        "one token": {"ttft_s": 0.5, "tpot_s": NAN, "max_gap_s": NAN},
        "late": {"ttft_s": 1.01, "tpot_s": NAN, "max_gap_s": NAN},
        "slow": {"ttft_s": 0.5, "tpot_s": 0.11, "max_gap_s": 0.2},
        "stalled": {"ttft_s": 0.5, "tpot_s": 0.05, "max_gap_s": 0.6},
    }
    for share in (0.5 * (1 - attainment), 1 - attainment, 0.5):
        watch, misses, stopped = MissBudget(slo, requests), 0, False
        for _ in range(requests):
            miss = random.random() < share
            kind = random.choice(("late", "slow", "stalled", "dropped") if miss else ("kept", "one token"))
            stopped = watch.dropped() if kind == "dropped" else watch.ended(**kinds[kind])
            misses += miss
            # Even if all that are left keep their targets.
            assert stopped == ((requests - misses) / requests < attainment)
            if stopped:
                break


def test_a_rate_below_that_fails_is_reported():
    def holed(load: Load, watch: Watch) -> Outcome:
        rate = len(load) / load.span_s
        kept = rate < 10 and not 8.5 < rate < 9.3
        return outcome_of(load, np.full(len(load), 0.1 if kept else 9.0), watch)

    objective, load = Attainment(Slo(ttft_s=1.0)), poisson(1000)
    found = goodput(holed, load, objective, scale=time_scaled, lowest=0.1, highest=50, start=9.6)
    assert found.low_rps == pytest.approx(9.9, abs=0.15)
    assert found.below_rps == pytest.approx(0.9 * found.low_rps)
    unchecked = goodput(
        holed, load, objective, scale=time_scaled, lowest=0.1, highest=50, start=9.6, check=False
    )
    assert unchecked.below_rps is None
    assert len(unchecked.probes) == len(found.probes) - 1


def test_the_limits_of_the_search_bound_the_answer():
    load = poisson(1000)
    rate = len(load) / load.span_s
    easy = goodput(one_server, load, Attainment(Slo(ttft_s=99)), scale=time_scaled, lowest=0.5, highest=3.0)
    assert (easy.low_rps, easy.high_rps) == (pytest.approx(3 * rate), None)
    hard = goodput(one_server, load, Attainment(Slo(ttft_s=0.05)), scale=time_scaled, lowest=0.5, highest=3.0)
    assert (hard.low_rps, hard.high_rps) == (0.0, pytest.approx(0.5 * rate))
    assert hard.best is None
    assert not any(probe.kept for probe in hard.probes)


def test_capacity_ends_where_the_median_delay_does():
    # D/D/1 above 1 / D: request i waits i (D - 1 / rate), so the median of n is 2 s at 1 / (D - 4 / n) = 10.42.
    # Waits rise from 10 on, and what sees that may stop a run a little before its median gets there.
    load = load_at(np.arange(1000) / 5.0)
    found = goodput(
        one_server, load, Capacity(tbt_s=1.0), scale=time_scaled, lowest=0.1, highest=50, tolerance=0.002
    )
    expected = 1 / (SERVICE_S - 4 / 1000)
    assert 0.98 * expected <= found.low_rps <= 1.003 * expected


@pytest.mark.parametrize(("stalls", "expected"), [(0.005, 8.0), (0.02, 0.0)])
def test_capacity_ends_where_the_p99_gap_does(stalls: float, expected: float):
    # Gaps of 20 ms times the rate, and some stalls of 9 s: the P99 passes 160 ms at 8 requests a second.
    def stalling(load: Load, watch: Watch) -> Outcome:
        gap_s = np.full(1000, 0.02 * len(load) / load.span_s)
        gap_s[: int(stalls * 1000)] = 9.0
        return outcome_of(load, np.full(len(load), 0.2), watch, gap_s)

    found = goodput(stalling, poisson(1000), Capacity(tbt_s=0.16), scale=time_scaled, lowest=0.1, highest=50)
    assert found.low_rps == pytest.approx(expected, rel=0.026)


def test_dropped_requests_count_as_delayed():
    def dropping(load: Load, watch: Watch) -> Outcome:
        outcome = outcome_of(load, np.full(len(load), 0.2), watch)
        outcome.served[: len(load) * 6 // 10] = False
        return outcome

    found = goodput(dropping, poisson(100), Capacity(tbt_s=1.0), scale=time_scaled, lowest=0.5, highest=2)
    assert found.low_rps == 0.0


@pytest.mark.parametrize("seed", range(10))
def test_waits_that_rise_stop_and_waits_that_do_not_run_on(seed: int):
    # Over 1 / D an M/D/1 queue grows for ever, under it it does not: at 0.9 a mean wait of 0.45 s.
    for load_factor, rises in ((1.2, True), (0.9, False), (0.6, False)):
        load = time_scaled(poisson(4000, seed), load_factor / SERVICE_S)
        watch = RisingTtft(len(load), limit_s=2.0)
        outcome = outcome_of(load, waits(load.arrival_s) + SERVICE_S, watch)
        assert outcome.stopped_early == rises
        if rises:
            assert outcome.served.sum() < 0.6 * len(load)


def test_throughput_is_that_of_the_servers_whatever_the_arrivals():
    for load in (poisson(500), time_scaled(poisson(500), 100.0)):
        rate, outcome = throughput(one_server, load)
        assert rate == pytest.approx(1 / SERVICE_S)
        assert outcome.served.all()
        assert not np.any(outcome.arrival_s)
