"""Copies a step's keys and values into their slots of the paged pool."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803 - triton reads a kernel's annotations itself, and its constants are upper-case by custom

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch, padded


@triton.jit
def store_kernel(
    k,  # [tokens, HEADS, HEAD_DIM]
    v,  # the same
    keys,  # [slots, HEADS, HEAD_DIM], slot = block * block_size + offset
    values,  # the same
    slots,  # int64 [tokens]; below 0: the token is not stored
    k_token,  # strides, in numbers; the last dimension's are 1
    k_head,
    v_token,
    v_head,
    kv_slot,
    kv_head,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    head = tl.arange(0, HEADS_PAD)[:, None]
    dim = tl.arange(0, HEAD_PAD)[None, :]
    real = (head < HEADS) & (dim < HEAD_DIM)
    place = slot * kv_slot + head * kv_head + dim  # 64-bit, as slot is
    key = tl.load(k + token * k_token + head * k_head + dim, mask=real)
    value = tl.load(v + token * v_token + head * v_head + dim, mask=real)
    tl.store(keys + place, key, mask=real)
    tl.store(values + place, value, mask=real)


def store(
    k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor
) -> Launch:
    """Token t's key and value go to slot `slots[t]`, or nowhere where that is negative.

    k, v: [tokens, kv_heads, head_dim]; keys, values: [blocks, block_size, kv_heads, head_dim], blocks adjacent;
    slots: int64 [tokens].
    """
    tokens, heads, head_dim = k.shape
    if keys.stride(0) != keys.shape[1] * keys.stride(1) or keys.stride() != values.stride():
        raise ValueError("slots must follow one another through blocks, alike for keys and values")
    return Launch(
        store_kernel,
        (tokens,),
        {
            "k": k, "v": v, "keys": keys, "values": values, "slots": slots,
            "k_token": k.stride(0), "k_head": k.stride(1), "v_token": v.stride(0), "v_head": v.stride(1),
            "kv_slot": keys.stride(1), "kv_head": keys.stride(2),
            "HEADS": heads, "HEADS_PAD": padded(heads), "HEAD_DIM": head_dim, "HEAD_PAD": padded(head_dim),
        },
    )  # fmt: skip
