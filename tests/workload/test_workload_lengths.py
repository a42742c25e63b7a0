"""Lengths against the statistics of the public traces, and caps against hand-made columns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.workload_traces import azure, make_trace, mooncake

from advisor.logs.trace import Totals
from advisor.workload.lengths import find_caps, measure_lengths
from advisor.workload.model import Distribution


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("mooncake/conversation", mooncake),
        ("azure-llm-2023/code", lambda shared: azure(shared, "code")),
        ("azure-llm-2023/conv", lambda shared: azure(shared, "conv")),
    ],
)
def test_lengths_of_public_traces(shared: Path, name, load):
    expected = json.loads((shared / "traces/expected_stats.json").read_text())[name]
    lengths = measure_lengths(load(shared))
    for column, measured in (("prompt", lengths.prompt), ("output", lengths.output)):
        assert isinstance(measured, Distribution)
        for field in ("mean", "p50", "p90", "p99", "max"):
            # The file has three decimals.
            assert getattr(measured, field) == pytest.approx(expected[column][field], abs=6e-4), field


def test_cap_of_azure_code(shared: Path):
    # traces/README.md: 322 of 8,819 prompts end at 7,435 to 7,437 tokens.
    (cap,) = measure_lengths(azure(shared, "code")).caps
    assert cap.at == 7437
    assert cap.share == pytest.approx(322 / 8819)


def test_cap_needs_one_percent_within_two_tokens():
    spread = np.arange(1000, 4000, 3)  # 1,000 lengths, no two within 2 tokens
    assert find_caps(spread) == ()
    piled = np.concatenate((spread, [8190] * 4, [8191] * 4, [8192] * 4))  # 12 of 1,012
    assert [(cap.at, cap.share) for cap in find_caps(piled)] == [(8192, pytest.approx(12 / 1012))]
    assert find_caps(np.concatenate((spread, [8189] * 4, [8192] * 5))) == ()  # 3 tokens apart


def test_one_length_is_one_cap():
    (cap,) = find_caps(np.full(10, 512))
    assert (cap.at, cap.share) == (512, 1.0)
    assert find_caps(np.full(9, 512)) == ()  # no pile


def test_unknown_outputs_are_left_out():
    lengths = measure_lengths(make_trace([10, 20, 30], [-1, 4, 8]))
    assert lengths.output is not None
    assert lengths.output.mean == 6.0
    assert measure_lengths(make_trace([10, 20])).output is None


def test_unknown_prompts_are_left_out():
    lengths = measure_lengths(make_trace([10, -1, 30, -1] * 10, [1, 2, 3, 4] * 10))
    assert lengths.prompt is not None
    assert (lengths.prompt.mean, lengths.prompt.p50, lengths.prompt.max) == (20.0, 20.0, 30.0)
    assert [(cap.at, cap.share) for cap in lengths.caps] == [(10, 0.5), (30, 0.5)]
    assert measure_lengths(make_trace([-1, -1])).prompt is None


def test_sums_give_a_mean_and_nothing_else():
    totals = Totals("usage buckets", requests=8, prompt_tokens=1000, output_tokens=60)
    lengths = measure_lengths(make_trace([], totals=totals))
    assert lengths.prompt == Distribution(mean=125.0)
    assert lengths.output == Distribution(mean=7.5)
    assert lengths.caps == ()
    assert measure_lengths(make_trace([], totals=Totals("usage buckets", prompt_tokens=1000))).prompt is None
    # What requests say comes before what sums say.
    both = measure_lengths(make_trace([10, 30], totals=totals))
    assert both.prompt is not None
    assert (both.prompt.mean, both.output) == (20.0, Distribution(mean=7.5))
