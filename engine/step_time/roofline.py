"""Step times from sizes and vendor peaks: the first guess where nothing was measured or published.

A sum of nine terms, not their maximum: on measured steps a sum fits better, the fixed cost grows with the
layers, and tensor parallelism needs its all-reduces. How much of each peak an engine gets is a `Constants`,
one per engine family in profiles/roofline.yaml, with its measured error. A sum is affine in the decode
contexts, so that a simulator may jump over pure decode steps exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from engine.shape import HEAD_BYTES, ModelShape
from engine.step_time.model import StepShape

PCIE_BYTES_PER_S = 32e9  # PCIe 4 x16, a direction, for cards without a link of their own
ACTIVATION_BYTES = 2.0  # activations stay in 16 bits whatever the weights

# Ours: SmolLM2-135M in bf16 prefills 350 to 500 tokens/s a core and decodes in 13 to 25 ms on two server cores.
_CORE_FLOPS = 110e9
_CPU_BYTES_PER_S = 15e9


@dataclass(frozen=True, slots=True)
class Device:
    """Peaks of one device. `weight_flops`: of products with the weights, where those are below 16 bits."""

    flops: float  # dense 16-bit peak, FLOP/s
    bytes_per_s: float  # memory bandwidth peak
    link_bytes_per_s: float = 0.0  # per direction, 0: PCIe
    weight_flops: float | None = None


class Constants(NamedTuple):
    """What an engine gets out of a device: shares of its peaks, and fixed costs in microseconds.

    `attention` and `cached_attention`: prefill's products over the step's own and over cached tokens.
    `activations`: vectors of `hidden` numbers that a token moves through memory in a layer. `mixed`: attention
    of prefills beside decodes, over the sum of both measured alone.
    """

    compute: float = 1.0
    weights: float = 1.0
    kv: float = 1.0
    attention: float = 1.0
    cached_attention: float = 1.0
    link: float = 1.0
    pcie: float = 1.0
    layer_us: float = 0.0
    step_us: float = 0.0
    all_reduce_us: float = 0.0
    pcie_all_reduce_us: float = 0.0
    activations: float = 0.0
    mixed: float = 1.0


CPU_CONSTANTS = Constants(layer_us=100.0)  # ours, for the effective rates of `cpu_cores`


def cpu_cores(cores: int) -> Device:
    """`cores` CPU cores seen as one device; already effective rates."""
    return Device(flops=_CORE_FLOPS * cores, bytes_per_s=_CPU_BYTES_PER_S)


class Terms(NamedTuple):
    """The parts of a step's seconds: what `engine.step_time.fit.refit` scales."""

    compute: float
    weights: float
    kv: float
    attention: float
    layers: float
    step: float
    all_reduces: float
    link: float
    activations: float


@dataclass(frozen=True, slots=True)
class RooflineStepTime:
    """Roofline of one model on `tp` devices; `weight_bytes` and `kv_bytes` are bytes an element.

    Weights read are those of the experts that the step's tokens reach, expected under even routing.
    """

    shape: ModelShape
    device: Device
    constants: Constants
    tp: int = 1
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    source: Literal["calibrated", "roofline"] = "roofline"
    error_p90: float | None = None
    bend: float = field(init=False)
    _rates: _Rates = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        window = self.shape.window
        object.__setattr__(self, "bend", math.inf if window is None else float(window.size))
        object.__setattr__(self, "_rates", _rates(self))

    def seconds(self, shape: StepShape) -> float:
        """Duration of the step, seconds."""
        prefill, rows, context = shape
        if not prefill:
            return self._decode(rows, context) if rows else 0.0
        if self._rates.experts or self.bend < math.inf:
            return sum(self.terms(shape))
        return self._dense(shape)

    def _dense(self, shape: StepShape) -> float:
        """The sum of `terms` where all layers are alike: what a simulation asks for with every chunk."""
        prefill, rows, context = shape
        rates, mixed = self._rates, self.constants.mixed if shape[1] else 1.0
        total = rates.fixed + rates.decode_row * rows + rates.head * len(prefill)
        total += (rates.kv_full * mixed + rates.attention_full) * context
        for new, before in prefill:
            pairs = rates.pair_full * (new + 1) / 2 + rates.cached_full * before
            total += new * (rates.new + mixed * pairs) + rates.kv_full * before
        return total

    def decode_line(self, rows: int, context: int) -> tuple[float, float]:
        """(a, b) of `a + b i` seconds, see StepTimeModel."""
        rates = self._rates
        growth = rates.kv_full + rates.attention_full
        if context < self.bend * rows:
            growth += rates.kv_windowed + rates.attention_windowed
        return self._decode(rows, context), growth * rows

    def _decode(self, rows: int, context: int) -> float:
        rates = self._rates
        total = rates.fixed + rates.decode_row * rows + (rates.kv_full + rates.attention_full) * context
        if rates.experts:
            total += rates.experts * (1.0 - rates.missed**rows)
        if self.bend < math.inf:
            windowed = min(context, self.bend * rows)
            total += (rates.kv_windowed + rates.attention_windowed) * windowed
        return total

    def terms(self, shape: StepShape) -> Terms:
        """The step's seconds by term; their sum is `seconds`."""
        prefill, rows, context = shape
        rates, constants = self._rates, self.constants
        tokens = rows + sum(new for new, _ in prefill)
        windowed = min(context, self.bend * rows) if self.bend < math.inf else 0.0
        kv = rates.kv_full * context + rates.kv_windowed * windowed
        attention = rates.attention_full * context + rates.attention_windowed * windowed
        own, cached, read = self._prefill(prefill)
        if rows and prefill:
            own, cached, kv = own * constants.mixed, cached * constants.mixed, kv * constants.mixed
        return Terms(
            compute=rates.token * tokens + rates.head * (rows + len(prefill)),
            weights=rates.weights + rates.experts * (1.0 - rates.missed**tokens),
            kv=kv + read,
            attention=attention + own + cached,
            layers=rates.layers,
            step=rates.step,
            all_reduces=rates.all_reduces,
            link=rates.link * tokens,
            activations=rates.activations * tokens,
        )

    def _prefill(self, prefill: tuple[tuple[int, int], ...]) -> tuple[float, float, float]:
        """Seconds of attention over the step's own tokens, over cached ones, and of reading the latter's KV."""
        rates, size = self._rates, self.bend
        own = cached = read = 0.0
        for new, context in prefill:
            own += rates.pair_full * new * (new + 1) / 2
            cached += rates.cached_full * new * context
            read += rates.kv_full * context
            if size < math.inf:
                pairs = _windowed_pairs(new, context, size)
                own += rates.pair_windowed * pairs
                read += rates.kv_windowed * min(context, size)
        return own, cached, read


