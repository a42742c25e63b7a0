"""Attention over paged KV in plain torch: the CPU backend, and the oracle for faster ones.

Owns the KV pool. A step's decode rows are gathered into padded groups and attended together; each prefill row
is attended alone, its chunk's queries only. Positions beyond a row's length are never read as numbers: their
keys and values are zeroed after the gather, so that NaN in an unused slot cannot leak through 0 x NaN
(vllm#47305).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.shape import ModelShape
from engine.step import StepRow

_PADDING_LIMIT = 2.0
"""Longest over mean length in a decode group; beyond it the gather copies mostly padding."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decode rows of similar length that attend as one batch."""

    tokens: torch.Tensor  # [rows] where each row's query token stands in the step
    blocks: torch.Tensor  # [rows * longest], short rows padded with the trash block
    mask: torch.Tensor  # [rows, 1, 1, slots] 0 or -inf
    beyond: torch.Tensor  # [n] slots past a row's length, of rows * slots


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """One sequence's chunk of queries, over its whole context."""

    first: int
    last: int  # tokens [first, last) of the step
    length: int  # positions in KV, these tokens included
    blocks: torch.Tensor  # [blocks]
    mask: torch.Tensor | None  # [queries, length] 0 or -inf; None where plain causal masking is right


@dataclass(frozen=True, slots=True)
class TorchMeta:
    """One step's index tensors."""

    slots: torch.Tensor  # [tokens] where to store each token
    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillRow, ...]


class TorchAttention:
    """`AttentionBackend` on torch tensors; the pool takes 2 * layers * num_blocks * block_size * kv size."""

    def __init__(self, shape: ModelShape, *, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        self._block_size = block_size
        self._kv_heads = shape.kv_heads
        self._head_dim = shape.head_dim
        self._dtype = dtype
        # Not zeroed: unwritten slots are never read as numbers, and memory is taken only as blocks are used.
        self.pool = torch.empty(
            shape.layers, 2, num_blocks, block_size, shape.kv_heads, shape.head_dim, dtype=dtype
        )
        # Views made once: indexing the pool costs more than it looks, 60 times a step.
        self._by_block = [(keys.flatten(1), values.flatten(1)) for keys, values in self.pool]
        self._by_slot = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self.pool]
        # Gathers land here: fresh memory of this size would be page-faulted in anew by every layer.
        self._gathered = torch.empty(2, 0, block_size * shape.kv_heads * shape.head_dim, dtype=dtype)

    def plan(self, rows: Sequence[StepRow]) -> TorchMeta:
        """See `AttentionBackend.plan`."""
        size = self._block_size
        slots: list[int] = []
        decodes: list[tuple[int, StepRow]] = []
        prefills: list[PrefillRow] = []
        for row in rows:
            first = len(slots)
            length = row.start + len(row.tokens)
            slots += [row.blocks[p // size] * size + p % size for p in range(row.start, length)]
            if len(row.tokens) == 1:
                decodes.append((first, row))
            else:
                prefills.append(self._prefill(row, first, length))
        groups = tuple(self._group(group) for group in _similar(decodes))
        return TorchMeta(torch.tensor(slots), groups, tuple(prefills))

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, meta: TorchMeta
    ) -> torch.Tensor:
        """See `AttentionBackend.attend`."""
        key_slots, value_slots = self._by_slot[layer]
        key_slots.index_copy_(0, meta.slots, k)
        value_slots.index_copy_(0, meta.slots, v)
        out = torch.empty_like(q)
        for group in meta.decodes:
            out.index_copy_(0, group.tokens, self._decode(layer, q, group))
        for row in meta.prefills:
            out[row.first : row.last] = self._prefill_row(layer, q[row.first : row.last], row)
        return out

    def _decode(self, layer: int, q: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
        rows, heads = len(group.tokens), q.shape[1]
        keys, values = self._gather(layer, group.blocks)
        keys.index_fill_(0, group.beyond, 0)
        values.index_fill_(0, group.beyond, 0)
        # The query heads of one KV head are rows of one matrix: no copy of K and V per query head.
        grouped = q.index_select(0, group.tokens).view(rows, self._kv_heads, -1, self._head_dim)
        out = scaled_dot_product_attention(
            grouped,  # [rows, kv_heads, heads / kv_heads, head_dim]
            keys.view(rows, -1, self._kv_heads, self._head_dim).transpose(1, 2),
            values.view(rows, -1, self._kv_heads, self._head_dim).transpose(1, 2),
            attn_mask=group.mask,
        )
        return out.reshape(rows, heads, self._head_dim)

    def _prefill_row(self, layer: int, q: torch.Tensor, row: PrefillRow) -> torch.Tensor:
        queries, heads, head_dim = q.shape
        keys, values = self._gather(layer, row.blocks)
        group = heads // self._kv_heads
        out = scaled_dot_product_attention(
            q.view(queries, self._kv_heads, group, head_dim).permute(1, 2, 0, 3),
            keys[: row.length].transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1),
            values[: row.length].transpose(0, 1).unsqueeze(1).expand(-1, group, -1, -1),
            attn_mask=row.mask,
            is_causal=row.mask is None,
        )  # [kv_heads, heads / kv_heads, queries, head_dim]
        return out.permute(2, 0, 1, 3).reshape(queries, heads, head_dim)

    def _gather(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of blocks' keys and values, each [blocks * block_size, kv_heads, head_dim].

        They are good until the next gather.
        """
        count = len(blocks)
        if count > self._gathered.shape[1]:
            self._gathered = self._gathered.new_empty(2, count, self._gathered.shape[2])
        keys, values = (
            torch.index_select(source, 0, blocks, out=copy[:count]).view(-1, self._kv_heads, self._head_dim)
            for source, copy in zip(self._by_block[layer], self._gathered, strict=True)
        )
        return keys, values

    def _group(self, members: Sequence[tuple[int, StepRow]]) -> DecodeGroup:
        lengths = torch.tensor([[row.start + 1] for _, row in members])
        longest = -(-int(lengths.max()) // self._block_size)
        table = [block for _, row in members for block in _padded(row.blocks, longest)]
        beyond = torch.arange(longest * self._block_size) >= lengths  # [rows, slots]
        mask = torch.zeros(beyond.shape, dtype=self._dtype).masked_fill_(beyond, -torch.inf)
        return DecodeGroup(
            torch.tensor([first for first, _ in members]),
            torch.tensor(table),
            mask[:, None, None, :],
            beyond.flatten().nonzero().squeeze(1),
        )

    def _prefill(self, row: StepRow, first: int, length: int) -> PrefillRow:
        mask = None
        if row.start:
            # Lower-right aligned: query i of the chunk sees the context and the chunk up to itself.
            ahead = torch.ones(len(row.tokens), length, dtype=torch.bool).triu_(row.start + 1)
            mask = torch.zeros(ahead.shape, dtype=self._dtype).masked_fill_(ahead, -torch.inf)
        used = -(-length // self._block_size)
        return PrefillRow(first, first + len(row.tokens), length, torch.tensor(row.blocks[:used]), mask)


def _similar(decodes: list[tuple[int, StepRow]]) -> list[list[tuple[int, StepRow]]]:
    """Split decode rows, longest first, so that no group's longest is over twice its mean."""
    groups: list[list[tuple[int, StepRow]]] = []
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


def _padded(blocks: tuple[int, ...], size: int) -> tuple[int, ...]:
    return blocks[:size] + (0,) * (size - len(blocks))
