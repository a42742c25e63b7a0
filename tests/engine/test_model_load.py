"""What a folder must hold to be loaded: files, indexes, tensors and their kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from helpers.model_driver import greedy
from helpers.tiny_model import write_tiny_model
from safetensors.torch import load_file, save_file

from engine.errors import InputError
from engine.executors.torch import TorchExecutor
from engine.model.load import load_model


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


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
        load_model(folder, torch.float32)
    assert why in str(caught.value.why)


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="cannot read the weights"):
        load_model(folder, torch.float32)


def in_parts(folder: Path) -> dict[str, str]:
    """Split the weights of `folder` into two files; the file of each tensor."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {}
    for number, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2]), start=1):
        name = f"model-{number:05}-of-00002.safetensors"
        save_file({one: tensors[one] for one in names}, folder / name)
        places |= dict.fromkeys(names, name)
    return places


def write_index(folder: Path, places: object) -> None:
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("indexed", [False, True])
def test_files_in_parts_are_one_model(indexed: bool, tmp_path: Path) -> None:
    whole, parts = write_tiny_model(tmp_path / "whole"), write_tiny_model(tmp_path / "parts")
    places = in_parts(parts)
    if indexed:
        write_index(parts, places)
    outputs = [greedy(load_model(folder, torch.float64), [5, 6, 7], 20) for folder in (whole, parts)]
    assert outputs[0] == outputs[1]


def test_only_files_of_the_index_count(tmp_path: Path) -> None:
    """Mistral's repositories hold a second copy under other names; a stale file has other weights."""
    folder = write_tiny_model(tmp_path / "a")
    expected = greedy(load_model(folder, torch.float64), [5, 6, 7], 20)
    write_index(folder, in_parts(folder))
    save_file({"layers.0.attention.wq.weight": torch.ones(2)}, folder / "consolidated.safetensors")
    stale = write_tiny_model(tmp_path / "b", seed=9)
    (stale / "model.safetensors").rename(folder / "model.safetensors")
    assert greedy(load_model(folder, torch.float64), [5, 6, 7], 20) == expected


def test_a_file_of_the_index_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    write_index(folder, in_parts(folder))
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match="a file of the weights is missing") as caught:
        load_model(folder, torch.float32)
    assert "model-00002-of-00002.safetensors" in str(caught.value.why)


def test_a_tensor_that_is_not_where_the_index_says_is_named(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    places = in_parts(folder)
    places["model.norm.weight"] = next(
        other for other in places.values() if other != places["model.norm.weight"]
    )
    write_index(folder, places)
    with pytest.raises(InputError) as caught:
        load_model(folder, torch.float32)
    assert "lacks model.norm.weight" in str(caught.value.why)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    in_parts(folder)
    save_file({"model.norm.weight": torch.ones(72)}, folder / "other.safetensors")
    with pytest.raises(InputError) as caught:
        load_model(folder, torch.float32)
    assert "model.norm.weight is in other.safetensors and in another file" in str(caught.value.why)


@pytest.mark.parametrize(
    "places",
    [
        {"model.norm.weight": "../outside.safetensors"},
        {"model.norm.weight": "/etc/passwd"},
        {"model.norm.weight": "weights.bin"},
        {"model.norm.weight": 7},
        {},
        [],
        None,
    ],
)
def test_an_index_names_files_beside_it_or_is_refused(places: object, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    write_index(folder, places)
    with pytest.raises(InputError, match="the index of the weights is not usable"):
        load_model(folder, torch.float32)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_an_index_that_is_not_one_is_refused(text: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InputError, match="the index of the weights is not usable"):
        load_model(folder, torch.float32)


def test_weights_of_integers_are_refused(tmp_path: Path) -> None:
    """Packed four-bit weights and fp8 without its scales would load, and answer nonsense."""
    folder = write_tiny_model(tmp_path)
    edit_weights(folder, lambda t: t.update({"model.norm.weight": torch.ones(72, dtype=torch.int8)}))
    with pytest.raises(InputError) as caught:
        load_model(folder, torch.float32)
    assert "model.norm.weight holds I8" in str(caught.value.why)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError) as caught:
        load_model(folder, torch.float32)
    assert caught.value.why == "there is no *.safetensors file"


def test_damaged_files_are_refused_or_load(tmp_path: Path) -> None:
    """Flipped bytes in the header of a safetensors file: never anything but an InputError."""
    folder = write_tiny_model(tmp_path)
    path, random = folder / "model.safetensors", Random(5)
    sound = path.read_bytes()
    header = int.from_bytes(sound[:8], "little") + 8
    refused = 0
    for _ in range(200):
        data = bytearray(sound)
        for _ in range(random.choice([1, 4])):
            data[random.randrange(header)] = random.randrange(256)
        path.unlink()  # the old one may still be mapped
        path.write_bytes(data)
        try:
            load_model(folder, torch.float32)
        except InputError:
            refused += 1
    assert refused > 150


def test_unused_head_of_a_tied_model_is_accepted(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    edit_config(folder, tie_word_embeddings=True)
    load_model(folder, torch.float32)


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    with pytest.raises(InputError, match="unknown dtype"):
        TorchExecutor(folder, dtype="int8", threads=1, num_blocks=4, block_size=16)
