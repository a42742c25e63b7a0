"""Step times from sizes and vendor peaks: the first guess where nothing was measured or published.

A sum of compute, memory and fixed terms, not their maximum: on measured steps a sum fits better, the fixed
cost grows with the layers, and tensor parallelism needs its all-reduces (errors in docs/rules.md). Dense
models only. The efficiencies are ours, chosen after seeing measured steps of TensorRT-LLM and vLLM on A100
and H100; they do not hold for eager engines, PCIe all-reduces or decode batches above 64 with long contexts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.shape import ModelShape
from engine.step_time.model import StepShape


@dataclass(frozen=True, slots=True)
class Device:
    """What one device can do, and the share of it that a real step gets (`ours`)."""

    flops: float  # dense peak, FLOP/s
    bytes_per_s: float  # memory bandwidth peak
    link_bytes_per_s: float = 0.0  # per direction, 0: no link of its own
    compute_efficiency: float = 0.65
    memory_efficiency: float = 0.85
    link_efficiency: float = 0.5
    seconds_per_layer: float = 50e-6
    seconds_per_all_reduce: float = 8e-6


PCIE_BYTES_PER_S = 16e9  # ours: what PCIe 4 x16 gives in practice, for cards without a link

# Ours: SmolLM2-135M in bf16 prefills 350 to 500 tokens/s a core and decodes in 13 to 25 ms on two server cores.
_CORE_FLOPS = 110e9
_CPU_BYTES_PER_S = 15e9


def cpu_cores(cores: int) -> Device:
    """`cores` CPU cores seen as one device; already effective rates, so efficiencies are 1."""
    return Device(
        flops=_CORE_FLOPS * cores,
        bytes_per_s=_CPU_BYTES_PER_S,
        compute_efficiency=1.0,
        memory_efficiency=1.0,
        seconds_per_layer=100e-6,
    )


@dataclass(frozen=True, slots=True)
class RooflineStepTime:
    """Roofline of one model under `tp`-way tensor parallelism.

    `weight_bytes` and `kv_bytes` are bytes an element. `error_p90` is None: nothing was measured on the
    target.
    """

    shape: ModelShape
    device: Device
    tp: int = 1
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    source: Literal["roofline"] = "roofline"
    error_p90: float | None = None

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step, seconds."""
        tokens = sum(n for n, _ in shape.prefill) + len(shape.decode)
        if tokens == 0:
            return 0.0
        device = self.device
        compute = self._flops(shape, tokens) / self.tp / (device.flops * device.compute_efficiency)
        memory = self._bytes(shape) / self.tp / (device.bytes_per_s * device.memory_efficiency)
        return compute + memory + self.shape.layers * device.seconds_per_layer + self._all_reduce(tokens)

    def _flops(self, shape: StepShape, tokens: int) -> float:
        """Matrix products of all tokens, the vocabulary for one token a row, attention over the contexts."""
        sizes = self.shape
        head = sizes.vocab * sizes.hidden
        layers = sizes.parameters - head * (1 if sizes.tied_embeddings else 2)
        rows = len(shape.prefill) + len(shape.decode)
        pairs = sum(n * (context + (n + 1) / 2) for n, context in shape.prefill)  # causal: half of new x new
        pairs += sum(context + 1 for context in shape.decode)
        return 2 * layers * tokens + 2 * head * rows + 4 * sizes.layers * sizes.heads * sizes.head_dim * pairs

    def _bytes(self, shape: StepShape) -> float:
        """Weights once, the KV of every context once."""
        sizes = self.shape
        lookup = 0 if sizes.tied_embeddings else sizes.vocab * sizes.hidden
        weights = (sizes.parameters - lookup) * self.weight_bytes
        context = sum(c + n for n, c in shape.prefill) + sum(shape.decode)
        return weights + context * sizes.kv_bytes_per_token(self.kv_bytes)

    def _all_reduce(self, tokens: int) -> float:
        """Two all-reduces a layer, each moving 2 (tp - 1) / tp of the activations."""
        if self.tp == 1:
            return 0.0
        device = self.device
        link = (device.link_bytes_per_s or PCIE_BYTES_PER_S) * device.link_efficiency
        size = 2 * (self.tp - 1) / self.tp * tokens * self.shape.hidden * 2
        return 2 * self.shape.layers * (device.seconds_per_all_reduce + size / link)
