"""Linear layers with their weights laid out for the CPU once.

bfloat16 weights on a CPU are stored in oneDNN's own order: plain `linear` reorders them in every call, which
costs about as much as the product of a small decode batch. What follows a product elementwise is part of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from engine.model.ops import Ops

_mkldnn: Any = torch.ops.mkldnn  # operators that torch keeps for its compiler; looked up when they are used


class Linear:
    """y = x W^T + b. weight: [out, in]; bias: [out] or None."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = _packs(weight)
        self._weight = _mkldnn._reorder_linear_weight(weight) if self._packed else weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, in] to [tokens, out]."""
        if not self._packed:
            return linear(x, self._weight, self._bias)
        out: torch.Tensor = _mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


class GatedLinear:
    """silu(x G^T + g) * (x U^T + u), the first half of an MLP. weight: [2 * ffn, in], the gate's rows first."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, ops: Ops) -> None:
        self._ops = ops
        self._packed = _packs(weight)
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
