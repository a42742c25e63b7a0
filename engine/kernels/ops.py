"""`engine.model.ops.Ops` by Triton kernels, for CUDA."""

from __future__ import annotations

import torch

from engine.kernels.activation import gated
from engine.kernels.norm import add_norm, norm
from engine.kernels.rotary import rotary


class TritonOps:
    """`Ops` whose tensors are on a GPU (or under triton's interpreter, on CPU). Results are contiguous."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Ops`. x: [tokens, size] or [tokens, heads, size]."""
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        norm(x, weight, out, eps).run()
        return out

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops`."""
        out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
        add_norm(x, residual, weight, out, total, eps).run()
        return out, total

    def rotate(self, qk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        out = torch.empty(qk.shape, dtype=qk.dtype, device=qk.device)
        rotary(qk, cos, sin, out).run()
        return out

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        gated(gate_up, out).run()
        return out
