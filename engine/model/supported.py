"""Which models this engine runs, told from config.json before any weight is read. Torch-free.

Owns the list of architectures, the reasons for refusal, the rotary settings and the sliding windows. Every
value of a config.json is foreign: wrong types, signs and sizes are refused too, never computed with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import InputError
from engine.shape import ModelShape

Json = Mapping[str, Any]

_FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "OPTForCausalLM": "opt",
}
ARCHITECTURES = tuple(_FAMILIES)
_ROTARY = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_YARN_NUMBERS = ("beta_fast", "beta_slow", "attention_factor")
# Ours: far above any model that exists, far below what overflows or fills a machine before it fails.
_MOST = {
    "layers": 1024, "hidden": 2**17, "heads": 4096, "kv_heads": 4096, "head_dim": 1024, "ffn": 2**20,
    "vocab": 2**22, "max_len": 2**21,
}  # fmt: skip
_MOST_CONFIG_BYTES = 2**22
_OTHER_HALVES = ("text_config", "llm_config", "language_config")
_OPT_DEFAULTS = {
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
}


@dataclass(frozen=True, slots=True)
class Supported:
    """A model that runs here. `windows`: tokens a layer, 0 for none; empty where no layer has one."""

    architecture: str
    config: Json
    shape: ModelShape
    windows: tuple[int, ...]


def supported_model(folder: Path) -> Supported:
    """Read and judge `folder`'s config.json. Raises InputError for what this engine cannot run."""
    config = _read(folder)
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else "none named"
    if name not in _FAMILIES:
        raise _refused(folder, f"architecture {name[:80]}")
    config["model_type"] = _FAMILIES[name]
    for why in (_quantised(config), _other_arithmetic(config), _other_rotary(config)):
        if why is not None:
            raise _refused(folder, why)
    try:
        shape = ModelShape.from_config(config)
        windows = _windows(config, shape)
    except InputError as error:
        raise _refused(folder, "; ".join(filter(None, (error.message, error.why)))) from None
    why = _impossible(shape)
    if why is not None:
        raise InputError(
            "config.json makes no sense",
            where=str(folder),
            why=why,
            hint="copy config.json again from where the model is from",
        )
    return Supported(name, config, shape, windows)


def rope_settings(config: Json) -> tuple[str, Json]:
    """The kind of rotary scaling and its settings, wherever the config keeps them."""
    settings = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return settings.get("rope_type") or settings.get("type") or "default", settings


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        if path.stat().st_size > _MOST_CONFIG_BYTES:
            raise InputError(
                "config.json makes no sense",
                where=str(path),
                why="it is larger than 4 MB",
                hint="copy config.json again from where the model is from",
            )
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(
            "cannot read config.json",
            where=str(path),
            why=str(error),
            hint="copy config.json again from where the model is from",
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            "config.json is not valid JSON",
            where=str(path),
            why=str(error),
            hint="copy config.json again from where the model is from",
        ) from None
    if not isinstance(config, dict):
        raise InputError(
            "config.json is not a dictionary",
            where=str(path),
            why=type(config).__name__,
            hint="copy config.json again from where the model is from",
        )
    return {key: value for key, value in config.items() if key not in _OTHER_HALVES}


def _refused(folder: Path, why: str) -> InputError:
    return InputError(
        "cannot run this model",
        where=str(folder),
        why=f"{why}; this engine runs {', '.join(ARCHITECTURES)}, not quantised; vLLM and SGLang run others",
        hint=f"advise analyze LOG --model {folder}   (plans for any decoder-only model)",
    )


def _quantised(config: Json) -> str | None:
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    return f"its weights are quantised ({str(method or 'unnamed method')[:40]})"


