"""Sharing, transfer and split formulas against the values of SGLang, DistServe and Mooncake."""

from __future__ import annotations

import math

import pytest

from advisor.advice import profiles
from advisor.advice.rules.formulas import (
    DERATE_DECODE,
    DERATE_PREFILL,
    integer_split,
    optimal_hit_rate,
    remote_reuse_bandwidth,
    saved_time,
    speedup_ceiling,
    transfer_bits_per_s,
)


@pytest.mark.parametrize(
    ("gpus", "prefill", "goodput"),
    # Integer split of (5.6, 10), DistServe Figure 1.
    [(2, 1, 2.80), (3, 2, 3.333), (5, 3, 3.36), (8, 5, 3.5), (14, 9, 3.571)],
)
def test_integer_split(gpus: int, prefill: int, goodput: float) -> None:
    split = integer_split(5.6, 10, gpus)
    assert split is not None
    assert (split.prefill, split.decode) == (prefill, gpus - prefill)
    assert split.goodput_per_gpu == pytest.approx(goodput, abs=0.0005)


def test_integer_split_derated_as_aiconfigurator_does() -> None:
    # DistServe, OSDI'24: "With AIC's 0.90 / 0.92 derating 2P1D = 3.07".
    split = integer_split(5.6, 10, 3, (DERATE_PREFILL, DERATE_DECODE))
    assert split is not None
    assert (split.prefill, split.decode) == (2, 1)
    assert split.goodput_per_gpu == pytest.approx(3.07, abs=0.005)


def test_no_split_of_one_gpu_and_none_beats_the_bound() -> None:
    assert integer_split(5.6, 10, 1) is None
    bound = 1 / (1 / 5.6 + 1 / 10)  # 3.590, DistServe, OSDI'24
    assert bound == pytest.approx(3.590, abs=0.0005)
    for gpus in range(2, 40):
        split = integer_split(5.6, 10, gpus)
        assert split is not None
        assert split.goodput_per_gpu <= bound + 1e-12


@pytest.mark.parametrize(
    ("model", "expected"),
    # Bytes a token in fp16 (DistServe, OSDI'24).
    [
        ("opt-13b", 819_200),
        ("opt-66b", 2_359_296),
        ("opt-175b", 4_718_592),
        ("llama-3-70b", 327_680),
        ("yi-34b", 245_760),
        ("llama-3-8b", 131_072),
        ("mistral-7b-v0.3", 131_072),
        ("qwen2.5-7b", 57_344),
    ],
)
def test_kv_bytes_of_a_token(model: str, expected: int) -> None:
    assert profiles.model(model).shape.kv_bytes_per_token() == expected


def test_kv_of_a_512_token_prompt_of_opt_66b() -> None:
    # DistServe, section 3.3: 1,207,959,552 B; 96.6 Gbit/s at 10 rps (decimal; the paper's 90 is binary).
    per_token = profiles.model("opt-66b").shape.kv_bytes_per_token()
    assert per_token * 512 == 1_207_959_552
    assert transfer_bits_per_s(per_token, 512, 10) / 1e9 == pytest.approx(96.6, abs=0.05)


@pytest.mark.parametrize(
    ("flops", "expected_gb_per_s"),
    # Mooncake, LLaMA3-70B, 8,192 tokens: 8xA800 with G = 2.496e15, and 8xH800.
    [(2.496e15, 5.86), (8 * 989.4e12, 18.6)],
)
def test_bandwidth_for_remote_reuse(flops: float, expected_gb_per_s: float) -> None:
    found = remote_reuse_bandwidth(hidden=8192, prefix_tokens=8192, gqa=8, flops=flops)
    assert found / 1e9 == pytest.approx(expected_gb_per_s, abs=0.03)


def test_optimal_hit_rate() -> None:
    # SGLang, NeurIPS'24: n = 100, s = 1000, u = 100 -> 0.900.
    assert optimal_hit_rate(100, 1000, 100) == pytest.approx(0.900, abs=0.0005)


def test_optimal_hit_rate_is_that_of_the_radix_tree() -> None:
    # hit_opt = 1 - sum of edge lengths / sum of prompts (SGLang, NeurIPS'24), counted on real token tuples.
    prompts = [(*range(40), *(1000 + 10 * i + j for j in range(7))) for i in range(9)]
    edges = {prompt[: end + 1] for prompt in prompts for end in range(len(prompt))}
    counted = 1 - len(edges) / sum(len(p) for p in prompts)
    assert optimal_hit_rate(9, 40, 7) == pytest.approx(counted)


def test_amdahl() -> None:
    assert saved_time(0.5, 0.8) == pytest.approx(0.4)
    assert speedup_ceiling(0.5, 0.8) == pytest.approx(1 / 0.6)
    assert speedup_ceiling(1.0, 1.0) == math.inf
