"""Rotary positions in half-rotation form (Su et al. 2021, section 3.4.2, as Llama checkpoints order a head)."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803 - triton reads a kernel's annotations itself, and its constants are upper-case by custom

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch, padded

_HEADS = 4  # heads a program: short heads would leave most of a warp idle. Ours


@triton.jit
def rotary_kernel(
    qk,  # [tokens, HEADS, 2 * HALF]
    cos,  # [tokens, 1, 2 * HALF]
    sin,  # the same; its first half is negative
    out,  # [tokens, HEADS, 2 * HALF], contiguous
    qk_token,  # strides, in numbers
    qk_head,
    cos_token,
    sin_token,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    HEADS_TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_TILE + tl.arange(0, HEADS_TILE)[:, None]
    dim = tl.arange(0, HALF_PAD)[None, :]
    real_dim = dim < HALF
    real = (head < HEADS) & real_dim
    source = qk + token * qk_token + head * qk_head + dim
    left = tl.load(source, mask=real, other=0.0).to(tl.float32)  # [HEADS_TILE, HALF_PAD]
    right = tl.load(source + HALF, mask=real, other=0.0).to(tl.float32)
    cos_at = cos + token * cos_token + dim
    sin_at = sin + token * sin_token + dim
    cos_left = tl.load(cos_at, mask=real_dim, other=0.0).to(tl.float32)  # [1, HALF_PAD]
    cos_right = tl.load(cos_at + HALF, mask=real_dim, other=0.0).to(tl.float32)
    sin_left = tl.load(sin_at, mask=real_dim, other=0.0).to(tl.float32)
    sin_right = tl.load(sin_at + HALF, mask=real_dim, other=0.0).to(tl.float32)
    target = out + (token * HEADS + head) * (2 * HALF) + dim
    tl.store(target, (left * cos_left + right * sin_left).to(out.dtype.element_ty), mask=real)
    tl.store(target + HALF, (right * cos_right + left * sin_right).to(out.dtype.element_ty), mask=real)


def rotary(qk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor) -> Launch:
    """out = qk * cos + (qk, its halves swapped) * sin.

    qk: [tokens, heads, head_dim], last stride 1; cos, sin: [tokens, 1, head_dim]; out: as qk, contiguous.
    """
    tokens, heads, head_dim = qk.shape
    half = head_dim // 2
    return Launch(
        rotary_kernel,
        (tokens, -(-heads // _HEADS)),
        {
            "qk": qk, "cos": cos, "sin": sin, "out": out,
            "qk_token": qk.stride(0), "qk_head": qk.stride(1),
            "cos_token": cos.stride(0), "sin_token": sin.stride(0),
            "HEADS": heads, "HALF": half, "HALF_PAD": padded(half), "HEADS_TILE": _HEADS,
        },
        warps=2,
    )  # fmt: skip
