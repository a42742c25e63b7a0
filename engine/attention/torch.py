"""Attention over paged KV in plain torch: the CPU backend, and the oracle for faster ones.

Owns the KV pool. A step's decode rows are gathered into padded groups and attended together; each prefill row
is attended alone, its chunk's queries only. No slot that holds no token of its row is read as a number: the
rest of a row's last block is zeroed before its first decode there, and what pads a shorter row is that block
again, so that NaN left in memory cannot leak through 0 x NaN (vllm#47305).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.shape import ModelShape
from engine.step import StepRow

_PADDING_LIMIT = 2.0
"""Longest over mean length in a decode group; beyond it the gather copies mostly padding."""

_Indexed = list[tuple[int, StepRow]]  # rows of one token, with where their token stands in the step


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decode rows of similar length that attend as one batch."""

    tokens: slice | torch.Tensor  # [rows] where each row's query token stands in the step
    rows: int
    blocks: slice | torch.Tensor  # [rows * longest], short rows padded with their own last block
    mask: torch.Tensor  # [rows, 1, 1, slots] 0 or -inf


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """One sequence's chunk of queries, over its context."""

    first: int
    last: int  # tokens [first, last) of the step
    keys: int  # positions that are attended to, these tokens included
    blocks: slice | torch.Tensor | None  # [blocks]; None: there is no context, the chunk is all
    mask: torch.Tensor | None  # [queries, keys] 0 or -inf; None where plain causal masking is right


@dataclass(frozen=True, slots=True)
class Rows:
    """How the rows of a step attend in the layers of one window."""

    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillRow, ...]


@dataclass(frozen=True, slots=True)
class TorchMeta:
    """One step's index tensors."""

    slots: torch.Tensor  # [tokens] where to store each token
    tails: torch.Tensor  # [n] slots past the end of decode rows that are to be zeroed
    by_window: dict[int, Rows]


