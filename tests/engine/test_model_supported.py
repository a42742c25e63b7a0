"""What is refused from config.json alone, before a weight is read, and how."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from helpers.tiny_model import FAMILIES, LLAMA, MISTRAL, OPT, QWEN2, QWEN3

import engine.model.supported
from engine.errors import InputError
from engine.model.load import load_model
from engine.model.supported import ARCHITECTURES, supported_model

LONG = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def write_config(folder: Path, config: object) -> Path:
    """A folder that holds nothing else: whatever is refused is refused without weights."""
    (folder / "config.json").write_text(json.dumps(config))
    return folder


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": (
        LLAMA | {"architectures": ["MixtralForCausalLM"]},
        "architecture MixtralForCausalLM",
    ),
    "no architecture": (LLAMA | {"architectures": None}, "architecture none named"),
    "awq": (LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantised (awq)"),
    "gptq": (QWEN2 | {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised (gptq)"),
    "fp8": (QWEN3 | {"quantization_config": {"quant_method": "fp8"}}, "quantised (fp8)"),
    "bitsandbytes": (
        LLAMA | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        "quantised (bitsandbytes)",
    ),
    "another activation": (LLAMA | {"hidden_act": "gelu"}, "hidden_act is 'gelu', not 'silu'"),
    "an OPT of gelu": (OPT | {"activation_function": "gelu"}, "activation_function is 'gelu', not 'relu'"),
    "experts": (LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2}, "mixture of experts"),
    "longrope": (LLAMA | {"rope_scaling": LONG}, "'longrope' is not one of default, linear, llama3, yarn"),
    "yarn of DeepSeek": (LLAMA | {"rope_scaling": YARN | {"mscale": 1.0}}, "rotary scaling with mscale"),
    "yarn of gpt-oss": (LLAMA | {"rope_scaling": YARN | {"truncate": False}}, "without truncate"),
    "dynamic": (LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not one of"),
    "longrope, as transformers 5 writes it": (
        LLAMA | {"rope_parameters": LONG | {"rope_theta": 10000.0}},
        "'longrope' is not one of",
    ),
    "half of each head rotated": (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "opt-350m's norms": (OPT | {"do_layer_norm_before": False}, "do_layer_norm_before is False"),
    "opt-350m's embeddings": (OPT | {"word_embed_proj_dim": 48}, "word_embed_proj_dim"),
    "galactica": (OPT | {"enable_bias": False}, "enable_bias is False"),
    "images": (LLAMA | {"vision_config": {}}, "cannot be planned for"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_reason_and_the_list_of_what_runs(case: str, tmp_path: Path) -> None:
    config, why = REFUSED[case]
    with pytest.raises(InputError, match="cannot run this model") as caught:
        load_model(write_config(tmp_path, config), torch.float32)
    assert why in str(caught.value.why)
    assert all(name in str(caught.value.why) for name in ARCHITECTURES)
    assert str(caught.value.hint).startswith("advise analyze LOG --model ")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_supported_says_so_without_weights(family: str, tmp_path: Path) -> None:
    found = supported_model(write_config(tmp_path, FAMILIES[family]))
    assert found.architecture in ARCHITECTURES
    assert (found.shape.layers, found.shape.heads, found.shape.vocab) == (2, 6, 256)


SILENT = {key: value for key, value in MISTRAL.items() if key != "sliding_window"}


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (LLAMA | {"sliding_window": 16}, ()),
        (MISTRAL, (40, 40)),
        (MISTRAL | {"sliding_window": None}, ()),
        (MISTRAL | {"sliding_window": 4096}, ()),  # nothing is longer than 1,024 tokens
        ({key: MISTRAL[key] for key in MISTRAL if key != "sliding_window"}, ()),
        (
            {key: MISTRAL[key] for key in MISTRAL if key != "sliding_window"}
            | {"max_position_embeddings": 8192},
            (4096, 4096),
        ),
        (QWEN2 | {"sliding_window": 16}, ()),
        (QWEN2 | {"sliding_window": 16, "use_sliding_window": True}, ()),  # max_window_layers is 28
        (QWEN2 | {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 0}, (16, 16)),
        (QWEN3 | {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, (0, 16)),
    ],
)
def test_windows_are_those_that_transformers_makes_of_a_config(
    config: dict[str, Any], windows: tuple[int, ...], tmp_path: Path
) -> None:
    assert supported_model(write_config(tmp_path, config)).windows == windows


NONSENSE: list[Any] = [
    None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**30, 0.5, -2.5, 1e300, float("nan"), float("inf"), "", "8",
    "x" * 1000, [], [1], {}, {"a": 1}, [[]], "silu", "relu",
]  # fmt: skip
KEYS = [
    "architectures", "hidden_act", "num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size",
    "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings", "rope_theta",
    "rms_norm_eps", "tie_word_embeddings", "rope_scaling", "rope_parameters", "sliding_window",
    "use_sliding_window", "max_window_layers", "layer_types", "quantization_config", "attention_bias",
    "mlp_bias", "text_config", "vision_config", "num_experts", "num_local_experts", "ffn_dim", "n_layer",
    "activation_function", "do_layer_norm_before", "word_embed_proj_dim", "partial_rotary_factor",
    "kv_lora_rank", "model_type", "num_kv_heads", "bias", "multi_query",
]  # fmt: skip
ROPE_KEYS = [
    "rope_type", "type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    "rope_theta", "partial_rotary_factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "truncate",
]  # fmt: skip


def test_nonsense_in_a_config_is_refused_or_harmless(tmp_path: Path) -> None:
    """Every key with every value, and 1,000 mixtures: an InputError, or a shape within bounds."""
    random = Random(2)
    families = list(FAMILIES.values())
    cases = [{key: value} for key in KEYS for value in NONSENSE]
    cases += [{key: random.choice(NONSENSE) for key in random.sample(KEYS, 3)} for _ in range(1000)]
    refused = 0
    for number, changes in enumerate(cases):
        config = dict(families[number % len(families)]) | changes
        if number % 3 == 0 and isinstance(config.get("rope_scaling"), dict):
            changed = {random.choice(ROPE_KEYS): random.choice(NONSENSE)}
            config["rope_scaling"] = config["rope_scaling"] | changed
        try:
            found = supported_model(write_config(tmp_path, config))
        except InputError:
            refused += 1
            continue
        shape = found.shape
        assert shape.heads % shape.kv_heads == 0
        assert all(
            0 < getattr(shape, name) < 2**23 for name in ("layers", "hidden", "head_dim", "ffn", "vocab")
        )
        assert len(found.windows) in (0, shape.layers)
    assert len(cases) / 4 < refused < len(cases)


@pytest.mark.parametrize("text", ["", "[]", "7", "{", "\xff", "[" * 100_000, '{"a": ' * 100_000])
def test_a_config_that_is_not_one_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"config\.json"):
        supported_model(tmp_path)


def test_a_missing_or_enormous_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read config"):
        supported_model(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * (2**22 + 1))
    with pytest.raises(InputError, match="makes no sense"):
        supported_model(tmp_path)


def test_asking_loads_no_torch() -> None:
    code = "import sys, engine.model.supported, engine.split; sys.exit('torch' in sys.modules)"
    root = Path(engine.model.supported.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
