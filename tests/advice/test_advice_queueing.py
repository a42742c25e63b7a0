"""Queueing formulas against values derived from DistServe, section 3 and its repository."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advisor.advice.rules.queueing import (
    crossover,
    decode_equilibrium,
    inter_op_ttft,
    intra_op_ttft,
    kingman_wait,
    mdone_ttft,
)


@pytest.mark.parametrize(
    ("prefill_ms", "rate_rps", "ttft_ms"),
    # M/D/1 mean TTFT, OPT-13B D = 72.15 ms and vLLM's D = 96.1 ms.
    [
        (72.15, 1.6, 76.9),
        (72.15, 5.6, 96.6),
        (72.15, 8, 121.4),
        (72.15, 10, 165.6),
        (96.1, 1.6, 104.8),
        (96.1, 5.6, 152.1),
        (96.1, 8, 255.9),
        (96.1, 10, 1280),
    ],
)
def test_mdone_ttft(prefill_ms: float, rate_rps: float, ttft_ms: float) -> None:
    assert 1e3 * mdone_ttft(prefill_ms / 1e3, rate_rps) == pytest.approx(ttft_ms, abs=0.15)


@pytest.mark.parametrize(
    ("speedup", "load"),
    # Crossover utilisation R*D (DistServe, OSDI'24).
    [
        (1.2, 0.434),
        (1.3, 0.611),
        (1.43, 0.824),
        (1.5, 0.936),
        (1.6, 1.095),
        (1.74, 1.324),
        (1.8, 1.429),
        (1.9, 1.626),
    ],
)
def test_crossover(speedup: float, load: float) -> None:
    assert crossover(speedup) == pytest.approx(load, abs=0.0006)


@pytest.mark.parametrize("speedup", [1.2, 1.5, 1.9])
def test_at_the_crossover_both_forms_give_the_same_ttft(speedup: float) -> None:
    rate = crossover(speedup) / 0.1
    assert intra_op_ttft(0.1, rate, speedup) == pytest.approx(inter_op_ttft(0.1, rate))
    # Intra-op wins at low rate, inter-op at high rate (DistServe, section 3.1).
    assert intra_op_ttft(0.1, 0.9 * rate, speedup) < inter_op_ttft(0.1, 0.9 * rate)
    assert intra_op_ttft(0.1, 1.05 * rate, speedup) > inter_op_ttft(0.1, 1.05 * rate)


def test_waits_are_infinite_at_and_over_full_load() -> None:
    assert mdone_ttft(0.1, 10) == kingman_wait(0.1, 10, 1.0) == math.inf
    assert inter_op_ttft(0.1, 20) == intra_op_ttft(0.1, 15, 1.5) == math.inf


@pytest.mark.parametrize(
    ("base_ms", "per_context_ms", "per_row_ms", "tpot_ms", "batch"),
    # Decode equilibrium at R = 10, O = 64, L = 544: OPT-13B TP1, and on vLLM.
    [(19.9347, 6.2694e-4, 0.038507, 26.3, 16.9), (23.475, 5.93e-4, 0.0607, 31.1, 19.9)],
)
def test_decode_equilibrium(
    base_ms: float, per_context_ms: float, per_row_ms: float, tpot_ms: float, batch: float
) -> None:
    found = decode_equilibrium(base_ms / 1e3, per_context_ms / 1e3, per_row_ms / 1e3, 10, 64, 544)
    assert found is not None
    assert 1e3 * found[0] == pytest.approx(tpot_ms, abs=0.05)
    assert found[1] == pytest.approx(batch, abs=0.05)


def test_decode_has_no_equilibrium_beyond_its_rate() -> None:
    # The denominator 1 - R O (b L + c) is 0 at R = 1 / (64 (6.2694e-7 * 544 + 3.8507e-5)) = 41.2 rps.
    at = 1 / (64 * (6.2694e-7 * 544 + 3.8507e-5))
    assert decode_equilibrium(0.0199, 6.2694e-7, 3.8507e-5, 1.001 * at, 64, 544) is None
    assert decode_equilibrium(0.0199, 6.2694e-7, 3.8507e-5, 0.999 * at, 64, 544) is not None


def test_kingman_is_the_mdone_wait_for_poisson_arrivals_and_fixed_service() -> None:
    assert kingman_wait(0.07215, 5.6, 1.0) == pytest.approx(mdone_ttft(0.07215, 5.6) - 0.07215)


def test_gamma_arrivals_of_cv_3_need_more_capacity_than_poisson() -> None:
    # Kingman: Gamma arrivals of CV 3 need more capacity than Poisson ones at the same rate.
    # At 8 rps a device of 0.1 s a request keeps Poisson arrivals within 0.2 s; gamma ones need a faster one.
    assert kingman_wait(0.1, 8, 1.0) == pytest.approx(0.2)
    assert kingman_wait(0.1, 8, 3.0) == pytest.approx(9 * 0.2)
    needed = max(s for s in np.arange(0.001, 0.1, 0.0001) if kingman_wait(s, 8, 3.0) <= 0.2)
    # s^2 * 36 = 0.2 (1 - 8 s) at the limit: s = 0.0555, 1.8 times the capacity.
    assert needed == pytest.approx(0.0555, abs=0.0002)


def test_kingman_orders_the_waits_of_a_simulated_queue() -> None:
    """Lindley's recursion over gamma arrivals; Kingman is a bound that is tight near full load."""
    rng = np.random.default_rng(0)
    service, rate = 0.1, 8.0
    for cv, tolerance in ((1.0, 0.1), (3.0, 0.3)):
        shape = 1 / cv**2
        gaps = rng.gamma(shape, 1 / (rate * shape), 400_000)
        steps = service - gaps
        total = np.concatenate(([0.0], np.cumsum(steps)))
        wait = float(np.mean(total - np.minimum.accumulate(total)))
        assert kingman_wait(service, rate, cv) == pytest.approx(wait, rel=tolerance)
