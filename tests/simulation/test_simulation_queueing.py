"""The simulator against queueing theory: Lindley's recursion, M/D/1, and the decode equilibrium.

Formulas and coefficients: DistServe, sections 3.1 and its simulator (OPT-13B on an A100, 512-token prompts).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from helpers.simulating import Affine, make_load, one_pool, record

from advisor.logs.trace import FloatColumn
from advisor.simulation.load import Load
from advisor.simulation.simulate import simulate
from engine.step_time.model import StepShape

D = 0.0721509  # OPT-13B, one GPU: 18.1025 + 0.101912 x 512 + 7.1223e-6 x 512^2 ms
D_TP2 = 0.0505007  # two: 14.7430 + 0.0685772 x 512 + 2.4496e-6 x 512^2 ms
PROMPT = 512


@dataclass(frozen=True)
class PrefillOnly:
    """A step takes so long for each prompt token, and for nothing else."""

    token_s: float
    source: Literal["published"] = "published"
    error_p90: float | None = None
    bend: float = float("inf")

    def seconds(self, shape: StepShape) -> float:
        return self.token_s * sum(new for new, _ in shape.prefill)

    def decode_line(self, rows: int, context: int) -> tuple[float, float]:  # noqa: ARG002 - as StepTimeModel
        return 0.0, 0.0


def poisson(seed: int, rate: float, n: int) -> FloatColumn:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


def ttft(load: Load, step_s: float, pp: int = 1) -> FloatColumn:
    """TTFT of prompts of 512 tokens, each alone in a step of `step_s`."""
    return simulate(load, one_pool(Affine(fixed=step_s), token_budget=PROMPT, pp=pp)).ttft_s


def lindley(arrival_s: FloatColumn, service_s: FloatColumn) -> FloatColumn:
    """Waits of a first come, first served queue: W' = max(0, W + S - A)."""
    wait = [0.0]
    for gap, service in zip(np.diff(arrival_s).tolist(), service_s.tolist(), strict=False):
        wait.append(max(0.0, wait[-1] + service - gap))
    return np.array(wait)


def standard_error(values: FloatColumn, batches: int = 25) -> float:
    """Of the mean of correlated values, by the means of batches."""
    means = [batch.mean() for batch in np.array_split(values, batches)]
    return float(np.std(means, ddof=1) / np.sqrt(batches))


