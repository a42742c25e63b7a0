"""Windows, regimes, day and night, idle time: closed forms, processes with known changes, another search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.workload_traces import azure, chain, make_trace, mooncake
from scipy.stats import poisson

from advisor.logs.trace import FloatColumn
from advisor.workload.drift import (
    day_night_ratio,
    find_regimes,
    hit_tokens_from_cold,
    joined,
    requests_of,
    step_noise,
    traffic_windows,
    window_width,
)
from advisor.workload.measure import measure


def arrivals_at(rates: FloatColumn, width_s: float, seed: int = 0) -> FloatColumn:
    """A Poisson process with a rate for each window."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rates * width_s)
    starts = np.repeat(np.arange(len(rates)) * width_s, counts)
    return np.sort(starts + rng.uniform(0, width_s, len(starts)))


def edges(counts: FloatColumn) -> list[int]:
    """Where the rate changes, in windows."""
    return [round(regime.end_s) for regime in find_regimes(counts, 1.0)][:-1]


@pytest.mark.parametrize(
    ("span_s", "tick_s", "width"),
    [
        (23.9, None, None),
        (24, None, 1.0),
        (35 * 60, None, 60.0),
        (3537, 3.0, 120.0),
        (24 * 3600 - 1, None, 1800.0),
        (24 * 3600, None, 3600.0),
        (30 * 86_400, None, 3600.0),
        (35 * 60, 10.0, None),  # windows of 100 s or more are too few
    ],
)
def test_the_width_of_windows(span_s: float, tick_s: float | None, width: float | None) -> None:
    assert window_width(np.array([0.0, span_s]), tick_s) == width


def test_windows_by_hand() -> None:
    # Windows of 10 s: three requests, none, one; the request at 31 s is in the partial window.
    trace = make_trace(
        [8, 4, -1, 12, 99],
        [1, 3, -1, 5, 9],
        arrivals=[0, 4, 9.9, 25, 31],
        blocks=chain([[1, 2], [1], [], [1, 2, 3], []]),
        size=4,
    )
    first, empty, last = traffic_windows(requests_of(trace, hit_tokens_from_cold(trace, None)), 10.0)
    assert (first.start_s, first.requests, first.rate_rps) == (0.0, 3, 0.3)
    assert (first.prompt_mean, first.output_mean) == (6.0, 2.0)  # the unknown one is left out
    assert first.hit_rate_tokens == pytest.approx(4 / 12)
    assert (empty.requests, empty.prompt_mean, empty.hit_rate_tokens) == (0, None, None)
    assert (last.start_s, last.output_mean, last.hit_rate_tokens) == (20.0, 5.0, pytest.approx(8 / 12))


def test_windows_add_up_to_the_log(shared: Path) -> None:
    trace = mooncake(shared)
    workload = measure(trace)
    whole = joined(workload.drift.windows, workload.drift.window_s)
    inside = trace.arrival_s < 29 * 120.0
    assert (workload.drift.window_s, len(workload.drift.windows)) == (120.0, 29)
    assert whole.requests == inside.sum()
    assert whole.prompt_mean == pytest.approx(trace.prompt_tokens[inside].mean())
    cut = measure(trace.take(np.flatnonzero(inside)))
    assert whole.hit_rate_tokens == pytest.approx(cut.sharing.hit_rate_tokens)
    # traces/README.md: the cache is cold at first; block hit rate 0.366 in all, 0.233 in the first tenth.
    assert workload.drift.windows[0].hit_rate_tokens < 0.233 < workload.drift.windows[-1].hit_rate_tokens


def test_a_cache_that_starts_cold_again() -> None:
    # The same prompt every 10 s: all but the first hit; starting anew every 20 s, every other one does.
    trace = make_trace([8] * 6, arrivals=[0, 10, 20, 30, 40, 50], blocks=chain([[1, 2]] * 6), size=4)
    assert hit_tokens_from_cold(trace, None).tolist() == [0, 8, 8, 8, 8, 8]
    assert hit_tokens_from_cold(trace, 20.0).tolist() == [0, 8, 0, 8, 0, 8]
    assert hit_tokens_from_cold(make_trace([8]), None) is None


@pytest.mark.parametrize("windows", [24, 48, 168])
def test_a_constant_rate_is_one_regime(windows: int) -> None:
    for mean in (2, 30, 1000):
        found = [edges(np.random.default_rng(seed).poisson(mean, windows).astype(float)) for seed in range(100)]
        assert sum(map(bool, found)) <= 3, mean


def test_noise_of_the_counts_is_no_change() -> None:
    # Ten times the variance of a Poisson process, from window to window.
    found = [
        edges(np.random.default_rng(seed).negative_binomial(100 / 9, 0.1, 48).astype(float))
        for seed in range(100)
    ]
    assert sum(map(bool, found)) <= 5