def _other_arithmetic(config: Json) -> str | None:
    """Switches of these architectures that change the arithmetic to one that is not here."""
    opt = config["model_type"] == "opt"
    key, expected = ("activation_function", "relu") if opt else ("hidden_act", "silu")
    activation = config.get(key) or expected
    if activation != expected:
        return f"{key} is {str(activation)[:40]!r}, not {expected!r}"
    for experts in ("num_local_experts", "n_routed_experts", "num_experts"):
        if config.get(experts):
            return f"it is a mixture of experts ({experts})"
    if not opt:
        return None
    for switch, usual in _OPT_DEFAULTS.items():
        if config.get(switch, usual) is not usual:
            return f"{switch} is {str(config[switch])[:40]}"
    if config.get("word_embed_proj_dim", config.get("hidden_size")) != config.get("hidden_size"):
        return "its embeddings are projected (word_embed_proj_dim)"
    return None


def _other_rotary(config: Json) -> str | None:
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(config.get(key) or {}, dict):
            return f"{key} is not a dictionary"
    kind, settings = rope_settings(config)
    if not isinstance(kind, str) or kind not in _ROTARY:
        return f"rotary scaling {str(kind)[:40]!r} is not one of {', '.join(_ROTARY)}"
    for where in (config, settings):
        if (where.get("partial_rotary_factor") or 1.0) != 1.0:
            return "only a part of each head is rotated (partial_rotary_factor)"
    if any(isinstance(value, dict) for value in settings.values()):
        return "its layers have different rotary settings"
    for name in _ROTARY[kind]:
        if not _positive(settings.get(name)):
            return f"rotary scaling needs a positive {name}, not {str(settings.get(name))[:40]}"
    if kind == "yarn":
        return _other_yarn(settings)
    if kind == "llama3" and not settings["low_freq_factor"] < settings["high_freq_factor"]:
        return "rotary scaling needs low_freq_factor below high_freq_factor"
    return None


def _other_yarn(settings: Json) -> str | None:
    """DeepSeek's additions to YaRN are not here."""
    for name in ("mscale", "mscale_all_dim"):
        if settings.get(name):
            return f"rotary scaling with {name}"
    if settings.get("truncate", True) is not True:
        return "rotary scaling without truncate"
    for name in _YARN_NUMBERS:
        if settings.get(name) is not None and not _positive(settings[name]):
            return f"rotary scaling needs a positive {name}, not {str(settings[name])[:40]}"
    return None


def _positive(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 1e-6 < value < 1e12


def _windows(config: Json, shape: ModelShape) -> tuple[int, ...]:
    """Where a key is missing, what transformers takes: Mistral has a window unless it says null, Qwen none."""
    family = config["model_type"]
    size = config.get("sliding_window", 4096)
    if family == "mistral":
        layers = [True] * shape.layers
    elif family in ("qwen2", "qwen3") and config.get("use_sliding_window"):
        first = config.get("max_window_layers", 28)
        if not isinstance(first, int):
            raise InputError(
                "max_window_layers is not a number",
                why=str(first)[:40],
                hint="copy config.json again from where the model is from",
            )
        kinds = config.get("layer_types")
        layers = [kind == "sliding_attention" for kind in kinds] if kinds else [
            number >= first for number in range(shape.layers)
        ]  # fmt: skip
    else:
        return ()
    if size is None or not any(layers):
        return ()
    if not isinstance(size, int) or isinstance(size, bool) or size < 1 or len(layers) != shape.layers:
        raise InputError(
            "the sliding windows make no sense",
            why=f"{str(size)[:40]}, {len(layers)} layers",
            hint="copy config.json again from where the model is from",
        )
    return tuple(size * sliding for sliding in layers) if size < shape.max_len else ()


def _impossible(shape: ModelShape) -> str | None:
    for name, most in _MOST.items():
        value = getattr(shape, name)
        if not 1 <= value <= most:
            return f"{name} is {value}, outside 1 to {most}"
    if shape.heads % shape.kv_heads:
        return f"{shape.heads} heads do not divide into {shape.kv_heads} groups"
    if shape.head_dim % 2:
        return f"head_dim is {shape.head_dim}, an odd number"
    if not 1 < shape.rope_theta <= 1e12:
        return f"rope_theta is {shape.rope_theta}"
    if not 0 <= shape.norm_eps <= 1:
        return f"rms_norm_eps is {shape.norm_eps}"
    return None