@pytest.mark.parametrize("rate", [2.0, 8.0, 13.0, 20.0])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_ttft_is_lindleys_recursion_request_by_request(rate: float, seed: int, pp: int) -> None:
    """Of `pp` stages each is busy for its share of D; 20 a second are more than one stage can do."""
    arrival_s = poisson(seed, rate, 1500)
    waits = lindley(arrival_s, np.full(1500, D / pp))
    np.testing.assert_allclose(ttft(make_load(arrival_s, PROMPT, 1), D, pp), waits + D, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_prompts_of_many_lengths_one_at_a_time_are_lindleys_recursion(seed: int) -> None:
    arrival_s = poisson(seed, 6.0, 1500)
    prompt = np.random.default_rng(seed).integers(1, 3000, 1500)
    pool = one_pool(PrefillOnly(1e-4), token_budget=3000, max_seqs=1, batching="prefill_first")  # type: ignore[arg-type]
    outcome = simulate(make_load(arrival_s, prompt.tolist(), 1), pool)
    service = 1e-4 * prompt
    waits = lindley(arrival_s, service)
    np.testing.assert_allclose(outcome.ttft_s, waits + service, rtol=0, atol=1e-9)
    np.testing.assert_allclose(outcome.queued_s, waits, rtol=0, atol=1e-9)


# Mean TTFT in ms by rate, as worked out from the formula in reference/papers.md.
MD1 = {1.6: 76.9, 5.6: 96.6, 8.0: 121.4, 10.0: 165.6}


@pytest.mark.parametrize("rate", MD1)
def test_mean_ttft_on_one_gpu_is_that_of_md1(rate: float) -> None:
    """D + R D^2 / (2 (1 - R D))."""
    expected = D + rate * D**2 / (2 * (1 - rate * D))
    assert expected == pytest.approx(MD1[rate] / 1000, abs=6e-5)
    values = ttft(make_load(poisson(7, rate, 6_000), PROMPT, 1), D)
    assert abs(values.mean() - expected) < 3 * standard_error(values)


@pytest.mark.parametrize("rate", [8.0, 16.0])
def test_mean_ttft_of_two_stages_is_the_published_formula(rate: float) -> None:
    """D + R D^2 / (4 (2 - R D))."""
    expected = D + rate * D**2 / (4 * (2 - rate * D))
    values = ttft(make_load(poisson(8, rate, 6_000), PROMPT, 1), D, pp=2)
    assert abs(values.mean() - expected) < 3 * standard_error(values)


@pytest.mark.parametrize("rate", [8.0, 16.0])
def test_mean_ttft_of_two_gpus_that_share_each_layer_is_the_published_formula(rate: float) -> None:
    """D/K + R D^2 / (2 K (K - R D)), K = 1.43."""
    k = D / D_TP2
    assert k == pytest.approx(1.43, abs=0.005)
    expected = D / k + rate * D**2 / (2 * k * (k - rate * D))
    values = ttft(make_load(poisson(9, rate, 6_000), PROMPT, 1), D_TP2)
    assert abs(values.mean() - expected) < 3 * standard_error(values)


def test_two_stages_overtake_two_way_splitting_at_the_published_utilisation() -> None:
    """K = 1.43: the lines cross at R D = 0.824; splitting layers is better below, stages above."""
    for rd, splitting_wins in ((0.6, True), (1.05, False)):
        load = make_load(poisson(3, rd / D, 3_000), PROMPT, 1)
        assert (ttft(load, D_TP2).mean() < ttft(load, D, pp=2).mean()) == splitting_wins


# A decode step of OPT-13B takes a + b x contexts + c x requests, here in seconds.
A, B, C = 19.9347e-3, 6.2694e-7, 0.038507e-3
RATE, OUTPUT = 10.0, 64


def test_decodes_settle_where_littles_law_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """TPOT* = a / (1 - R O (b L + c)) and B* = R O TPOT*: 26.3 ms and 16.9 for R = 10, O = 64, L = 544.

    Prompts cost nothing here. The first token comes with the prompt, so 65 make 64 decodes.
    """
    load = make_load(poisson(11, RATE, 2_500), PROMPT, OUTPUT + 1)
    recording = record(monkeypatch, jumps=False)
    outcome = simulate(load, one_pool(Affine(fixed=A, context=B, row=C), token_budget=2048, max_seqs=256))
    mean_context = PROMPT + (OUTPUT - 1) / 2
    expected = A / (1 - RATE * OUTPUT * (B * mean_context + C))
    assert expected == pytest.approx(26.3e-3, abs=6e-5)
    began = np.array(recording.began_s[0])
    rows = np.array([sum(new == 1 for _, new, _ in step) for step in recording.steps[0]])
    settled = (began[:-1] > 20) & (began[1:] < load.arrival_s[-1])
    step_s, rows = np.diff(began)[settled], rows[:-1][settled]
    # The rate that came, not the one asked for, is what these steps served.
    served = rows.sum() / step_s.sum()
    assert served == pytest.approx(RATE * OUTPUT, rel=0.05)
    exact = A / (1 - served * (B * mean_context + C))
    assert step_s.mean() == pytest.approx(exact, rel=2e-3)
    assert abs(step_s.mean() - expected) < 3 * standard_error(step_s)
    assert abs(rows.mean() - RATE * OUTPUT * expected) < 3 * standard_error(rows.astype(float))
    # A request sees one of its own kind more than there are on average: itself.
    assert float(np.nanmean(outcome.tpot_s)) == pytest.approx(expected + B * mean_context + C, rel=0.02)
