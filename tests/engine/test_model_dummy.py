"""Random weights from config.json alone, and the lines about progress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.model_driver import OneSequence, load_ranks, logits_of_ranks
from helpers.tiny_model import FAMILIES, LLAMA, write_tiny_model

import engine.progress
from engine.errors import InputError
from engine.model.load import load_model
from engine.progress import Tenths

PROMPT = [(7 * n) % 250 + 3 for n in range(60)]


def config_alone(folder: Path, config: dict[str, object]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_dummy_weights_have_the_bytes_of_real_ones(family: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, FAMILIES[family])
    real = load_model(folder, torch.float32)
    (folder / "model.safetensors").unlink()
    dummy = load_model(folder, torch.float32, dummy=True)
    assert dummy.weight_bytes == real.weight_bytes
    assert (dummy.shape, dummy.windows) == (real.shape, real.windows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_activations_stay_finite_through_many_layers(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = config_alone(tmp_path, LLAMA | {"num_hidden_layers": 40})
    sequence = OneSequence(load_model(folder, dtype, dummy=True), len(PROMPT), dtype)
    logits = sequence.logits(PROMPT)
    assert logits is not None
    assert logits.isfinite().all()
    assert 0.1 < logits.float().std() < 10


def test_dummy_weights_are_the_same_every_time_and_differ_by_name(tmp_path: Path) -> None:
    folder = config_alone(tmp_path, LLAMA)
    first, second = (
        OneSequence(load_model(folder, torch.float64, dummy=True), 60).logits(PROMPT) for _ in range(2)
    )
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)
    assert (first[1:] - first[:-1]).abs().max(dim=-1).values.min() > 1e-3


def test_ranks_hold_parts_of_the_same_dummy(tmp_path: Path) -> None:
    folder = config_alone(tmp_path, LLAMA)
    alone = OneSequence(load_model(folder, torch.float64, dummy=True), 60).logits(PROMPT)
    ranks = logits_of_ranks(load_ranks(folder, 2, dummy=True), PROMPT)
    torch.testing.assert_close(ranks, alone, rtol=0, atol=1e-11)


def test_what_cannot_run_is_refused_as_a_dummy_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot run this model"):
        load_model(config_alone(tmp_path, LLAMA | {"hidden_act": "gelu"}), torch.float32, dummy=True)


def test_a_line_for_every_tenth_of_a_large_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder, lines = config_alone(tmp_path, LLAMA | {"num_hidden_layers": 7}), list[str]()
    load_model(folder, torch.float32, dummy=True, progress=lines.append)
    assert lines == [], "a small one is done before anyone asks"
    monkeypatch.setattr(engine.progress, "QUIET_BYTES", 1)
    load_model(folder, torch.float32, dummy=True, progress=lines.append)
    assert lines == [f"loading weights {percent} %" for percent in (10, 20, 40, 50, 70, 80, 100)]


def test_tenths_are_said_once_and_never_beyond_the_whole() -> None:
    lines: list[str] = []
    tenths = Tenths("x", 2**31, lines.append)
    for _ in range(70):
        tenths.add(2**25)
    assert lines == [f"x {percent} %" for percent in range(10, 101, 10)]
