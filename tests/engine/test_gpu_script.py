"""The script for a machine with a GPU, run at toy size on the CPU, so that it is ready when there is one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.interpreter import interpreted

from benchmarks.gpu import setup

ROOT = Path(__file__).resolve().parent.parent.parent

pytest.importorskip("triton")


@pytest.mark.slow
def test_every_section_runs_and_says_what_it_measured() -> None:
    argv = [sys.executable, "-m", "benchmarks.gpu", "--toy"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "right"
    assert len(re.findall(r"^attention, (?:decode|prefill|mixed) +float(?:16|32)", done.stdout, re.M)) == 6
    assert "4 tokens each: 0 differ" in done.stdout
    # Ours, its share of the limit, without graphs, transformers.
    assert len(re.findall(r"^decode, batch \d+ +[\d.]+ +[\d.]+% +[\d.]+ +[\d.]+$", done.stdout, re.M)) == 2
    assert re.search(r"^prefill 48 +[\d.]+ +[\d.]+% +[\d.]+$", done.stdout, re.M)
    assert "(step times calibrated)" in done.stdout
    for name in ("attainment", "TTFT p90 s", "TPOT p90 s", "TBT p99 s"):
        assert re.search(rf"^{name} +[\d.]+ +[\d.]+$", done.stdout, re.M), name


def test_without_a_gpu_it_says_so_and_measures_nothing() -> None:
    argv = [sys.executable, "-m", "benchmarks.gpu"]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "no CUDA GPU here; --toy runs the same code on a CPU\n"


@interpreted
def test_a_wrong_kernel_is_found(tmp_path: Path) -> None:
    from benchmarks import _gpu_kernels
    from engine.kernels.ops import TritonOps

    toy = setup(toy=True, seed=1, scratch=tmp_path)
    assert _gpu_kernels.compare_kernels(toy)
    right = TritonOps.gated
    try:
        TritonOps.gated = lambda self, gate_up: right(self, gate_up) * 1.001  # type: ignore[method-assign]
        assert not _gpu_kernels.compare_kernels(toy)
        TritonOps.gated = lambda self, gate_up: right(self, gate_up) * float("nan")  # type: ignore[method-assign]
        assert not _gpu_kernels.compare_kernels(toy)
    finally:
        TritonOps.gated = right  # type: ignore[method-assign]
