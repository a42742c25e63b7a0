"""The six traits on traffic that has them and on traffic that has not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.workload_traces import azure, chain, make_trace, mooncake

from advisor.logs.trace import Trace
from advisor.workload.measure import measure
from advisor.workload.traits import find_traits, unknown_traits


def strengths(trace: Trace, **target: float | int | bool | None) -> dict[str, float | None]:
    return {trait.name: trait.strength for trait in find_traits(measure(trace), **target)}


def test_names_are_those_of_the_contract():
    # The six traits that advice is organised by.
    assert list(strengths(make_trace([1]))) == [
        "long shared prompts",
        "long independent outputs",
        "long prompts beside streaming users",
        "strict latency targets at scale",
        "few GPUs or offline",
        "low or spiky volume",
    ]


def test_mooncake(shared: Path):
    found = strengths(mooncake(shared), ttft_s=0.2, tpot_s=0.03, gpus=64)
    assert found["long shared prompts"] > 0.5
    assert found["long independent outputs"] == 0.0
    assert found["long prompts beside streaming users"] == 1.0
    assert found["strict latency targets at scale"] == 1.0
    assert found["few GPUs or offline"] == 0.0
    # The 3 s clock must not read as spikes: 10 s windows hold 3 ticks, so 60 s ones are used.
    volume = find_traits(measure(mooncake(shared)))[5]
    assert volume.evidence["dispersion_60s"] == pytest.approx(2.895, abs=1e-3)


def test_azure_code_is_spiky(shared: Path):
    # Index of dispersion 71.6 in 10 s windows: expected_stats.json.
    assert strengths(azure(shared, "code"))["low or spiky volume"] == 1.0


def test_story_writing_has_long_independent_outputs():
    paths = chain([[request] for request in range(100)])
    found = strengths(make_trace([100] * 100, [1000] * 100, blocks=paths, size=100))
    assert found["long independent outputs"] == 1.0
    assert found["long shared prompts"] == 0.0


def test_shared_instructions_are_long_shared_prompts():
    paths = chain([[0] * 9 + [request] for request in range(100)])
    found = strengths(make_trace([1000] * 100, [10] * 100, blocks=paths, size=100))
    assert found["long shared prompts"] == 1.0


def test_a_steady_busy_service_is_neither_low_nor_spiky():
    stamps = np.cumsum(np.random.default_rng(0).exponential(0.1, 20_000))
    found = strengths(make_trace([1000] * 20_000, [100] * 20_000, arrivals=stamps))
    assert found["low or spiky volume"] < 0.15


def test_offline_and_few_gpus():
    trace = make_trace([100] * 10, [10] * 10)
    assert strengths(trace, offline=True)["few GPUs or offline"] == 1.0
    assert strengths(trace, offline=True, gpus=64)["strict latency targets at scale"] == 0.0
    assert strengths(trace, gpus=1)["few GPUs or offline"] == 1.0
    assert strengths(trace, gpus=1, ttft_s=0.1)["strict latency targets at scale"] == 0.0


def test_unknown_evidence_leaves_strength_open_unless_another_condition_decides():
    # No block ids: sharing is unknown. Outputs of 1 token settle that they are not long.
    open_ones = find_traits(measure(make_trace([100] * 5, [1000] * 5)))
    by_name = {trait.name: trait.strength for trait in open_ones}
    assert by_name["long shared prompts"] is None
    assert by_name["long independent outputs"] is None
    assert by_name["strict latency targets at scale"] is None
    assert by_name["few GPUs or offline"] is None
    assert {entry.path for entry in unknown_traits(open_ones)} == {
        f"traits.{name}.strength" for name, strength in by_name.items() if strength is None
    }
    assert strengths(make_trace([100] * 5, [1] * 5))["long independent outputs"] == 0.0


def test_strictness_follows_the_tighter_target():
    trace = make_trace([100] * 10, [10] * 10)
    loose = strengths(trace, ttft_s=15.0, tpot_s=0.15, gpus=16)["strict latency targets at scale"]
    tight = strengths(trace, ttft_s=15.0, tpot_s=0.03, gpus=16)["strict latency targets at scale"]
    assert loose < 0.5 < tight == 1.0
