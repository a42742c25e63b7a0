"""A model folder to a Model, whole or one rank's part of it.

Owns the parameter names of the Llama family in the Hugging Face format, the packing of fused projections and
the order of things: everything that config.json says is checked before a weight is read. Which part a rank
holds is `engine.model.part`.
"""

from __future__ import annotations

from pathlib import Path

import torch

from engine.model.base import Model
from engine.model.collective import Alone, Collective
from engine.model.decoder import Decoder, Layer
from engine.model.linear import GatedLinear, Linear
from engine.model.ops import Ops, TorchOps
from engine.model.opt import load_opt
from engine.model.part import Part
from engine.model.projection import by_token, packed, summed
from engine.model.rotary import rotary_frequencies, rotary_magnitude, rotary_tables
from engine.model.supported import Supported, supported_model
from engine.model.vocabulary import Vocabulary
from engine.model.weights import DummySource, FolderSource, Source, Weights
from engine.progress import Progress, Tenths
from engine.shape import ModelShape

_ALONE = Alone()
_TORCH_OPS = TorchOps()


def load_model(
    folder: Path,
    dtype: torch.dtype,
    *,
    device: torch.device | str = "cpu",
    collective: Collective = _ALONE,
    ops: Ops = _TORCH_OPS,
    dummy: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Load `folder` with weights in `dtype` on `device`: this rank's part, and nothing of the others'.

    `dummy`: random weights of the right shapes, from config.json alone. `progress` gets a line for every tenth
    of a large model. Raises InputError for what this engine cannot run.
    """
    found = supported_model(folder)
    part = Part.of(found.shape, collective.rank, collective.ranks)
    source: Source = DummySource(dtype, device) if dummy else FolderSource(folder)
    weights = Weights(source, dtype, device)
    layer_bytes = found.shape.layer_parameters() * dtype.itemsize // collective.ranks // found.shape.layers
    tenths = Tenths("loading weights", layer_bytes * found.shape.layers, progress)
    model: Model
    if found.architecture == "OPTForCausalLM":
        model = load_opt(found, weights, part, collective, lambda: tenths.add(layer_bytes))
    else:
        layers = []
        for number in range(found.shape.layers):
            layers.append(_layer(weights, f"model.layers.{number}", found.shape, part, ops))
            tenths.add(layer_bytes)
        model = _decoder(found, weights, part, collective, ops, tuple(layers))
    source.refuse_leftovers()
    return model


def _decoder(
    found: Supported,
    weights: Weights,
    part: Part,
    collective: Collective,
    ops: Ops,
    layers: tuple[Layer, ...],
) -> Decoder:
    shape = found.shape
    embeddings = head = by_token(weights, "model.embed_tokens.weight", shape, part)
    if shape.tied_embeddings:
        weights.source.skip("lm_head.weight")
    else:
        head = by_token(weights, "lm_head.weight", shape, part)
    norm = weights.take("model.norm.weight", shape.hidden)
    frequencies, magnitude = rotary_frequencies(shape, found.config), rotary_magnitude(found.config)
    cos, sin = rotary_tables(frequencies, shape.max_len, norm.dtype, norm.device, magnitude)
    return Decoder(
        shape=shape,
        local_shape=part.shape,
        windows=found.windows,
        weight_bytes=weights.bytes,
        vocabulary=Vocabulary(shape.vocab, embeddings, head, collective),
        layers=layers,
        norm=norm,
        cos=cos,
        sin=sin,
        ops=ops,
        collective=collective,
    )


def _layer(weights: Weights, name: str, shape: ModelShape, part: Part, ops: Ops) -> Layer:
    q_norm = k_norm = None
    if shape.qk_norm:
        q_norm = weights.take(f"{name}.self_attn.q_norm.weight", shape.head_dim)
        k_norm = weights.take(f"{name}.self_attn.k_norm.weight", shape.head_dim)
    hidden, ffn, attention, mlp = shape.hidden, shape.ffn, f"{name}.self_attn", f"{name}.mlp"
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    qkv = [("q_proj", q, part.q), ("k_proj", kv, part.kv), ("v_proj", kv, part.kv)]
    gate_up = [("gate_proj", ffn, part.ffn), ("up_proj", ffn, part.ffn)]
    return Layer(
        attention_norm=weights.take(f"{name}.input_layernorm.weight", hidden),
        qkv=Linear(*packed(weights, attention, qkv, hidden, bias=shape.qkv_bias)),
        q_norm=q_norm,
        k_norm=k_norm,
        out=summed(weights, f"{attention}.o_proj", hidden, q, part.q, part, bias=shape.out_bias),
        ffn_norm=weights.take(f"{name}.post_attention_layernorm.weight", hidden),
        gated=GatedLinear(*packed(weights, mlp, gate_up, hidden, bias=shape.mlp_bias), ops),
        down=summed(weights, f"{mlp}.down_proj", hidden, ffn, part.ffn, part, bias=shape.mlp_bias),
    )
