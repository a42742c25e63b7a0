"""A model folder's safetensors to a Decoder.

Owns the parameter names of the Hugging Face format, the packing of fused projections and the checks of
shapes. Files are mapped, not read: what needs no packing or conversion stays shared between processes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import InputError
from engine.model.decoder import Decoder, Layer
from engine.model.linear import Linear
from engine.shape import ModelShape

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


def load_decoder(folder: Path, dtype: torch.dtype) -> Decoder:
    """Load `folder` with weights in `dtype`. Raises InputError for what this engine cannot run."""
    config = _config(folder)
    shape = ModelShape.from_config(config)
    weights = _Weights(folder, dtype)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    embeddings = weights.take("model.embed_tokens.weight", shape.vocab, shape.hidden)
    layers = tuple(_layer(weights, f"model.layers.{number}", shape, q, kv) for number in range(shape.layers))
    norm = weights.take("model.norm.weight", shape.hidden)
    if shape.tied_embeddings:
        head = embeddings
        weights.skip("lm_head.weight")
    else:
        head = weights.take("lm_head.weight", shape.vocab, shape.hidden)
    weights.refuse_leftovers()
    return Decoder(
        shape,
        embeddings=embeddings,
        layers=layers,
        norm=norm,
        head=Linear(head),
        frequencies=rotary_frequencies(shape, config, str(folder)),
    )


def rotary_frequencies(shape: ModelShape, config: Mapping[str, Any], where: str) -> torch.Tensor:
    """Radians a position for each pair of a head, [head_dim / 2] float32, with Llama 3's scaling if asked.

    Llama 3 stretches wavelengths longer than the original context by `factor` and blends those near it
    (Llama 3.1 reference code).
    """
    pairs = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
    frequencies = torch.tensor(shape.rope_theta) ** -pairs
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return frequencies
    if kind != "llama3":
        raise InputError("cannot run this model", where=where, why=f"rotary scaling {kind!r} is not supported")
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    scaled: torch.Tensor = (1 - blend) * frequencies / scaling["factor"] + blend * frequencies
    return scaled


def _config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    names = config.get("architectures") or ["none named"]
    if names[0] not in ARCHITECTURES:
        raise InputError(
            "cannot run this model",
            where=str(folder),
            why=f"architecture {names[0]}; this engine runs {', '.join(ARCHITECTURES)}",
        )
    return config


def _layer(weights: _Weights, name: str, shape: ModelShape, q: int, kv: int) -> Layer:
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    qkv = [(f"{attention}.{part}_proj", rows) for part, rows in (("q", q), ("k", kv), ("v", kv))]
    bias = None
    if shape.qkv_bias:
        bias = torch.cat([weights.take(f"{part}.bias", rows) for part, rows in qkv])
    gate_up = [weights.take(f"{mlp}.{part}_proj.weight", shape.ffn, shape.hidden) for part in ("gate", "up")]
    qk_norm = [
        weights.take(f"{attention}.{part}_norm.weight", shape.head_dim) if shape.qk_norm else None
        for part in ("q", "k")
    ]
    return Layer(
        attention_norm=weights.take(f"{name}.input_layernorm.weight", shape.hidden),
        qkv=Linear(torch.cat([weights.take(f"{part}.weight", rows, shape.hidden) for part, rows in qkv]), bias),
        q_norm=qk_norm[0],
        k_norm=qk_norm[1],
        out=Linear(weights.take(f"{attention}.o_proj.weight", shape.hidden, q)),
        ffn_norm=weights.take(f"{name}.post_attention_layernorm.weight", shape.hidden),
        gate_up=Linear(torch.cat(gate_up)),
        down=Linear(weights.take(f"{mlp}.down_proj.weight", shape.hidden, shape.ffn)),
    )


class _Weights:
    """The folder's tensors by name; each is taken once, and none may be left over."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._folder = folder
        self._dtype = dtype
        self._files: dict[str, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            try:
                file = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise InputError("cannot read the weights", where=str(path), why=str(error)) from None
            self._files |= dict.fromkeys(file.keys(), file)  # type: ignore[no-untyped-call]

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor `name`, which must have `shape`."""
        if name not in self._files:
            raise self._unusable(f"there is no tensor {name}")
        tensor: torch.Tensor = self._files.pop(name).get_tensor(name)
        if tensor.shape != shape:
            raise self._unusable(f"{name} is {list(tensor.shape)}, config.json says {list(shape)}")
        return tensor.to(self._dtype)

    def skip(self, name: str) -> None:
        """Accept a tensor that is not needed."""
        self._files.pop(name, None)

    def refuse_leftovers(self) -> None:
        """A tensor that nobody took means a model that differs from ours, and would answer wrongly."""
        left = [name for name in self._files if not name.endswith("rotary_emb.inv_freq")]
        if left:
            raise self._unusable(f"{len(left)} tensors have no place, the first is {left[0]}")

    def _unusable(self, why: str) -> InputError:
        return InputError("the weights do not fit config.json", where=str(self._folder), why=why)
