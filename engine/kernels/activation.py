"""SwiGLU: silu(gate) * up (Shazeer 2020, equation 6, with beta 1)."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803 - triton reads a kernel's annotations itself, and its constants are upper-case by custom

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch

_TILE = 1024


@triton.jit
def gated_kernel(
    gate_up,  # [tokens, 2 * SIZE], the gate first
    out,  # [tokens, SIZE], contiguous
    token_stride,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    real = place < SIZE
    source = gate_up + token * token_stride + place
    gate = tl.load(source, mask=real, other=0.0).to(tl.float32)
    up = tl.load(source + SIZE, mask=real, other=0.0).to(tl.float32)
    gated = gate * tl.sigmoid(gate) * up
    tl.store(out + token * SIZE + place, gated.to(out.dtype.element_ty), mask=real)


def gated(gate_up: torch.Tensor, out: torch.Tensor) -> Launch:
    """gate_up: [tokens, 2 * size], last stride 1; out: [tokens, size], contiguous."""
    tokens, size = out.shape
    return Launch(
        gated_kernel,
        (tokens, -(-size // _TILE)),
        {"gate_up": gate_up, "out": out, "token_stride": gate_up.stride(0), "SIZE": size, "TILE": _TILE},
    )