class TorchAttention:
    """`AttentionBackend` on torch tensors; the pool takes 2 * layers * num_blocks * block_size * kv size.

    `shape` has the head counts of this rank; `windows` a layer's sliding window, tokens, 0 for none. `pool` is
    memory of that size that others move KV into and out of; without it the pool is torch's own.
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
    ) -> None:
        self._block_size = block_size
        self._kv_heads = shape.kv_heads
        self._head_dim = shape.head_dim
        self._dtype = dtype
        self._windows = tuple(windows) or (0,) * shape.layers
        # Not zeroed: unwritten slots are never read as numbers, and memory is taken only as blocks are used.
        sizes = (shape.layers, 2, num_blocks, block_size, shape.kv_heads, shape.head_dim)
        self.pool = torch.empty(sizes, dtype=dtype) if pool is None else pool.view(sizes)
        # Views made once: indexing the pool costs more than it looks, 60 times a step.
        self._by_block = [(keys.flatten(1), values.flatten(1)) for keys, values in self.pool]
        self._by_slot = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self.pool]
        self._zeroed: set[int] = set()  # blocks whose rest a decode row has zeroed since they were begun
        # Gathers land here: fresh memory of this size would be page-faulted in anew by every layer.
        self._gathered = torch.empty(2, 0, block_size * shape.kv_heads * shape.head_dim, dtype=dtype)

    def plan(self, rows: Sequence[StepRow]) -> TorchMeta:
        """See `AttentionBackend.plan`."""
        size = self._block_size
        slots: list[int] = []
        tails: list[int] = []
        decodes: _Indexed = []
        prefills: _Indexed = []
        for row in rows:
            first, length = len(slots), row.start + len(row.tokens)
            slots += [row.blocks[p // size] * size + p % size for p in range(row.start, length)]
            if len(row.tokens) == 1:
                decodes.append((first, row))
                block, offset = divmod(slots[-1], size)
                if not offset or block not in self._zeroed:
                    tails += range(slots[-1] + 1, (block + 1) * size)
                    self._zeroed.add(block)
            else:
                prefills.append((first, row))
                self._zeroed.discard(slots[-1] // size)
        by_window = {
            window: Rows(
                tuple(self._group(group, window) for group in _similar(decodes)),
                tuple(self._prefill(row, first, window) for first, row in prefills),
            )
            for window in dict.fromkeys(self._windows)
        }
        return TorchMeta(torch.tensor(slots), torch.tensor(tails, dtype=torch.int64), by_window)

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, meta: TorchMeta
    ) -> torch.Tensor:
        """See `AttentionBackend.attend`."""
        key_slots, value_slots = self._by_slot[layer]
        key_slots.index_copy_(0, meta.slots, k)
        value_slots.index_copy_(0, meta.slots, v)
        if len(meta.tails):
            key_slots.index_fill_(0, meta.tails, 0)
            value_slots.index_fill_(0, meta.tails, 0)
        rows = meta.by_window[self._windows[layer]]
        if len(rows.decodes) == 1 and rows.decodes[0].rows == len(q):
            return self._decode(layer, q, rows.decodes[0])
        out = torch.empty_like(q)
        for group in rows.decodes:
            out[group.tokens] = self._decode(layer, q[group.tokens], group)
        for row in rows.prefills:
            part = slice(row.first, row.last)
            self._prefill_row(layer, q[part], k[part], v[part], row, out[part])
        return out

    def _decode(self, layer: int, q: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
        """q: [rows, heads, head_dim], and so is the result."""
        keys, values = self._gather(layer, group.blocks)
        # The query heads of one KV head are rows of one matrix: no copy of K and V per query head.
        out = scaled_dot_product_attention(
            q.view(group.rows, self._kv_heads, -1, self._head_dim),  # [rows, kv_heads, group, head_dim]
            keys.view(group.rows, -1, self._kv_heads, self._head_dim).transpose(1, 2),
            values.view(group.rows, -1, self._kv_heads, self._head_dim).transpose(1, 2),
            attn_mask=group.mask,
        )
        return out.reshape(q.shape)

    def _prefill_row(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        row: PrefillRow,
        out: torch.Tensor,
    ) -> None:
        """q and out: [queries, heads, head_dim]; k, v: the chunk's own, [queries, kv_heads, head_dim]."""
        if row.blocks is not None:
            k, v = (gathered[: row.keys] for gathered in self._gather(layer, row.blocks))
        if self._dtype.itemsize < 4:
            # torch's kernel for 16 bits converts tile by tile, and takes half as long again.
            q, k, v = q.float(), k.float(), v.float()
        queries, group = len(q), q.shape[1] // self._kv_heads
        grouped = (queries, self._kv_heads, group, self._head_dim)
        attended = scaled_dot_product_attention(
            q.view(grouped).permute(1, 2, 0, 3),
            k.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1),
            v.transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1),
            attn_mask=row.mask,
            is_causal=row.mask is None,
        )  # [kv_heads, group, queries, head_dim]
        out.view(grouped).copy_(attended.permute(2, 0, 1, 3))

    def _gather(self, layer: int, blocks: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of blocks, each [blocks * block_size, kv_heads, head_dim]: to be read only.

        Copies, good until the next gather, but for blocks that lie behind each other.
        """
        if isinstance(blocks, slice):
            keys, values = self._by_block[layer]
            shape = (-1, self._kv_heads, self._head_dim)
            return keys[blocks].view(shape), values[blocks].view(shape)
        count = len(blocks)
        if count > self._gathered.shape[1]:
            self._gathered = self._gathered.new_empty(2, count, self._gathered.shape[2])
        keys, values = (
            torch.index_select(source, 0, blocks, out=copy[:count]).view(-1, self._kv_heads, self._head_dim)
            for source, copy in zip(self._by_block[layer], self._gathered, strict=True)
        )
        return keys, values

    def _group(self, members: _Indexed, window: int) -> DecodeGroup:
        size = self._block_size
        skipped = [_first_block(row.start, window, size) for _, row in members]
        used = [row.blocks[k : row.start // size + 1] for k, (_, row) in zip(skipped, members, strict=True)]
        longest = max(len(blocks) for blocks in used)
        table = [block for blocks in used for block in blocks + blocks[-1:] * (longest - len(blocks))]
        # Positions in the gathered blocks of a row's query, which is the last that it sees.
        last = torch.tensor([[row.start - k * size] for k, (_, row) in zip(skipped, members, strict=True)])
        positions = torch.arange(longest * size)  # [slots]
        hidden = positions > last  # [rows, slots]
        if window:
            hidden |= positions <= last - window
        return DecodeGroup(
            _span([token for token, _ in members]),
            len(members),
            _span(table),
            _additive(hidden, self._dtype)[:, None, None, :],
        )

    def _prefill(self, row: StepRow, token: int, window: int) -> PrefillRow:
        size, queries = self._block_size, len(row.tokens)
        skipped = _first_block(row.start, window, size)
        start = row.start - skipped * size
        keys = start + queries
        mask = None
        if start or 0 < window < queries:
            # Lower-right aligned: query i of the chunk sees the context and the chunk up to itself.
            hidden = torch.ones(queries, keys, dtype=torch.bool).triu_(start + 1)
            if window:
                hidden |= torch.ones(queries, keys, dtype=torch.bool).tril_(start - window)
            mask = _additive(hidden, torch.promote_types(self._dtype, torch.float32))
        blocks = _span(row.blocks[skipped : -(-(row.start + queries) // size)]) if start else None
        return PrefillRow(token, token + queries, keys, blocks, mask)


def _first_block(start: int, window: int, block_size: int) -> int:
    """The first block that a query at position `start`, and so any after it, sees."""
    return max(0, start - window + 1) // block_size if window else 0


def _additive(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)


def _span(numbers: Sequence[int]) -> slice | torch.Tensor:
    """An index of these: a slice, which copies nothing, where they follow each other."""
    first, end = numbers[0], numbers[-1] + 1
    if end - first == len(numbers) and all(map(eq, numbers, range(first, end))):
        return slice(first, end)
    return torch.tensor(numbers)


def _similar(decodes: _Indexed) -> list[_Indexed]:
    """Split decode rows so that no group's longest is over twice its mean: longest first, or as they are."""
    lengths = [row.start + 1 for _, row in decodes]
    if not decodes or max(lengths) * len(decodes) <= _PADDING_LIMIT * sum(lengths):
        return [decodes] if decodes else []
    groups: list[_Indexed] = []
    longest = total = 0
    for member in sorted(decodes, key=lambda member: member[1].start, reverse=True):
        length = member[1].start + 1
        if groups and longest * (len(groups[-1]) + 1) <= _PADDING_LIMIT * (total + length):
            groups[-1].append(member)
            total += length
        else:
            groups.append([member])
            longest = total = length
    return groups
