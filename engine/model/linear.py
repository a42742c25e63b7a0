"""Linear layers, with bfloat16 weights laid out for the CPU once.

They are stored in oneDNN's own order: plain `linear` reorders them in every call, which costs about as much as
the product of a small decode batch. What follows a product elementwise is part of it. Some CPUs multiply
float32 faster than bfloat16 (AVX-512 without AMX; without AVX-512 a hundred times, and in no order of
oneDNN's); there a product of many tokens reads its weights as float32, which costs a pass over them and no
memory that stays.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch.nn.functional import linear, silu

from engine.model.ops import Ops
from engine.model.race import best_times

WIDE_FROM = 128  # tokens; ours: where reading weights back pays on a CPU whose float32 is 1.8 times as fast
PLAIN_WIDE_FROM = 8  # tokens; ours: the same where weights lie as they are, on a CPU without AVX-512
_WIDE_GAIN = 1.3  # ours
_RACE_SIZE = 512
_RACE_S = 0.03

_mkldnn: Any = torch.ops.mkldnn  # operators that torch keeps for its compiler; looked up when they are used


class Linear:
    """y = x W^T + b. weight: [out, in]; bias: [out] or None."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = _packs(weight)
        self._wide_from = _wide_from(weight, packed=self._packed)
        self._weight = _mkldnn._reorder_linear_weight(weight) if self._packed else weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, in] to [tokens, out]."""
        if len(x) >= self._wide_from:
            return _wide(x.float(), self._weight, self._bias).to(x.dtype)
        if not self._packed:
            return linear(x, self._weight, self._bias)
        out: torch.Tensor = _mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


class GatedLinear:
    """silu(x G^T + g) * (x U^T + u), the first half of an MLP. weight: [2 * ffn, in], the gate's rows first."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, ops: Ops) -> None:
        self._ops = ops
        self._packed = _packs(weight)
        self._wide_from = _wide_from(weight, packed=self._packed)
        self._parts: list[tuple[Any, torch.Tensor | None]] = []
        if self._packed:
            biases = (None, None) if bias is None else bias.chunk(2)
            reorder = _mkldnn._reorder_linear_weight
            self._parts = [(reorder(half), one) for half, one in zip(weight.chunk(2), biases, strict=True)]
        else:
            self._both = Linear(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, in] to [tokens, ffn]."""
        if not self._packed:
            return self._ops.gated(self._both(x))
        (gate, gate_bias), (up, up_bias) = self._parts
        if len(x) >= self._wide_from:
            wide = x.float()
            return (silu(_wide(wide, gate, gate_bias)).mul_(_wide(wide, up, up_bias))).to(x.dtype)
        gated = _mkldnn._linear_pointwise(x, gate, gate_bias, "swish", [], "")
        out: torch.Tensor = _mkldnn._linear_pointwise.binary(x, gated, up, up_bias, "mul")
        return out


def _packs(weight: torch.Tensor) -> bool:
    """Whether this torch and CPU have the packed product of this weight."""
    return (
        weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(_mkldnn, "_reorder_linear_weight")
        and _mkldnn._is_mkldnn_bf16_supported()
    )


def _wide_from(weight: torch.Tensor, *, packed: bool) -> float:
    """Tokens from which a product is made in float32."""
    narrow = weight.dtype == torch.bfloat16 and weight.device.type == "cpu"
    if not narrow or not _float32_is_faster(torch.get_num_threads()):
        return float("inf")
    return WIDE_FROM if packed else PLAIN_WIDE_FROM


def _wide(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x: [tokens, in] float32, and so is the result; the weight, packed or not, stays as it is."""
    wide = weight.to_dense(torch.float32) if weight.is_mkldnn else weight.float()
    return linear(x, wide, None if bias is None else bias.float())


@cache
def _float32_is_faster(_threads: int) -> bool:
    """Whether this CPU multiplies large float32 matrices so much faster than bfloat16 ones."""
    ones = [torch.ones(_RACE_SIZE, _RACE_SIZE, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    float32, bfloat16 = best_times([partial(torch.mm, one, one) for one in ones], _RACE_S)
    return _WIDE_GAIN * float32 < bfloat16
