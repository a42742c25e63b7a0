"""Attention over paged KV by Triton kernels: the CUDA backend.

Owns the KV pool. A step's leading rows of one token are its decodes, split along their context where there are
few of them; all other rows are one launch over query tiles. Both write into one output. For CUDA graphs the
index tensors of a pure decode can be made once (`capture_meta`) and filled again each step (`refill`): the
launch never changes with what is in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import InputError
from engine.kernels.paged import Parts, Rows, attention
from engine.kernels.store import store
from engine.kernels.tiles import MOST_SPLITS, Gpu, splits_of, tile_of
from engine.kv.blocks import TRASH_BLOCK
from engine.request import SamplingParams
from engine.shape import ModelShape
from engine.step import StepRow

_Ints = npt.NDArray[np.signedinteger[Any]]
_INTERPRETED = Gpu((8, 0), 8)
"""What the interpreter on CPU stands in for; eight processors keep its programs few."""


@dataclass(frozen=True, slots=True)
class TritonMeta:
    """One step's index tensors. The first `decodes` rows have one token each; `tokens` are all rows'."""

    starts: torch.Tensor  # int32 [rows + 1], first token of each row, then the number of tokens
    lengths: torch.Tensor  # int32 [rows], positions in KV, this step's included
    table: torch.Tensor  # int32 [rows, blocks], padded with the trash block
    slots: torch.Tensor  # int64 [tokens], where to store each token
    rows: int
    decodes: int
    tokens: int
    parts: Parts | None  # where a split decode leaves its parts; None: decodes are not split


class TritonAttention:
    """`AttentionBackend` on a GPU; the pool is laid out as `TorchAttention`'s, and `pool` means the same.

    `windows[layer]` is that layer's sliding window in tokens, 0 for none; empty where no layer has one.
    `device` "cpu" works under triton's interpreter only. InputError for blocks that are not a multiple of 16
    tokens and for heads or dtypes without kernels, MachineError for GPUs before compute capability 8.0.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        windows: Sequence[int] = (),
        pool: torch.Tensor | None = None,
        device: str = "cuda",
    ) -> None:
        if block_size % 16:
            raise InputError(
                f"blocks of {block_size} tokens", why="the kernels need a multiple of 16", hint="block_size: 16"
            )
        if windows and len(windows) != shape.layers:
            raise ValueError(f"{len(windows)} windows for {shape.layers} layers")
        self._device = torch.device(device)
        self._gpu = _gpu(self._device)
        self._shape = shape
        self._block_size = block_size
        self._windows = tuple(windows) or (0,) * shape.layers
        group = shape.heads // shape.kv_heads
        self._decode_tile, self._tile = (
            tile_of(self._gpu, shape.head_dim, group, dtype.itemsize, decode=decode) for decode in (True, False)
        )
        self._longest = min(shape.max_len, (num_blocks - 1) * block_size)
        # Not zeroed: what is past a sequence's length is never read as a number.
        sizes = (shape.layers, 2, num_blocks, block_size, shape.kv_heads, shape.head_dim)
        self.pool = torch.empty(sizes, dtype=dtype, device=self._device) if pool is None else pool.view(sizes)

    def plan(self, rows: Sequence[StepRow]) -> TritonMeta:
        """See `AttentionBackend.plan`."""
        starts, lengths, table, slots = self._host(rows)
        decodes = next((number for number, row in enumerate(rows) if len(row.tokens) > 1), len(rows))
        longest = max((row.start + 1 for row in rows[:decodes]), default=0)
        return TritonMeta(
            starts=self._upload(starts),
            lengths=self._upload(lengths),
            table=self._upload(table),
            slots=self._upload(slots),
            rows=len(rows),
            decodes=decodes,
            tokens=len(slots),
            parts=self._parts(decodes, splits_of(self._gpu, decodes, self._shape.kv_heads, longest)),
        )

    def capture_meta(self, rows: int) -> TritonMeta:
        """Buffers for a pure decode of `rows` rows, for a graph to be captured over.

        Every row is padding: length 1, its token written to the trash block. The number of splits is that of
        the longest context; rows that are shorter leave parts empty.
        """
        width = max(1, -(-self._longest // self._block_size))
        splits = splits_of(self._gpu, rows, self._shape.kv_heads, self._longest)
        return TritonMeta(
            starts=torch.arange(rows + 1, dtype=torch.int32, device=self._device),
            lengths=torch.ones(rows, dtype=torch.int32, device=self._device),
            table=torch.full((rows, width), TRASH_BLOCK, dtype=torch.int32, device=self._device),
            slots=torch.full((rows,), TRASH_BLOCK, dtype=torch.int64, device=self._device),
            rows=rows,
            decodes=rows,
            tokens=rows,
            parts=self._parts(rows, splits),
        )

    def refill(self, meta: TritonMeta, rows: Sequence[StepRow]) -> None:
        """Put a pure decode's rows into the buffers of `capture_meta`; those left over become padding again.

        ValueError where a row has more than one token or there are more rows than the buffers hold.
        """
        if len(rows) > meta.rows or any(len(row.tokens) != 1 for row in rows):
            raise ValueError(f"not a decode of at most {meta.rows} rows")
        _, lengths, table, slots = self._host(rows)
        padding = (0, meta.rows - len(rows))
        meta.lengths.copy_(self._upload(np.pad(lengths, padding, constant_values=1)))
        meta.slots.copy_(self._upload(np.pad(slots, padding, constant_values=TRASH_BLOCK)))
        meta.table[: len(rows), : table.shape[1]].copy_(self._upload(table))
        meta.table[len(rows) :, 0] = TRASH_BLOCK

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, meta: TritonMeta
    ) -> torch.Tensor:
        """See `AttentionBackend.attend`."""
        keys, values = self.pool[layer, 0], self.pool[layer, 1]
        store(k, v, keys, values, meta.slots).run()
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        window = self._windows[layer]
        common = (meta.starts, meta.lengths, meta.table)
        if meta.decodes:
            rows = Rows(*common, first=0, count=meta.decodes, tokens=meta.decodes, decode=True)
            tile = self._decode_tile
            for launch in attention(q, keys, values, out, rows, tile=tile, window=window, parts=meta.parts):
                launch.run()
        if meta.decodes < meta.rows:
            others, tokens = meta.rows - meta.decodes, meta.tokens - meta.decodes
            rows = Rows(*common, first=meta.decodes, count=others, tokens=tokens, decode=False)
            for launch in attention(q, keys, values, out, rows, tile=self._tile, window=window):
                launch.run()
        return out

    def warm_up(self) -> None:
        """Compile every variant that a step can launch, so that no request waits for one (vllm#43009).

        Runs in the trash block. The number of splits is the only choice that depends on a step.
        """
        shape = self._shape
        decode, prefill = (
            StepRow("warm-up", (0,) * tokens, 0, (TRASH_BLOCK,), False, tokens > 1, SamplingParams())
            for tokens in (1, 2)
        )
        heads = (shape.heads, shape.kv_heads, shape.kv_heads)
        numbers = torch.zeros(3, sum(heads), shape.head_dim, dtype=self.pool.dtype, device=self._device)
        q, k, v = torch.split(numbers, list(heads), dim=1)
        meta = self.plan((decode, prefill))
        for layer in {window > 0: layer for layer, window in enumerate(self._windows)}.values():
            self.attend(layer, q, k, v, meta)
            splits = 2
            while splits <= MOST_SPLITS:
                split = self.capture_meta(1)
                self.attend(layer, q[:1], k[:1], v[:1], replace(split, parts=self._parts(1, splits)))
                splits *= 2

    def _parts(self, rows: int, splits: int) -> Parts | None:
        if splits < 2:
            return None
        return Parts.empty(rows, self._shape.heads, self._shape.head_dim, splits, self._device)

    def _host(self, rows: Sequence[StepRow]) -> tuple[_Ints, _Ints, _Ints, _Ints]:
        """Starts, lengths, table and slots of a step."""
        size = self._block_size
        counts = np.fromiter((len(row.tokens) for row in rows), np.int32, len(rows))
        lengths = np.fromiter((row.start + len(row.tokens) for row in rows), np.int32, len(rows))
        starts = np.concatenate((np.zeros(1, np.int32), counts.cumsum(dtype=np.int32)))
        used = -(-lengths // size)  # a row may hold more blocks than its positions fill
        table = np.full((len(rows), max(used, default=1)), TRASH_BLOCK, np.int32)
        for number, row in enumerate(rows):
            table[number, : used[number]] = row.blocks[: used[number]]
        row_of = np.repeat(np.arange(len(rows)), counts)
        position = np.arange(len(row_of)) - starts[row_of] + (lengths - counts)[row_of]
        slots = table[row_of, position // size].astype(np.int64) * size + position % size
        return starts, lengths, table, slots

    def _upload(self, array: _Ints) -> torch.Tensor:
        host = torch.from_numpy(array)
        if self._device.type == "cpu":
            return host
        # Pinned, so that the copy does not wait for the step before.
        return host.pin_memory().to(self._device, non_blocking=True)


def _gpu(device: torch.device) -> Gpu:
    if device.type == "cpu":
        return _INTERPRETED
    found = torch.cuda.get_device_properties(device)
    return Gpu((found.major, found.minor), found.multi_processor_count)
