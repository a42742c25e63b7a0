"""The roofline: its terms by hand, and how far it is from measured steps where those are at hand."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from advisor.advice import profiles
from advisor.advice.steps import gpu_device
from engine.shape import ModelShape
from engine.step_time.model import StepShape
from engine.step_time.roofline import Device, RooflineStepTime, cpu_cores

TINY = ModelShape(layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, ffn=16, vocab=32, max_len=128)


def test_terms_add_up_by_hand() -> None:
    device = Device(
        flops=1e6, bytes_per_s=1e6, compute_efficiency=0.5, memory_efficiency=0.25, seconds_per_layer=1e-3
    )
    step = StepShape(prefill=((10, 20),), decode=(30, 40))
    # A layer: q 8x8, k and v 8x4 each, o 8x8, three 8x16 matrices, two norms of 8; embeddings 256.
    layers = 2 * (64 + 32 + 32 + 64 + 3 * 128 + 16) + 8
    pairs = 10 * (20 + 5.5) + 31 + 41
    flops = 2 * layers * 12 + 2 * 256 * 3 + 4 * 2 * 2 * 4 * pairs
    kv_bytes = 2 * 2 * 1 * 4 * 2 * (30 + 30 + 40)
    seconds = flops / 5e5 + ((layers + 256) * 2 + kv_bytes) / 2.5e5 + 2e-3
    assert RooflineStepTime(TINY, device).seconds(step) == pytest.approx(seconds)


def test_tensor_parallelism_divides_work_and_adds_all_reduces() -> None:
    device = Device(flops=1e6, bytes_per_s=1e6, link_bytes_per_s=1e5, seconds_per_layer=0.0)
    step = StepShape(prefill=((16, 0),))
    one, two = (RooflineStepTime(TINY, device, tp).seconds(step) for tp in (1, 2))
    # 2 all-reduces a layer of 16 x 8 two-byte numbers; a ring of 2 moves them once, at half the link's rate.
    all_reduces = 2 * 2 * (8e-6 + 16 * 8 * 2 / 5e4)
    assert two == pytest.approx(one / 2 + all_reduces)


def test_an_empty_step_takes_no_time() -> None:
    assert RooflineStepTime(TINY, cpu_cores(2)).seconds(StepShape()) == 0


def test_two_cores_are_in_the_range_seen_on_server_cores() -> None:
    # Issue 2, "Facts that save time": 13 to 25 ms a decode step, 350 to 500 prompt tokens/s a core in bf16.
    model = RooflineStepTime(profiles.model("smollm2-135m-instruct").shape, cpu_cores(2))
    assert 0.013 < model.seconds(StepShape(decode=(200,))) < 0.025
    rate_per_core = 512 / model.seconds(StepShape(prefill=((512, 0),))) / 2
    assert 300 < rate_per_core < 500


GPUS = {"a100_sxm": "a100-sxm-80g", "h100_sxm": "h100-sxm", "a100_sxm_80g": "a100-sxm-80g"}
MODELS = {
    "llama2-7b": "llama-2-7b",
    "llama2-13b": "llama-2-13b",
    "llama2-70b": "llama-2-70b",
    "mistral-7b": "mistral-7b-v0.3",
}


def test_prints_its_error_on_measured_steps(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No tight bound: the efficiencies were chosen after seeing such steps, so this is no blind test."""
    errors: dict[str, list[float]] = {}
    with (shared / "silicon" / "step_times.csv").open() as file:
        for row in csv.DictReader(file):
            if row["source"] not in ("trtllm09-h100", "trtllm09-a100") or row["model"] not in MODELS:
                continue
            if row["dtype"] != "fp16":
                continue
            batch, new, context = (int(float(row[k] or 0)) for k in ("batch", "new_tokens", "context_tokens"))
            shape = (
                StepShape(prefill=((new // batch, 0),) * batch)
                if row["phase"] == "prefill"
                else StepShape(decode=(context // batch,) * batch)
            )
            model = RooflineStepTime(
                profiles.model(MODELS[row["model"]]).shape, gpu_device(GPUS[row["gpu"]]), int(row["tp"])
            )
            ratio = 1e3 * model.seconds(shape) / float(row["ms"])
            errors.setdefault(f"{row['source']} {row['phase']}", []).append(abs(ratio - 1))
    with capsys.disabled():
        for name, values in sorted(errors.items()):
            p50, p90 = np.percentile(values, (50, 90))
            line = f"\nroofline on {name}, {len(values)} steps: median {p50:.1%}, P90 {p90:.1%}"
            print(line, end="")  # noqa: T201 - the figures are what this test is for
    assert len(errors) == 4
    # A wrong unit or a forgotten term is off by factors, not by tens of percent.
    assert max(np.median(v) for v in errors.values()) < 0.5
