"""Launches of the attention kernels over tensors: sizes, strides and what is refused.

The kernels are `engine.kernels.attention`; which rows go in which launch is `engine.attention.triton`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log2

import torch

from engine.errors import InputError
from engine.kernels.attention import attention_kernel, merge_kernel
from engine.kernels.launch import Launch, padded
from engine.kernels.tiles import Tile

_LOG2_E = log2(e)
_BLOCK_STEP = 16


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows `first .. first + count - 1` of a step, with `tokens` tokens in all; `decode`: one token each.

    A decode's row r is the step's token r. starts: int32 [rows + 1]; lengths: int32 [rows];
    table: int32 [rows, blocks].
    """

    starts: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor
    first: int
    count: int
    tokens: int
    decode: bool


@dataclass(frozen=True, slots=True)
class Parts:
    """Where a split decode leaves its parts; `SPLITS` is the last dimension of peaks and sums."""

    mixed: torch.Tensor  # float32 [rows, heads, splits, padded head_dim]
    peaks: torch.Tensor  # float32 [rows, heads, splits]
    sums: torch.Tensor  # float32 [rows, heads, splits]

    @staticmethod
    def empty(rows: int, heads: int, head_dim: int, splits: int, device: torch.device | str) -> Parts:
        """Uninitialised memory for `rows` decode rows."""
        size = (rows, heads, splits)
        pad = head_pad(head_dim)
        return Parts(
            *(torch.empty(*size, *last, dtype=torch.float32, device=device) for last in ((pad,), (), ()))
        )


def head_pad(head_dim: int) -> int:
    """The power of two that a head is padded to; 16 is the least side of a tensor core's product."""
    return max(16, padded(head_dim))


def attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    rows: Rows,
    *,
    tile: Tile,
    window: int = 0,
    parts: Parts | None = None,
) -> tuple[Launch, ...]:
    """The launches that fill `out` for the tokens of `rows`: one, or a split and its merge.

    q, out: [tokens, heads, head_dim]; keys, values: [blocks, block_size, kv_heads, head_dim]; `window` 0: none.
    InputError where the block size, dtypes or strides are not what the kernels can read.
    """
    _check(q, keys, values, out)
    heads, head_dim = q.shape[1:]
    kv_heads = keys.shape[2]
    group = heads // kv_heads
    splits = 1 if parts is None else parts.peaks.shape[2]
    tiles = rows.count if rows.decode else rows.tokens // (tile.queries // group) + rows.count
    target = out if parts is None else parts.mixed
    sizes = {"HEADS": heads, "HEAD_DIM": head_dim, "HEAD_PAD": head_pad(head_dim)}
    split = Launch(
        attention_kernel,
        (tiles, kv_heads, splits),
        {
            "q": q, "keys": keys, "values": values, "out": target,
            "peaks": target if parts is None else parts.peaks,
            "sums": target if parts is None else parts.sums,
            "starts": rows.starts, "lengths": rows.lengths, "table": rows.table,
            "first_row": rows.first, "rows": rows.count,
            "scale": head_dim**-0.5 * _LOG2_E, "window": window,
            "q_token": q.stride(0), "q_head": q.stride(1),
            "out_token": out.stride(0), "out_head": out.stride(1),
            "kv_block": keys.stride(0), "kv_slot": keys.stride(1), "kv_head": keys.stride(2),
            "table_row": rows.table.stride(0),
            **sizes, "GROUP": group, "BLOCK": keys.shape[1],
            "QUERIES": tile.queries, "KEYS": tile.keys,
            "DECODE": rows.decode, "SPLIT": parts is not None, "WINDOWED": window > 0,
        },
        tile.warps,
        tile.stages,
    )  # fmt: skip
    if parts is None:
        return (split,)
    merge = Launch(
        merge_kernel,
        (rows.count, heads),
        {
            "parts": parts.mixed, "peaks": parts.peaks, "sums": parts.sums, "out": out,
            "out_token": out.stride(0), "out_head": out.stride(1),
            **sizes, "SPLITS": splits,
        },
    )  # fmt: skip
    return split, merge


def _check(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> None:
    block_size = keys.shape[1]
    if block_size % _BLOCK_STEP:
        raise InputError(
            f"blocks of {block_size} tokens",
            why=f"the kernels need a multiple of {_BLOCK_STEP}",
            hint="block_size: 16",
        )
    if not q.dtype == keys.dtype == values.dtype == out.dtype:
        raise InputError(
            f"queries in {q.dtype}, keys in {keys.dtype}",
            why="the kernels read one dtype",
            hint="give queries, keys, values and output one dtype",
        )
    if keys.stride() != values.stride() or any(x.stride(-1) != 1 for x in (q, keys, values, out)):
        raise ValueError("keys and values must have equal strides, and every last stride must be 1")
    if q.shape[1] % keys.shape[2]:
        raise InputError(
            f"{q.shape[1]} query heads over {keys.shape[2]} KV heads",
            why="they do not divide",
            hint="give a multiple of the KV heads",
        )
