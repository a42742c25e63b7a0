"""Sarathi-Serve's numbers through the simulator (arXiv 2403.02310; docs/papers.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.papers import Served, ablation, mistral_7b, openchat, poisson, published, roofline, yi_34b

from engine.step_time.model import StepShape

BUDGETS = (512, 1024, 2048)
TABLE = yi_34b(published("sarathi-yi-34b-tp2"))  # the artifact's own iteration times
YI = pytest.mark.parametrize("yi", [TABLE, yi_34b()], ids=["artifact", "roofline"])


@pytest.mark.parametrize(
    ("tbt_s", "expected"),
    # SLO table: strict 0.2 s -> 512, relaxed 1.0 s -> 2048.
    [(0.2, 512), (1.0, 2048)],
)
@pytest.mark.parametrize("requests", [500, pytest.param(2048, marks=pytest.mark.slow)])
@YI
def test_the_budget_of_most_capacity_is_the_papers(
    shared: Path, yi: Served, tbt_s: float, expected: int, requests: int
):
    load = poisson(requests, *openchat(shared))
    capacity = {budget: yi.capacity(load, tbt_s, budget, tolerance=0.01) for budget in BUDGETS}
    assert max(BUDGETS, key=capacity.__getitem__) == expected


@pytest.mark.parametrize(
    ("model", "tbt_s"),
    # Strict targets: 5 decode iterations.
    [(TABLE, 0.2), (yi_34b(), 0.2), (mistral_7b(), 0.1)],
    ids=["yi-34b-artifact", "yi-34b-roofline", "mistral-7b"],
)
@pytest.mark.parametrize("requests", [600, pytest.param(2048, marks=pytest.mark.slow)])
def test_stall_free_batching_multiplies_capacity_under_the_strict_target(
    shared: Path, model: Served, tbt_s: float, requests: int
):
    # Over vLLM: 3.7x for Yi-34B, 2.6x (and 3.5x at 100 ms with 512) for Mistral-7B.
    load = poisson(requests, *openchat(shared))
    assert 2.0 <= model.stall_free_gain(load, tbt_s, 512) <= 4.5


@YI
def test_the_gain_shrinks_under_the_relaxed_target(shared: Path, yi: Served):
    # Yi-34B at 1 s with 2048: 1.65x.
    load = poisson(1200, *openchat(shared))
    assert 1.2 <= yi.stall_free_gain(load, 1.0, 2048) <= 2.0


def test_whole_prompts_first_stall_one_token_in_a_hundred_at_their_capacity(shared: Path):
    # Closed form: a step of t s sees rate x P(prefill > target) x t stalls: 1 % is at a rate of 0.01 / (P t).
    prompt, output = openchat(shared)
    step_time = published("sarathi-yi-34b-tp2")
    stalls = np.mean([step_time.seconds(StepShape(((int(n), 0),))) > 0.2 for n in prompt[:2000]])
    # So few decode at once that 8 to 16 rows take nearly the same, 70 to 77 ms, and 4 rows 49 ms.
    low, high = 0.01 / (stalls * 0.077), 0.01 / (stalls * 0.0488)
    found = yi_34b(step_time).capacity(poisson(600, prompt, output), 0.2, 8192, batching="prefill_first")
    assert 0.85 * low <= found <= 1.15 * high


def test_the_ablation_table_comes_out_in_its_order(shared: Path):
    # Yi-34B, ShareGPT, 128 requests at 1 a second, budget 512 (the artifact's script). So few requests vary by
    # half from draw to draw: the order must hold in each, the figures in their median.
    prompt, output = openchat(shared)
    draws = [ablation(yi_34b(), poisson(128, prompt, output, seed), 512) for seed in range(9)]
    for hybrid, chunked, both in (one.values() for one in draws):
        assert hybrid.ttft_s < both.ttft_s < chunked.ttft_s
        assert both.tbt_s < chunked.tbt_s < hybrid.tbt_s
    found = {name: np.median([one[name] for one in draws], axis=0) for name in draws[0]}
    printed = {"hybrid batching only": 0.53, "chunked prefill only": 1.04, "both": 0.76}
    for name, ttft_s in printed.items():  # 1 a second is near our capacity of 1.2, hence longer queues
        assert 1 / 1.7 < found[name][0] / ttft_s < 1.7
    assert found["hybrid batching only"][1] == pytest.approx(0.68, rel=0.5)
    assert found["chunked prefill only"][1] == pytest.approx(0.17, rel=0.15)
    assert found["both"][1] == pytest.approx(0.14, rel=0.1)


def test_step_times_have_the_decode_iterations_behind_the_targets():
    # Batch 32, context 4k, no prefill: the strict targets are 5 of them, hence 40 and 20 ms.
    assert roofline("yi-34b", tp=2).seconds(StepShape((), 32, 32 * 4096)) == pytest.approx(0.040, rel=0.15)
    assert roofline("mistral-7b-v0.1").seconds(StepShape((), 32, 32 * 4096)) == pytest.approx(0.020, rel=0.15)
