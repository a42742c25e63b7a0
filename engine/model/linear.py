"""A linear layer with its weight laid out for the CPU once."""

from __future__ import annotations

import torch
from torch.nn.functional import linear


class Linear:
    """y = x W^T + b. weight: [out, in]; bias: [out] or None.

    bfloat16 weights are stored in oneDNN's own order: plain `linear` reorders them in every call, which costs
    about as much as the product of a small decode batch.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = weight.dtype == torch.bfloat16 and _packs_bfloat16()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, in] to [tokens, out]."""
        if not self._packed:
            return linear(x, self._weight, self._bias)
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


def _packs_bfloat16() -> bool:
    """Whether this torch and CPU have the packed product, an operator that torch keeps for its compiler."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
