"""Every architecture and switch against transformers: logits of all positions, in float64."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from helpers.greedy import reference_model
from helpers.model_driver import OneSequence, load_ranks, logits_of_ranks
from helpers.tiny_model import FAMILIES, LLAMA, OPT, write_tiny_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine.errors import InputError
from engine.model.load import load_model
from engine.split import local_shape, why_not_split

NORM = 1e-5  # transformers rounds its RMS norms to float32
PROMPT = Random(1).choices(range(3, 256), k=150)


def reference_logits(folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = reference_model(folder, torch.float64)(torch.tensor([PROMPT])).logits[0]
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """In one prefill and in two parts, so that windows and positions reach over the cached part."""
    folder = write_tiny_model(tmp_path, FAMILIES[family])
    expected = reference_logits(folder)
    model = load_model(folder, torch.float64)
    for cut in (len(PROMPT), 70):
        sequence = OneSequence(model, len(PROMPT))
        parts = [sequence.logits(part) for part in (PROMPT[:cut], PROMPT[cut:]) if part]
        ours = torch.cat([part for part in parts if part is not None])
        torch.testing.assert_close(ours, expected, rtol=0, atol=NORM)


@pytest.mark.parametrize(
    "family", ["mistral", "qwen2, windows behind", "llama, linear rope", "llama 3", "qwen2, yarn"]
)
def test_the_switch_matters_at_these_lengths(family: str, tmp_path: Path) -> None:
    """Otherwise the comparison above would pass without it."""
    config = FAMILIES[family]
    plain = config | {"sliding_window": None, "use_sliding_window": False, "rope_scaling": None}
    folder, other = write_tiny_model(tmp_path / "a", config), write_tiny_model(tmp_path / "b", plain)
    assert (reference_logits(folder) - reference_logits(other)).abs().max() > 100 * NORM


def test_opt_files_without_the_prefix_are_read_too(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, OPT)
    expected = OneSequence(load_model(folder, torch.float64), 9).logits(PROMPT[:9])
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name.removeprefix("model."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    again = OneSequence(load_model(folder, torch.float64), 9).logits(PROMPT[:9])
    torch.testing.assert_close(again, expected, rtol=0, atol=1e-11)  # memory elsewhere may round otherwise


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_compute_what_one_does(family: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, FAMILIES[family])
    models = load_ranks(folder, 2)
    expected = OneSequence(load_model(folder, torch.float64), len(PROMPT)).logits(PROMPT)
    torch.testing.assert_close(logits_of_ranks(models, PROMPT), expected, rtol=0, atol=1e-11)
    assert [model.local_shape.heads for model in models] == [3, 3]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks"), [(6, 1, 3), (8, 2, 4), (8, 4, 2), (4, 4, 4), (8, 2, 8)]
)
def test_any_ranks_that_divide_heads_compute_the_same(
    heads: int, kv_heads: int, ranks: int, tmp_path: Path
) -> None:
    """With fewer KV heads than ranks, some hold the same one; 254 tokens leave the last rank fewer rows."""
    config = LLAMA | {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": 254}
    folder = write_tiny_model(tmp_path, config | {"attention_bias": True, "mlp_bias": True})
    prompt = [token % 254 for token in PROMPT[:40]]
    expected = OneSequence(load_model(folder, torch.float64), 40).logits(prompt)
    ours = logits_of_ranks(load_ranks(folder, ranks), prompt)
    assert ours.shape == (40, 254)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("config", [LLAMA, OPT], ids=["llama", "opt"])
def test_a_rank_of_two_holds_little_more_than_half(config: dict[str, object], tmp_path: Path) -> None:
    """Only norms, and OPT's positions and biases, are on both; the bound is the issue's."""
    folder = write_tiny_model(tmp_path, config | {"max_position_embeddings": 64})
    whole = load_model(folder, torch.float32)
    tensors = load_file(folder / "model.safetensors")
    assert whole.weight_bytes == 4 * sum(tensor.numel() for tensor in tensors.values())
    for model in load_ranks(folder, 2):
        assert model.weight_bytes / 2 <= 0.55 * whole.weight_bytes


@pytest.mark.parametrize(
    ("changes", "ranks", "why"),
    [
        ({}, 4, "6 attention heads do not divide between 4 ranks"),
        ({"num_key_value_heads": 3}, 2, "3 KV heads do not divide between 2 ranks"),
        ({"intermediate_size": 97}, 2, "the MLP's width 97 does not divide between 2 ranks"),
        ({"vocab_size": 4}, 3, "4 tokens of the vocabulary do not spread over 3 ranks"),
    ],
)
def test_what_does_not_divide_is_refused_by_its_numbers(
    changes: dict[str, object], ranks: int, why: str, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path, LLAMA | {"num_key_value_heads": 6} | changes)
    with pytest.raises(InputError, match="cannot split this model") as caught:
        load_ranks(folder, ranks)
    assert caught.value.why == why


def test_local_shapes_have_a_rank_s_counts(tmp_path: Path) -> None:
    shape = load_model(write_tiny_model(tmp_path), torch.float32).shape
    assert why_not_split(shape, 3) is not None  # 2 KV heads over 3 ranks
    local = local_shape(shape, 6)
    assert (local.heads, local.kv_heads, local.ffn, local.hidden) == (1, 1, 16, 72)
    assert local_shape(shape, 1) == shape


def test_a_rank_reads_its_part_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole tensors are taken only of what every rank holds: norms, and biases behind a sum."""
    whole: list[str] = []

    class Watched:
        def __init__(self, path: Path, framework: str) -> None:
            self._file = safe_open(path, framework=framework)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def get_tensor(self, name: str) -> torch.Tensor:
            whole.append(name)
            return self._file.get_tensor(name)

    monkeypatch.setattr("engine.model.weights.safe_open", Watched)
    folder = write_tiny_model(tmp_path, FAMILIES["llama, biases"])
    load_ranks(folder, 2)
    assert whole
    assert all(name.endswith(("norm.weight", "o_proj.bias", "down_proj.bias")) for name in whole)