class _Rates(NamedTuple):
    """Seconds per unit, made once from sizes, device and constants."""

    fixed: float
    decode_row: float
    new: float
    token: float
    head: float
    weights: float
    experts: float
    missed: float
    kv_full: float
    kv_windowed: float
    attention_full: float
    attention_windowed: float
    pair_full: float
    pair_windowed: float
    cached_full: float
    layers: float
    step: float
    all_reduces: float
    link: float
    activations: float


def _rates(model: RooflineStepTime) -> _Rates:
    shape, device, c, tp = model.shape, model.device, model.constants, model.tp
    flops, memory = device.flops * tp, device.bytes_per_s * tp
    weight_flops = (device.weight_flops or device.flops) * tp * c.compute
    full = 1.0 - (shape.window.layers / shape.layers if shape.window else 0.0)
    pair = 2 * shape.layers * shape.attention_width / (flops * c.attention)
    cached = 2 * shape.layers * shape.attention_width / (flops * c.cached_attention)
    kv = shape.kv_bytes_per_token(model.kv_bytes) * shape.kv_share(tp) / (device.bytes_per_s * c.kv)
    # Decode attention is bound by reading KV, but for latent KV, which all heads share.
    decode = _latent_pair(shape) / (flops * c.attention)
    active, head = shape.layer_parameters(active=True), shape.vocab * shape.hidden
    token = 2 * active / weight_flops
    activations = c.activations * shape.layers * shape.hidden * ACTIVATION_BYTES / device.bytes_per_s
    latency, link = _all_reduce(model)
    routed = shape.expert_layers * shape.expert_parameters * (shape.experts.count if shape.experts else 0)
    dense = shape.layer_parameters() - routed
    read = (dense * model.weight_bytes + head * max(model.weight_bytes, HEAD_BYTES)) / (memory * c.weights)
    layers, step = shape.layers * c.layer_us * 1e-6, c.step_us * 1e-6
    head_seconds = 2 * head / (flops * c.compute)
    return _Rates(
        fixed=read + layers + step + latency,
        decode_row=token + head_seconds + activations + link,
        new=token + activations + link,
        token=token,
        head=head_seconds,
        weights=read,
        experts=routed * model.weight_bytes / (memory * c.weights),
        missed=1.0 - shape.experts.active / shape.experts.count if shape.experts else 1.0,
        kv_full=kv * full,
        kv_windowed=kv * (1.0 - full),
        attention_full=decode * full,
        attention_windowed=decode * (1.0 - full),
        pair_full=pair * full,
        pair_windowed=pair * (1.0 - full),
        cached_full=cached * full,
        layers=layers,
        step=step,
        all_reduces=latency,
        link=link,
        activations=activations,
    )


def _all_reduce(model: RooflineStepTime) -> tuple[float, float]:
    """Seconds a step, and a token, of two all-reduces a layer: each moves 2 (tp - 1) / tp activations."""
    tp, shape, c, device = model.tp, model.shape, model.constants, model.device
    if tp == 1:
        return 0.0, 0.0
    pcie = device.link_bytes_per_s == 0
    link = PCIE_BYTES_PER_S * c.pcie if pcie else device.link_bytes_per_s * c.link
    latency = (c.pcie_all_reduce_us if pcie else c.all_reduce_us) * 1e-6
    size = 2 * (tp - 1) / tp * shape.hidden * ACTIVATION_BYTES
    return 2 * shape.layers * latency, 2 * shape.layers * size / link


def _latent_pair(shape: ModelShape) -> float:
    """FLOPs a cached token costs a decode row in all layers with latent KV (absorbed products); else 0."""
    if shape.latent is None:
        return 0.0
    return 2.0 * shape.layers * shape.heads * (2 * shape.latent.kv_rank + shape.latent.rope)


def _windowed_pairs(new: int, context: int, size: float) -> float:
    """Query-key pairs of `new` tokens behind `context` ones, each with at most `size` keys."""
    growing = min(new, max(0, size - context))  # queries that still see everything before them
    return growing * context + growing * (growing + 1) / 2 + (new - growing) * size
