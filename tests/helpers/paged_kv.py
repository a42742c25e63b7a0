"""Sequences in shuffled blocks of a pool that is NaN elsewhere, and attention over them by the formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch

from engine.request import SamplingParams
from engine.shape import ModelShape
from engine.step import StepRow

MAX_LEN = 4096


@dataclass(frozen=True)
class Sizes:
    """Of a model's attention. `window`: tokens that a query sees, itself included; 0: all before it."""

    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    block: int = 16
    window: int = 0

    @property
    def shape(self) -> ModelShape:
        """A model of two layers with these sizes."""
        return ModelShape(
            layers=2, hidden=self.heads * self.head_dim, heads=self.heads, kv_heads=self.kv_heads,
            head_dim=self.head_dim, ffn=64, vocab=64, max_len=MAX_LEN,
        )  # fmt: skip


@dataclass
class Filled:
    """A step's rows, with a tensor each of queries, and of keys and values of the whole sequence."""

    sizes: Sizes
    rows: list[StepRow]
    q: list[torch.Tensor]
    k: list[torch.Tensor]
    v: list[torch.Tensor]
    num_blocks: int

    def fill(self, pool: torch.Tensor, layer: int = 1) -> None:
        """Put every row's context into a pool [layers, 2, blocks, block, kv_heads, head_dim], NaN elsewhere."""
        pool.fill_(torch.nan)
        for row, k, v in zip(self.rows, self.k, self.v, strict=True):
            for position in range(row.start):
                block, offset = row.blocks[position // self.sizes.block], position % self.sizes.block
                pool[layer, 0, block, offset] = k[position]
                pool[layer, 1, block, offset] = v[position]

    def step(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v of the step's tokens, as views of one tensor as the decoder's are."""
        k, v = (
            torch.cat([x[row.start :] for x, row in zip(kv, self.rows, strict=True)]) for kv in (self.k, self.v)
        )
        sizes = [self.sizes.heads, self.sizes.kv_heads, self.sizes.kv_heads]
        q, k, v = torch.split(torch.cat((torch.cat(self.q), k, v), dim=1), sizes, dim=1)
        return q, k, v

    def expected(self) -> torch.Tensor:
        """Attention of the step's tokens, float64 [tokens, heads, head_dim]."""
        return torch.cat(
            [
                dense(q, k, v, row.start, self.sizes.window)
                for q, k, v, row in zip(self.q, self.k, self.v, self.rows, strict=True)
            ]
        )


def filled(parts: Sequence[tuple[int, int]], dtype: torch.dtype, sizes: Sizes, seed: int = 0) -> Filled:
    """Random sequences, each of `start` positions in KV and `new` tokens of the step."""
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-(start + new) // sizes.block) for start, new in parts]
    free = list(range(1, sum(needed) + 1))
    Random(seed).shuffle(free)
    result = Filled(sizes, [], [], [], [], len(free) + 1)
    for (start, new), blocks in zip(parts, needed, strict=True):
        taken, free = tuple(free[:blocks]), free[blocks:]
        q, k, v = (
            torch.randn(start + new, heads, sizes.head_dim, generator=generator, dtype=torch.float64).to(dtype)
            for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads)
        )
        result.rows.append(StepRow("r", (0,) * new, start, taken, True, new > 1, SamplingParams()))
        result.q.append(q[start:])
        result.k.append(k)
        result.v.append(v)
    return result


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, window: int = 0) -> torch.Tensor:
    """Causal attention of queries at `start ..` over all of k and v, written out, in float64."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) / q.shape[2] ** 0.5
    key, query = torch.arange(len(k))[None, :], start + torch.arange(len(q))[:, None]
    hidden = key > query
    if window:
        hidden |= key <= query - window
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)
