"""Step times on pipeline stages: by hand, and their hops beside those measured between GPUs."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest
from helpers.simulating import Affine

from engine.step_time.model import StepShape
from engine.step_time.pipelined import PipelinedStepTime

STEP = StepShape(((100, 0),), 28, 7000)


def test_stages_take_as_long_together_plus_a_hop_each() -> None:
    """128 tokens of 1,000 two-byte numbers, over a link of 1 GB/s of which three quarters come out."""
    three = PipelinedStepTime(Affine(fixed=0.03), 3, layers=30, hidden=1000, link_bytes_per_s=1e9)
    assert three.seconds(STEP) == pytest.approx(0.03 + 2 * (10e-6 + 128 * 2000 / 0.75e9))


@pytest.mark.parametrize(("pp", "fullest"), [(2, 31), (4, 16), (8, 8)])
def test_every_stage_takes_as_long_as_the_fullest(pp: int, fullest: int) -> None:
    """DeepSeek-V3 has 61 layers, a prime: of 2 stages one has 31, of 4 one has 16, of 8 one has 8."""
    staged = PipelinedStepTime(Affine(fixed=0.061), pp, layers=61, hidden=7168, link_bytes_per_s=1e30)
    assert staged.seconds(STEP) / pp == pytest.approx(0.001 * fullest, abs=11e-6)


@pytest.mark.parametrize("size", [2048, 65_536, 1 << 20, 8 << 20, 64 << 20])
def test_a_hop_takes_what_a_send_and_receive_took(size: int, shared: Path) -> None:
    """NCCL between two A100s of a DGX, 300 GB/s a direction, measured by Vidur."""
    with gzip.open(shared / "silicon/ops/vidur_network.csv.gz", "rt") as lines:
        rows = [row for row in csv.DictReader(lines) if (row["op"], row["fabric"]) == ("send_recv", "a100_dgx")]
    near = [row for row in rows if row["gpus_per_node"] == "2"]
    measured = min(near, key=lambda row: abs(float(row["bytes"]) - size))
    tokens = round(float(measured["bytes"]) / 2048)
    two = PipelinedStepTime(Affine(), 2, layers=2, hidden=1024, link_bytes_per_s=300e9)
    predicted = two.seconds(StepShape(((tokens, 0),)))
    assert predicted == pytest.approx(float(measured["ms"]) / 1e3, rel=0.5)
