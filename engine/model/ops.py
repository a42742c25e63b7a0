"""The elementwise arithmetic between the matrices of a decoder, behind a seam: torch here, Triton on CUDA.

Owns no weights and no state.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn.functional import rms_norm, silu


class Ops(Protocol):
    """What the layers of a decoder do besides matrices and attention."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm over the last dimension, which `weight` spans."""
        ...

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of x + residual, and that sum; all [tokens, hidden]."""
        ...

    def rotate(self, qk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Half-rotation of every head.

        qk: [tokens, heads, head_dim]; cos, sin: [tokens, 1, head_dim], the sine's first half negative.
        """
        ...

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of [tokens, 2 * ffn], the gate first; [tokens, ffn]."""
        ...


class TorchOps:
    """`Ops` in plain torch: the CPU's, and the reference for the kernels."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Ops`."""
        return rms_norm(x, weight.shape, weight, eps)

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops`."""
        total = residual + x
        return rms_norm(total, weight.shape, weight, eps), total

    def rotate(self, qk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Swapping the halves of a head and giving the sine a sign is the rotation, in three operations."""
        return torch.addcmul(qk * cos, qk.roll(qk.shape[-1] // 2, dims=-1), sin)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up
