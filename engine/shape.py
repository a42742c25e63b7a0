"""The sizes of a dense decoder-only model: enough to place it, count its memory and time its steps.

Owns the arithmetic from sizes to parameters and KV bytes, for the Llama and Qwen families: gated MLP,
RMSNorm, rotary positions, grouped KV heads. Holds no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import InputError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one model. `qkv_bias`: biases on q, k and v (Qwen2); `qk_norm`: norms on q and k (Qwen3)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_len: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Read the dictionary of a Hugging Face `config.json`. Raises InputError where a size is missing."""
        try:
            hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            rope = config.get("rope_parameters") or {}  # transformers 5 keeps rotary settings here
            family = config.get("model_type")
            return cls(
                layers=int(config["num_hidden_layers"]),
                hidden=hidden,
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden // heads),
                ffn=int(config["intermediate_size"]),
                vocab=int(config["vocab_size"]),
                max_len=int(config["max_position_embeddings"]),
                rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or 10_000.0),
                norm_eps=float(config.get("rms_norm_eps", 1e-6)),
                tied_embeddings=bool(config.get("tie_word_embeddings", False)),
                qkv_bias=family == "qwen2",
                qk_norm=family == "qwen3",
            )
        except KeyError as error:
            raise InputError(
                f"config.json has no {error.args[0]}",
                why="a Llama or Qwen family config is needed",
            ) from None

    @property
    def parameters(self) -> int:
        """Weights of the whole model, elements; tied embeddings count once."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * (q + kv)
        if self.qkv_bias:
            attention += q + 2 * kv
        if self.qk_norm:
            attention += 2 * self.head_dim
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return embeddings + self.layers * layer + self.hidden

    def weight_bytes(self, bytes_per_element: float = 2) -> int:
        """Bytes of all weights in a number format."""
        return round(self.parameters * bytes_per_element)

    def kv_bytes_per_token(self, bytes_per_element: float = 2) -> int:
        """KV bytes of one token over all layers and heads, before any tensor-parallel split (DistServe)."""
        return round(2 * self.layers * self.kv_heads * self.head_dim * bytes_per_element)
