"""The one decoder of this engine: the Llama family, and Qwen2 and Qwen3 by two switches.

RMSNorm, rotary positions (half-rotation), grouped-query attention through an AttentionBackend, SwiGLU, tied
or untied embeddings. Stateless: what must be remembered between steps is the backend's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import embedding, rms_norm, silu

from engine.attention.base import AttentionBackend
from engine.model.linear import Linear
from engine.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer; q, k and v are packed, and so are gate and up."""

    attention_norm: torch.Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 * kv_heads) * head_dim
    q_norm: torch.Tensor | None  # [head_dim]
    k_norm: torch.Tensor | None  # [head_dim]
    out: Linear  # heads * head_dim -> hidden
    ffn_norm: torch.Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 * ffn
    down: Linear  # ffn -> hidden


class Decoder:
    """Runs query tokens through the layers. Raises nothing of its own; sizes were checked at load."""

    def __init__(
        self,
        shape: ModelShape,
        *,
        embeddings: torch.Tensor,
        layers: tuple[Layer, ...],
        norm: torch.Tensor,
        head: Linear,
        frequencies: torch.Tensor,
    ) -> None:
        self.shape = shape
        self._embeddings = embeddings  # [vocab, hidden]
        self._layers = layers
        self._norm = norm
        self._head = head
        self._cos, self._sin = _rotary_tables(frequencies, shape.max_len, embeddings.dtype)

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        sampled: torch.Tensor,
        attention: AttentionBackend[Any],
        meta: Any,
    ) -> torch.Tensor:
        """Logits of the tokens that are sampled from.

        ids, positions: [tokens] int64; sampled: [samples] indices into them; `meta` is the backend's plan of
        the step. Returns [samples, vocab].
        """
        shape = self.shape
        cos, sin = self._cos[positions], self._sin[positions]  # [tokens, 1, head_dim]
        hidden = embedding(ids, self._embeddings)  # [tokens, hidden]
        for number, layer in enumerate(self._layers):
            normed = rms_norm(hidden, (shape.hidden,), layer.attention_norm, shape.norm_eps)
            q, k, v = self._heads(layer, normed, cos, sin)
            attended = attention.attend(number, q, k, v, meta)  # [tokens, heads, head_dim]
            hidden = hidden + layer.out(attended.flatten(1))
            normed = rms_norm(hidden, (shape.hidden,), layer.ffn_norm, shape.norm_eps)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            hidden = hidden + layer.down(silu(gate) * up)
        hidden = rms_norm(hidden[sampled], (shape.hidden,), self._norm, shape.norm_eps)
        return self._head(hidden)

    def _heads(
        self, layer: Layer, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries and keys, rotated, and values: [tokens, heads or kv_heads, head_dim]."""
        shape = self.shape
        qkv = layer.qkv(normed).view(len(normed), -1, shape.head_dim)
        qk, v = torch.split(qkv, [shape.heads + shape.kv_heads, shape.kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = torch.split(qk, [shape.heads, shape.kv_heads], dim=1)
            q = rms_norm(q, (shape.head_dim,), layer.q_norm, shape.norm_eps)
            k = rms_norm(k, (shape.head_dim,), layer.k_norm, shape.norm_eps)
            qk = torch.cat((q, k), dim=1)
        # Swapping the halves of a head and giving the sine a sign is the rotation, in three operations.
        qk = torch.addcmul(qk * cos, qk.roll(shape.head_dim // 2, dims=-1), sin)
        q, k = torch.split(qk, [shape.heads, shape.kv_heads], dim=1)
        return q, k, v


def _rotary_tables(
    frequencies: torch.Tensor, max_len: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and signed sine of every position, [max_len, 1, head_dim]; frequencies: [head_dim / 2] float32."""
    angles = torch.arange(max_len, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return (
        torch.cat((cos, cos), dim=-1).to(dtype)[:, None, :],
        torch.cat((-sin, sin), dim=-1).to(dtype)[:, None, :],
    )
