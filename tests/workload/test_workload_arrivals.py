"""Arrivals against the public traces' statistics and against processes whose values have a closed form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.workload_traces import azure, mooncake

from advisor.workload.arrivals import (
    _digamma,
    dispersion,
    find_tick,
    gamma_shape,
    measure_arrivals,
    variation,
    window_counts,
)


def measured(stamps, seed=0):
    return measure_arrivals(np.asarray(stamps, dtype=np.float64), np.random.default_rng(seed))


def test_azure_conversation(shared: Path):
    # expected_stats.json: rate, CV, index of dispersion, peak counts.
    arrivals = measured(azure(shared, "conv").arrival_s)
    assert arrivals.rate_rps == pytest.approx(5.530422, abs=1e-6)
    assert arrivals.cv == pytest.approx(1.0942, abs=5e-5)
    assert arrivals.dispersion["1"] == pytest.approx(1.3851, abs=5e-5)
    assert arrivals.dispersion["10"] == pytest.approx(3.857, abs=5e-5)
    assert arrivals.dispersion["60"] == pytest.approx(16.1283, abs=5e-5)
    assert arrivals.peak_rps == {"10": 98 / 10, "60": 507 / 60}
    assert arrivals.tick_s is None
    assert arrivals.cv_spread == arrivals.cv


def test_azure_code(shared: Path):
    # expected_stats.json; share of gaps under 10 ms from traces/README.md.
    arrivals = measured(azure(shared, "code").arrival_s)
    assert arrivals.rate_rps == pytest.approx(2.566686, abs=1e-6)
    assert arrivals.cv == pytest.approx(13.1513, abs=5e-5)
    assert arrivals.dispersion["1"] == pytest.approx(13.1864, abs=5e-5)
    assert arrivals.dispersion["10"] == pytest.approx(71.6415, abs=5e-5)
    assert arrivals.dispersion["60"] == pytest.approx(163.9647, abs=5e-5)
    assert arrivals.peak_rps == {"10": 327 / 10, "60": 632 / 60}
    assert arrivals.on_off_share == pytest.approx(0.387, abs=5e-4)
    assert arrivals.gamma_shape < 0.5  # far burstier than Poisson


def test_mooncake_clock_ticks_every_three_seconds(shared: Path):
    # expected_stats.json; 1.01 after spreading from traces/README.md (another random placement).
    stamps = mooncake(shared).arrival_s
    arrivals = measured(stamps)
    assert arrivals.tick_s == pytest.approx(3.0)
    assert arrivals.rate_rps == pytest.approx(3.401471, abs=1e-6)
    assert arrivals.cv == pytest.approx(3.0337, abs=5e-5)
    assert arrivals.dispersion["1"] == pytest.approx(7.8976, abs=5e-5)
    assert arrivals.dispersion["10"] == pytest.approx(2.0988, abs=5e-5)
    assert arrivals.dispersion["60"] == pytest.approx(2.895, abs=5e-5)
    assert arrivals.peak_rps == {"10": 67 / 10, "60": 247 / 60}
    assert arrivals.on_off_share is None  # 90 % of gaps are 0 by the clock alone
    for seed in range(5):
        assert measured(stamps, seed).cv_spread == pytest.approx(1.0, abs=0.05)
    assert measured(stamps, 1) == measured(stamps, 1)
    assert measured(stamps, 1).cv_spread != measured(stamps, 2).cv_spread


@pytest.mark.parametrize(("tick", "cv"), [(1.0, 2.16), (3.0, 3.95), (5.0, 5.16)])
def test_floored_clock_is_found_and_undone(shared: Path, tick: float, cv: float):
    # Computed elsewhere: Azure conversation floored to ticks of 1, 3, 5 s; its own CV is 1.09.
    stamps = azure(shared, "conv").arrival_s
    arrivals = measured(stamps // tick * tick)
    assert arrivals.tick_s == tick
    assert arrivals.cv == pytest.approx(cv, abs=0.02)
    assert arrivals.cv_spread == pytest.approx(1.09, abs=0.06)


def test_poisson_has_cv_dispersion_and_shape_one():
    count, rate = 50_000, 4.0
    gaps = np.random.default_rng(3).exponential(1 / rate, count)
    arrivals = measured(np.cumsum(gaps))
    # Standard errors of a Poisson process: CV 1/sqrt(n); dispersion sqrt(2 / windows) (chi-square);
    # shape sqrt(1 / (n (trigamma(1) - 1))) = 1.25 / sqrt(n). Bounds are four of them.
    assert arrivals.cv == pytest.approx(1.0, abs=4 / np.sqrt(count))
    for window in (1, 10, 60):
        windows = count / rate / window
        assert arrivals.dispersion[str(window)] == pytest.approx(1.0, abs=4 * np.sqrt(2 / windows))
    assert arrivals.gamma_shape == pytest.approx(1.0, abs=4 * 1.25 / np.sqrt(count))
    assert arrivals.on_off_share == pytest.approx(1 - np.exp(-rate * 0.010), abs=0.004)
    assert arrivals.tick_s is None


@pytest.mark.parametrize("shape", [0.1, 0.25, 1.0, 4.0, 50.0])
def test_gamma_shape_is_recovered(shape: float):
    gaps = np.random.default_rng(5).gamma(shape, 2.0, 40_000)
    # Relative standard error of the estimate is at most sqrt(2 / n) (shape large); bound is about six.
    assert gamma_shape(gaps) == pytest.approx(shape, rel=0.04)


def test_gamma_shape_agrees_with_scipy():
    from scipy.stats import gamma

    gaps = np.random.default_rng(8).weibull(0.7, 500)
    assert gamma_shape(gaps) == pytest.approx(gamma.fit(gaps, floc=0)[0], rel=1e-6)


def test_dispersion_by_hand():
    # Counts 3, 1 in the full windows [0, 10), [10, 20); the third window is partial and dropped.
    stamps = np.array([0.0, 1.0, 9.9, 10.0, 20.0, 21.0])
    assert window_counts(stamps, 10).tolist() == [3, 1]
    assert dispersion(np.array([3.0, 1.0])) == 0.5  # variance 1, mean 2
    assert dispersion(np.array([3.0])) is None


def test_requests_sent_together_are_not_a_tick():
    # Every other gap is 0, the others are all different.
    gaps = np.zeros(400)
    gaps[::2] = np.random.default_rng(0).exponential(1.0, 200)
    assert find_tick(gaps) is None


def test_tick_needs_many_equal_stamps():
    assert find_tick(np.array([1.0] * 99 + [0.0])) is None
    assert find_tick(np.array([1.0] * 90 + [0.0] * 10)) == 1.0


@pytest.mark.parametrize("stamps", [[], [0.0], [np.nan, np.nan], [0.0, 0.0, 0.0]])
def test_degenerate_stamps_give_none(stamps):
    arrivals = measured(stamps)
    assert arrivals.rate_rps is None
    assert arrivals.cv is None
    assert arrivals.gamma_shape is None
    assert set(arrivals.dispersion.values()) == {None}
    assert set(arrivals.peak_rps.values()) == {None}


def test_even_gaps_have_cv_zero_and_no_shape():
    arrivals = measured(np.arange(100) * 0.5)
    assert arrivals.cv == pytest.approx(0.0, abs=1e-12)
    assert arrivals.gamma_shape is None
    assert variation(np.array([1.0])) is None


def test_unknown_stamps_are_left_out():
    assert measured([0.0, np.nan, 2.0]).rate_rps == 1.0


def test_digamma_and_its_derivative_agree_with_scipy():
    from scipy.special import digamma, polygamma

    for x in np.geomspace(0.01, 1e4, 100).tolist():
        expected = (float(digamma(x)), float(polygamma(1, x)))
        assert _digamma(x) == pytest.approx(expected, rel=1e-8, abs=1e-8)
