"""OPT (arXiv 2205.01068), the model of the Splitwise and DistServe papers' experiments.

LayerNorm with a bias before each block, learned positions, a plain ReLU MLP, biases everywhere, a tied head.
Heads and the MLP's width may be one rank's part. Stateless, like every `Model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import embedding, layer_norm

from engine.attention.base import AttentionBackend
from engine.model.collective import Collective
from engine.model.linear import Linear
from engine.model.part import Part
from engine.model.projection import by_token, packed, summed
from engine.model.supported import Supported
from engine.model.vocabulary import Vocabulary
from engine.model.weights import Weights
from engine.shape import ModelShape

_FIRST_POSITION = 2  # rows of the position table before position 0, left from padding in its training code
_EPS = 1e-5  # torch's default, which config.json does not name


@dataclass(frozen=True, slots=True)
class Norm:
    """LayerNorm: weight, bias [hidden]."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] to the same."""
        return layer_norm(x, self.weight.shape, self.weight, self.bias, _EPS)


@dataclass(frozen=True, slots=True)
class OptLayer:
    """Weights of one layer; q, k and v are packed. Heads and ffn are local."""

    attention_norm: Norm
    qkv: Linear  # hidden -> 3 * heads * head_dim
    out: Linear  # heads * head_dim -> hidden
    ffn_norm: Norm
    up: Linear  # hidden -> ffn
    down: Linear  # ffn -> hidden


@dataclass(frozen=True, slots=True)
class Opt:
    """`Model` of the OPT family. positions: [max_len + 2, hidden]."""

    shape: ModelShape
    local_shape: ModelShape
    windows: tuple[int, ...]
    weight_bytes: int
    vocabulary: Vocabulary
    positions: torch.Tensor
    layers: tuple[OptLayer, ...]
    norm: Norm
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
        reduce, head_dim = self.collective.sum, self.shape.head_dim
        hidden = self.vocabulary.embed(ids) + embedding(positions + _FIRST_POSITION, self.positions)
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(layer.attention_norm(hidden)).view(len(hidden), -1, head_dim)
            q, k, v = qkv.chunk(3, dim=1)  # [tokens, heads, head_dim] each
            attended = attention.attend(number, q, k, v, meta)
            hidden = hidden + reduce(layer.out(attended.flatten(1)))
            hidden = hidden + reduce(layer.down(layer.up(layer.ffn_norm(hidden)).relu_()))
        return self.vocabulary.logits(self.norm(hidden[sampled]))


def load_opt(
    found: Supported, weights: Weights, part: Part, collective: Collective, layer_done: Callable[[], None]
) -> Opt:
    """The model from its parameters, with or without the prefix that Meta's own files lack."""
    shape, name = found.shape, "model.decoder"
    if not weights.source.has(f"{name}.embed_tokens.weight"):
        name = "decoder"
    embeddings = head = by_token(weights, f"{name}.embed_tokens.weight", shape, part)
    if shape.tied_embeddings:
        weights.source.skip("lm_head.weight")
    else:
        head = by_token(weights, "lm_head.weight", shape, part)
    layers = []
    for number in range(shape.layers):
        layers.append(_layer(weights, f"{name}.layers.{number}", shape, part))
        layer_done()
    positions = weights.take(f"{name}.embed_positions.weight", shape.max_len + _FIRST_POSITION, shape.hidden)
    norm = _norm(weights, f"{name}.final_layer_norm", shape.hidden)
    return Opt(
        shape=shape,
        local_shape=part.shape,
        windows=found.windows,
        weight_bytes=weights.bytes,
        vocabulary=Vocabulary(shape.vocab, embeddings, head, collective),
        positions=positions,
        layers=tuple(layers),
        norm=norm,
        collective=collective,
    )


def _norm(weights: Weights, name: str, hidden: int) -> Norm:
    return Norm(weights.take(f"{name}.weight", hidden), weights.take(f"{name}.bias", hidden))


def _layer(weights: Weights, name: str, shape: ModelShape, part: Part) -> OptLayer:
    hidden, ffn, attention = shape.hidden, shape.ffn, f"{name}.self_attn"
    qkv = [(f"{one}_proj", hidden, part.q) for one in "qkv"]
    return OptLayer(
        attention_norm=_norm(weights, f"{attention}_layer_norm", hidden),
        qkv=Linear(*packed(weights, attention, qkv, hidden, bias=True)),
        out=summed(weights, f"{attention}.out_proj", hidden, hidden, part.q, part, bias=True),
        ffn_norm=_norm(weights, f"{name}.final_layer_norm", hidden),
        up=Linear(*packed(weights, name, [("fc1", ffn, part.ffn)], hidden, bias=True)),
        down=summed(weights, f"{name}.fc2", hidden, ffn, part.ffn, part, bias=True),
    )
