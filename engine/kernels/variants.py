"""Every kernel variant that serving can launch, as the launches that its own code makes over empty shapes.

Owns the bounded list that `engine.kernels.compile` compiles, in sizes of 1B to 8B models. A variant differs
from another in what triton compiles for: dtype, head size, tile, and the flags of a kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.kernels.activation import gated
from engine.kernels.launch import Launch
from engine.kernels.norm import add_norm, norm
from engine.kernels.paged import Parts, Rows, attention
from engine.kernels.rotary import rotary
from engine.kernels.sampling import launches
from engine.kernels.store import store
from engine.kernels.tiles import MOST_SPLITS, Gpu, tile_of

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
HEAD_DIMS = (64, 80, 96, 128)
_GROUPS = {64: 4, 80: 1, 96: 1, 128: 4}  # heads a KV head: Llama 3.2 1B, OPT and Phi, Phi-3, Llama 3 8B
_KV_HEADS, _BLOCK, _HIDDEN, _FFN, _VOCAB = 8, 16, 4096, 14336, 128_256


@dataclass(frozen=True, slots=True)
class Variant:
    """A named launch on one kind of GPU; `attention`: it must not spill."""

    name: str
    gpu: Gpu
    launch: Launch
    attention: bool = False


def variants(gpu: Gpu, *, full: bool = False) -> Iterator[Variant]:
    """The variants of one GPU.

    Without `full` those that compile alike are there once: windows only for heads that need no padding, merges
    (which differ in the dtype they store) and the heads of 80 and 96 only in bfloat16, which the interpreter
    cannot check.
    """
    for dtype in DTYPES:
        some = not full and dtype is not torch.bfloat16
        head_dims = (64, 128) if some else HEAD_DIMS
        for head_dim in head_dims:
            windows = (0, 1024) if full or (not some and head_dim in (64, 128)) else (0,)
            yield from _attention(gpu, dtype, head_dim, windows)
            if full or (not some and head_dim in (64, 128)):
                yield from _merges(gpu, dtype, head_dim)
        for name, launch in _others(dtype, (128,) if some else HEAD_DIMS):
            yield Variant(f"{name} {_short(dtype)}", gpu, launch)


def _attention(gpu: Gpu, dtype: torch.dtype, head_dim: int, windows: tuple[int, ...]) -> Iterator[Variant]:
    for decode, window in itertools.product((True, False), windows):
        for splits in (1, MOST_SPLITS) if decode else (1,):
            launch = _launches(gpu, dtype, head_dim, decode, window, splits)[0]
            words = ["decode" if decode else "prefill", *["split"] * (splits > 1), *["window"] * (window > 0)]
            yield Variant(f"{' '.join(words)} {head_dim} {_short(dtype)}", gpu, launch, attention=True)


def _merges(gpu: Gpu, dtype: torch.dtype, head_dim: int) -> Iterator[Variant]:
    splits = 2
    while splits <= MOST_SPLITS:
        launch = _launches(gpu, dtype, head_dim, True, 0, splits)[1]
        yield Variant(f"merge {splits} {head_dim} {_short(dtype)}", gpu, launch, attention=True)
        splits *= 2


def _launches(
    gpu: Gpu, dtype: torch.dtype, head_dim: int, decode: bool, window: int, splits: int
) -> tuple[Launch, ...]:
    group = _GROUPS[head_dim]
    heads = _KV_HEADS * group
    q, out = (_empty(dtype, 4, heads, head_dim) for _ in range(2))
    keys, values = (_empty(dtype, 4, _BLOCK, _KV_HEADS, head_dim) for _ in range(2))
    starts, lengths, table = (_empty(torch.int32, *size) for size in ((3,), (2,), (2, 4)))
    rows = Rows(starts, lengths, table, first=0, count=2, tokens=2, decode=decode)
    tile = tile_of(gpu, head_dim, group, dtype.itemsize, decode=decode)
    parts = Parts.empty(2, heads, head_dim, splits, "meta") if splits > 1 else None
    return attention(q, keys, values, out, rows, tile=tile, window=window, parts=parts)


def _others(dtype: torch.dtype, head_dims: tuple[int, ...]) -> Iterator[tuple[str, Launch]]:
    hidden = [_empty(dtype, 2, _HIDDEN) for _ in range(4)]
    weight = _empty(dtype, _HIDDEN)
    yield f"norm {_HIDDEN}", norm(hidden[0], weight, hidden[1], 1e-5)
    yield f"add_norm {_HIDDEN}", add_norm(hidden[0], hidden[1], weight, hidden[2], hidden[3], 1e-5)
    yield "gated", gated(_empty(dtype, 2, 2 * _FFN), _empty(dtype, 2, _FFN))
    for head_dim in head_dims:
        heads = [_empty(dtype, 2, 40, head_dim) for _ in range(2)]
        yield f"norm {head_dim}", norm(heads[0], _empty(dtype, head_dim), heads[1], 1e-5)
        table = _empty(dtype, 2, 1, head_dim)
        yield f"rotary {head_dim}", rotary(heads[0], table, table, heads[1])
        kv, pool = _empty(dtype, 2, _KV_HEADS, head_dim), _empty(dtype, 4, _BLOCK, _KV_HEADS, head_dim)
        yield f"store {head_dim}", store(kv, kv, pool, pool, _empty(torch.int64, 2))
    tokens = _empty(torch.int64, 2)
    for name, keys in (("greedy", None), ("draw", (tokens, tokens))):
        best, choose = launches(_empty(dtype, 2, _VOCAB), tokens, keys)
        yield name, best
        if keys is None and dtype is torch.bfloat16:
            yield "choose", choose


def _empty(dtype: torch.dtype, *size: int) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def _short(dtype: torch.dtype) -> str:
    return {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]