@pytest.mark.parametrize(("before", "after"), [(50, 100), (100, 50), (400, 520)])
def test_a_change_is_found_where_it_is(before: int, after: int) -> None:
    exact = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        counts = np.concatenate((rng.poisson(before, 30), rng.poisson(after, 18))).astype(float)
        found = edges(counts)
        assert len(found) == 1
        assert abs(found[0] - 30) <= 2
        exact += found == [30]
        # The most likely place of one change, by the likelihood of every place.
        likelihood = [
            poisson.logpmf(counts[:place], counts[:place].mean()).sum()
            + poisson.logpmf(counts[place:], counts[place:].mean()).sum()
            for place in range(3, 46)
        ]
        assert found == [3 + int(np.argmax(likelihood))]
    assert exact >= 40


@pytest.mark.parametrize("trend", [0.0, 5.0])
def test_noise_is_neither_a_trend_nor_a_few_changes(trend: float) -> None:
    """Of independent normal values it is their standard deviation, within what 200 of them can tell."""
    rng = np.random.default_rng(1)
    values = rng.normal(100.0, 3.0, 200) + trend * np.arange(200) + np.where(np.arange(200) > 120, 500.0, 0.0)
    assert step_noise(values.tolist()) == pytest.approx(3.0, rel=0.2)
    # Windows that overlap by four fifths: their neighbours are five places apart.
    sliding = np.convolve(rng.normal(100.0, 3.0, 2000), np.ones(5) / 5, "valid")
    assert step_noise(sliding.tolist(), 5) == pytest.approx(3.0 / np.sqrt(5), rel=0.2)
    assert step_noise([1.0, 2.0]) == 0.0


def test_small_changes_and_single_windows_are_no_regimes() -> None:
    steady = np.full(48, 10_000.0)
    assert edges(np.where(np.arange(48) < 24, steady, 12_400)) == []  # 24 %
    assert edges(np.where(np.arange(48) < 24, steady, 12_600)) == [24]  # 26 %
    assert edges(np.where(np.arange(48) == 20, 20_000, steady)) == []
    assert edges(np.where((np.arange(48) >= 20) & (np.arange(48) < 24), 20_000, steady)) == [20, 24]


def test_regimes_of_a_day() -> None:
    # Night 0.5/s, day 3/s, evening 1.5/s.
    rates = np.repeat([0.5, 3.0, 1.5], [8, 10, 6])
    drift = measure(make_trace([1] * len(a := arrivals_at(np.append(rates, 1.5), 3600.0)), arrivals=a)).drift
    assert [(r.start_s / 3600, r.end_s / 3600) for r in drift.regimes] == [(0, 8), (8, 18), (18, 24)]
    assert [r.rate_rps for r in drift.regimes] == pytest.approx([0.5, 3.0, 1.5], rel=0.05)
    assert drift.day_night_ratio == pytest.approx(6, rel=0.1)
    assert drift.idle_share == 0.0


def test_day_and_night_are_means_over_the_days() -> None:
    # 1 + 0.5 sin over 24 hours: 1.5 / 0.5 = 3, also where one hour of three days is busier than any other.
    hours = np.arange(72)
    cycle = 100 * (1 + 0.5 * np.sin(2 * np.pi * hours / 24))
    cycle[26] += 60  # 125 becomes 145 on average, below 150
    assert cycle.max() / cycle.min() > 3.5
    assert day_night_ratio(cycle) == pytest.approx(3)
    assert day_night_ratio(cycle[:23]) is None


def test_idle_nights() -> None:
    rates = np.append(np.tile(np.repeat([0.0, 1.0], [8, 16]), 2), 1.0)
    arrivals = arrivals_at(np.concatenate(([1.0], rates)), 3600.0)  # the log starts with a request
    workload = measure(make_trace([1] * len(arrivals), arrivals=arrivals))
    assert workload.drift.idle_share == pytest.approx(16 / 50, abs=0.03)
    assert workload.drift.day_night_ratio is None
    (why,) = [entry.why for entry in workload.unknown if entry.path == "drift.day_night_ratio"]
    assert "no request" in why


def test_public_traces(shared: Path) -> None:
    # Within the hour: Mooncake is steady (dispersion over 60 s 2.9), Azure's conversations drift (16.1).
    assert len(measure(mooncake(shared)).drift.regimes) == 1
    assert len(measure(azure(shared, "conv")).drift.regimes) > 1
    # Azure code: gaps of 217, 174, 168 and 144 s leave windows of 120 s empty only where they cover them.
    code = measure(azure(shared, "code")).drift
    assert code.window_s == 120.0
    assert 0 < code.idle_share <= 5 / len(code.windows)


def test_short_and_untimed_logs_are_null() -> None:
    for trace, why in (
        (make_trace([1] * 20), "span 19 s"),
        (make_trace([1, 1], arrivals=[np.nan, np.nan]), "no arrival times"),
    ):
        workload = measure(trace)
        assert workload.drift is None
        (entry,) = [entry for entry in workload.unknown if entry.path == "drift"]
        assert why in entry.why
