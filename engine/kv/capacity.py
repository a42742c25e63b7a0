"""How many KV blocks an instance has: one owner of the arithmetic for engine, simulator and exports.

    | GPU, each device   memory x fraction - weights of its stage / TP - activations(budget) - graphs - buffers
    | CPU, an instance   0.25 x host memory / devices of the host x devices of the instance

Of PP stages the fullest limits the instance, see `fullest_stage`; without a pipeline it is the whole model.
On a CPU the weights are mapped and shared by all instances; the other three quarters of the host are for
them, for activations and for everybody else.
"""

from __future__ import annotations

import math
from dataclasses import replace

from engine.errors import MachineError
from engine.shape import HEAD_BYTES, ModelShape

CPU_FRACTION = 0.25
LOGIT_BYTES = 4  # logits are float32 whatever the model's numbers


def fullest_stage(shape: ModelShape, pp: int) -> ModelShape:
    """The stage of a pipeline that holds most, as a model of its own; `pp` of 1: the model.

    It has ceil(layers / pp) layers, of the largest ones, and one matrix of the vocabulary: the first stage has
    the embedding and the last the head, of tied ones each has a copy. Learned positions are counted too. Raises
    MachineError where a stage would have no layer.
    """
    if pp == 1:
        return shape
    if pp > shape.layers:
        raise MachineError(
            f"{shape.layers} layers make no {pp} pipeline stages", hint=f"pp: {shape.layers} or less"
        )
    layers, experts = math.ceil(shape.layers / pp), shape.experts
    if experts is not None:
        experts = replace(experts, dense_layers=max(0, layers - shape.expert_layers))
    return replace(shape, layers=layers, experts=experts, tied_embeddings=True)


def activation_bytes(
    shape: ModelShape, *, token_budget: int, max_seqs: int, tp: int = 1, element_bytes: float = 2
) -> int:
    """Peak bytes of one step on one device: the widest layer for all query tokens, plus logits of sampled rows.

    Ours: residual, normed input and output (3 hidden), then the larger of q, k, v with the attention output
    and the MLP's gate, up and their product (of the experts that a token passes), of which TP splits both.
    """
    attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
    ffn = shape.ffn
    if shape.experts is not None:
        passed = shape.experts.active * shape.experts.ffn + shape.experts.shared_ffn
        ffn = max(passed, shape.ffn if shape.experts.dense_layers else 0)
    widest = max(attention, (3 if shape.gated_mlp else 2) * ffn) / tp
    per_token = (3 * shape.hidden + widest) * element_bytes
    sampled = min(max_seqs, token_budget)
    return round(token_budget * per_token + sampled * shape.vocab * LOGIT_BYTES)


def gpu_kv_bytes(
    shape: ModelShape,
    *,
    memory_bytes: int,
    token_budget: int,
    max_seqs: int,
    fraction: float = 0.9,
    tp: int = 1,
    pp: int = 1,
    weight_element_bytes: float = 2,
    graph_bytes: int = 0,
    buffer_bytes: int = 0,
) -> int:
    """Bytes left for KV on one device of `memory_bytes`; 0 or less where the model does not fit.

    With `pp` stages: on a device of the fullest.
    """
    activations = activation_bytes(
        shape,
        token_budget=token_budget,
        max_seqs=max_seqs,
        tp=tp,
        element_bytes=max(weight_element_bytes, HEAD_BYTES),
    )
    weights = fullest_stage(shape, pp).weight_bytes(weight_element_bytes) / tp
    return int(memory_bytes * fraction - weights - activations - graph_bytes - buffer_bytes)


def cpu_kv_bytes(*, host_bytes: int, host_devices: int, instance_devices: int = 1) -> int:
    """Bytes for the KV of one instance on a host whose `host_devices` devices (cores) share `host_bytes`."""
    return int(host_bytes * CPU_FRACTION / host_devices * instance_devices)


def kv_blocks(
    shape: ModelShape,
    kv_bytes: int,
    *,
    block_size: int,
    tp: int = 1,
    pp: int = 1,
    kv_element_bytes: float = 2,
) -> int:
    """Blocks, the trash block included, that fit in `kv_bytes` of each device of an instance.

    TP splits the KV heads; with more devices than heads each device keeps a whole head, and latent KV whole.
    With `pp` stages a device holds a token's KV of its own layers. Layers with a sliding window are held in
    full. Raises MachineError where no request could run.
    """
    token_bytes = fullest_stage(shape, pp).kv_bytes_per_token(kv_element_bytes) * shape.kv_share(tp)
    blocks = int(kv_bytes // (token_bytes * block_size))
    if blocks < 2:
        raise MachineError(
            "no memory is left for the KV cache",
            why=f"{kv_bytes:,} bytes remain, one block takes {token_bytes * block_size:,.0f}",
            hint="advise analyze --dtype bfloat16, a smaller model, or more devices per instance",
        )
    return blocks
