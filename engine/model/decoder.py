"""The decoder of the Llama family: Llama, SmolLM2, Mistral, TinyLlama, Yi, Qwen2 and Qwen3, by switches.

RMSNorm, rotary positions (half-rotation), grouped-query attention through an AttentionBackend, SwiGLU, tied
or untied embeddings. Heads and the MLP's width may be one rank's part. Stateless: what must be remembered
between steps is the backend's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from engine.attention.base import AttentionBackend
from engine.model.collective import Collective
from engine.model.linear import GatedLinear, Linear
from engine.model.ops import Ops
from engine.model.vocabulary import Vocabulary
from engine.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer; q, k and v are packed. Heads and ffn are local."""

    attention_norm: torch.Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 * kv_heads) * head_dim
    q_norm: torch.Tensor | None  # [head_dim]
    k_norm: torch.Tensor | None  # [head_dim]
    out: Linear  # heads * head_dim -> hidden
    ffn_norm: torch.Tensor  # [hidden]
    gated: GatedLinear  # hidden -> ffn
    down: Linear  # ffn -> hidden


@dataclass(frozen=True, slots=True)
class Decoder:
    """`Model` of the Llama family. Raises nothing of its own; sizes were checked at load.

    cos, sin: [max_len, 1, head_dim], the sine's first half negative.
    """

    shape: ModelShape
    local_shape: ModelShape
    windows: tuple[int, ...]
    weight_bytes: int
    vocabulary: Vocabulary
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    ops: Ops
    collective: Collective

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        sampled: torch.Tensor,
        attention: AttentionBackend[Any],
        meta: Any,
    ) -> torch.Tensor | None:
        """Logits of the tokens that are sampled from; see `Model`."""
        ops, reduce, eps = self.ops, self.collective.sum, self.shape.norm_eps
        cos, sin = self.cos[positions], self.sin[positions]  # [tokens, 1, head_dim]
        hidden = self.vocabulary.embed(ids)  # [tokens, hidden]
        normed = ops.norm(hidden, self.layers[0].attention_norm, eps)
        last = len(self.layers) - 1
        branch = hidden  # what the last block adds to `hidden`; none has run yet
        for number, layer in enumerate(self.layers):
            if number:
                normed, hidden = ops.add_norm(branch, hidden, layer.attention_norm, eps)
            q, k, v = self._heads(layer, normed, cos, sin)
            attended = attention.attend(number, q, k, v, meta)  # [tokens, heads, head_dim]
            if number == last:  # from here on a token only counts if something is drawn from it
                attended, hidden = attended[sampled], hidden[sampled]
            branch = reduce(layer.out(attended.flatten(1)))
            normed, hidden = ops.add_norm(branch, hidden, layer.ffn_norm, eps)
            branch = reduce(layer.down(layer.gated(normed)))
        normed, _ = ops.add_norm(branch, hidden, self.norm, eps)
        return self.vocabulary.logits(normed)

    def _heads(
        self, layer: Layer, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries and keys, rotated, and values: [tokens, heads or kv_heads, head_dim]."""
        shape, ops = self.local_shape, self.ops
        qkv = layer.qkv(normed).view(len(normed), -1, shape.head_dim)
        qk, v = torch.split(qkv, [shape.heads + shape.kv_heads, shape.kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = torch.split(qk, [shape.heads, shape.kv_heads], dim=1)
            q = ops.norm(q, layer.q_norm, shape.norm_eps)
            k = ops.norm(k, layer.k_norm, shape.norm_eps)
            qk = torch.cat((q, k), dim=1)
        q, k = torch.split(ops.rotate(qk, cos, sin), [shape.heads, shape.kv_heads], dim=1)
        return q, k, v
