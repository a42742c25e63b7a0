"""RMS norm of vectors, alone or of a sum that is kept (Zhang and Sennrich 2019, equation 4)."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803 - triton reads a kernel's annotations itself, and its constants are upper-case by custom

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch, padded


@triton.jit
def norm_kernel(
    x,  # [tokens, heads, SIZE]
    weight,  # [SIZE]
    out,  # [tokens, heads, SIZE], contiguous
    x_token,  # strides, in numbers
    x_head,
    eps,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    place = tl.arange(0, SIZE_PAD)
    real = place < SIZE
    vector = tl.load(x + token * x_token + head * x_head + place, mask=real, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(vector * vector, 0) / SIZE + eps)
    scaled = vector * scale * tl.load(weight + place, mask=real, other=0.0).to(tl.float32)
    target = out + (token * tl.num_programs(1) + head) * SIZE + place
    tl.store(target, scaled.to(out.dtype.element_ty), mask=real)


@triton.jit
def add_norm_kernel(
    x,  # [tokens, SIZE]
    residual,  # the same
    weight,  # [SIZE]
    out,  # [tokens, SIZE], contiguous
    total,  # the same: x + residual
    x_token,  # strides, in numbers
    residual_token,
    eps,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, SIZE_PAD)
    real = place < SIZE
    vector = tl.load(x + token * x_token + place, mask=real, other=0.0).to(tl.float32)
    vector += tl.load(residual + token * residual_token + place, mask=real, other=0.0).to(tl.float32)
    # The norm is of the sum as later layers will read it: rounded.
    rounded = vector.to(total.dtype.element_ty)
    tl.store(total + token * SIZE + place, rounded, mask=real)
    vector = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(vector * vector, 0) / SIZE + eps)
    scaled = vector * scale * tl.load(weight + place, mask=real, other=0.0).to(tl.float32)
    tl.store(out + token * SIZE + place, scaled.to(out.dtype.element_ty), mask=real)


def norm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float) -> Launch:
    """out = x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    x: [tokens, size] or [tokens, heads, size], last stride 1; weight: [size]; out: as x, contiguous.
    """
    heads = x.shape[1] if x.dim() == 3 else 1
    size = x.shape[-1]
    return Launch(
        norm_kernel,
        (len(x), heads),
        {
            "x": x, "weight": weight, "out": out,
            "x_token": x.stride(0), "x_head": x.stride(1) if x.dim() == 3 else size, "eps": eps,
            "SIZE": size, "SIZE_PAD": padded(size),
        },
        _warps(size),
    )  # fmt: skip


def add_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor,
    eps: float,
) -> Launch:
    """total = x + residual; out = its norm. All [tokens, size] but weight [size]; out and total contiguous."""
    size = x.shape[-1]
    return Launch(
        add_norm_kernel,
        (len(x),),
        {
            "x": x, "residual": residual, "weight": weight, "out": out, "total": total,
            "x_token": x.stride(0), "residual_token": residual.stride(0), "eps": eps,
            "SIZE": size, "SIZE_PAD": padded(size),
        },
        _warps(size),
    )  # fmt: skip


def _warps(size: int) -> int:
    """At most 16 numbers a thread of 32 to a warp: the vector stays in registers. Ours."""
    return max(1, min(16, padded(size) // (32 * 16)))
