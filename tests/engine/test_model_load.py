"""What a folder must hold to be loaded, and rotary scaling, against transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.greedy import decode_alone, reference_greedy, reference_model
from helpers.tiny_model import LLAMA, write_tiny_model
from safetensors.torch import load_file, save_file

from engine.errors import InputError
from engine.executors.torch import TorchExecutor
from engine.model.load import ARCHITECTURES, load_decoder

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_an_unknown_architecture_is_refused_with_the_list(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    edit_config(folder, architectures=["MixtralForCausalLM"])
    with pytest.raises(InputError) as caught:
        load_decoder(folder, torch.float32)
    assert all(name in str(caught.value.why) for name in ("MixtralForCausalLM", *ARCHITECTURES))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.pop("model.norm.weight"), "there is no tensor model.norm.weight"),
        (lambda t: t.update({"model.layers.2.x.weight": torch.ones(1)}), "model.layers.2.x.weight"),
        (
            lambda t: t.update({"lm_head.weight": torch.ones(250, 72)}),
            r"lm_head.weight is [250, 72], config.json says [256, 72]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], why: str
) -> None:
    folder = write_tiny_model(tmp_path)
    edit_weights(folder, change)
    with pytest.raises(InputError, match="the weights do not fit") as caught:
        load_decoder(folder, torch.float32)
    assert why in str(caught.value.why)


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="cannot read the weights"):
        load_decoder(folder, torch.float32)


def test_files_in_parts_are_one_model(tmp_path: Path) -> None:
    whole, parts = write_tiny_model(tmp_path / "whole"), write_tiny_model(tmp_path / "parts")
    tensors = load_file(parts / "model.safetensors")
    (parts / "model.safetensors").unlink()
    names = sorted(tensors)
    for number, some in enumerate((names[::2], names[1::2]), start=1):
        save_file({name: tensors[name] for name in some}, parts / f"model-{number}-of-2.safetensors")
    outputs = []
    for folder in (whole, parts):
        with TorchExecutor(folder, dtype="float64", threads=1, num_blocks=9, block_size=16) as executor:
            outputs.append(decode_alone(executor, [5, 6, 7], 20))
    assert outputs[0] == outputs[1]


def test_unused_head_of_a_tied_model_is_accepted(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    edit_config(folder, tie_word_embeddings=True)
    load_decoder(folder, torch.float32)


def test_llama3_rotary_scaling_matches_transformers(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, LLAMA | {"rope_scaling": LLAMA3_SCALING})
    prompt = [(7 * n) % 250 + 3 for n in range(300)]
    expected = reference_greedy(reference_model(folder, torch.float64), prompt, 24).tokens
    with TorchExecutor(folder, dtype="float64", threads=1, num_blocks=30, block_size=16) as executor:
        assert decode_alone(executor, prompt, 24) == expected
    edit_config(folder, rope_scaling=None)
    with TorchExecutor(folder, dtype="float64", threads=1, num_blocks=30, block_size=16) as executor:
        assert decode_alone(executor, prompt, 24) != expected


def test_other_rotary_scaling_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})
    with pytest.raises(InputError) as caught:
        load_decoder(folder, torch.float32)
    assert "'yarn'" in str(caught.value.why)


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    with pytest.raises(InputError, match="unknown dtype"):
        TorchExecutor(folder, dtype="int8", threads=1, num_blocks=4, block_size=16)
