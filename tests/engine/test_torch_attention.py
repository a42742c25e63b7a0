"""Paged attention against a dense float64 one, with NaN in every slot that must not be read."""

from __future__ import annotations

from random import Random

import pytest
import torch

from engine.attention.torch import TorchAttention
from engine.request import SamplingParams
from engine.shape import ModelShape
from engine.step import StepRow

BLOCK, HEADS, KV_HEADS, DIM, LAYERS = 16, 6, 2, 32, 2
SHAPE = ModelShape(
    layers=LAYERS, hidden=192, heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, ffn=64, vocab=64, max_len=2048
)
BOUNDARIES = [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK]


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, window: int = 0) -> torch.Tensor:
    """Causal attention of queries at `start ..` over k and v, or the last `window`, written out, in float64."""
    group = HEADS // KV_HEADS
    keys, values = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) / DIM**0.5
    distance = start + torch.arange(len(q))[:, None] - torch.arange(len(k))[None, :]
    hidden = (distance < 0) | (distance >= (window or len(k)))
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


class Sequences:
    """Random keys and values of some sequences, and a backend whose pool holds their context."""

    def __init__(
        self,
        parts: list[tuple[int, int]],
        dtype: torch.dtype,
        seed: int,
        window: int = 0,
        shuffled: bool = True,
    ) -> None:
        self.window = window
        generator = torch.Generator().manual_seed(seed)
        random = Random(seed)
        needed = [-(-(start + new) // BLOCK) for start, new in parts]
        free = list(range(1, sum(needed) + 1))
        if shuffled:
            random.shuffle(free)
        self.backend = TorchAttention(
            SHAPE, num_blocks=len(free) + 1, block_size=BLOCK, dtype=dtype, windows=(0, window)
        )
        self.backend.pool.fill_(torch.nan)
        self.rows: list[StepRow] = []
        self.q, self.k, self.v = [], [], []
        for (start, new), blocks in zip(parts, needed, strict=True):
            taken, free = tuple(free[:blocks]), free[blocks:]
            q, k, v = (
                torch.randn(start + new, heads, DIM, generator=generator, dtype=torch.float64).to(dtype)
                for heads in (HEADS, KV_HEADS, KV_HEADS)
            )
            for position in range(start):
                block, offset = taken[position // BLOCK], position % BLOCK
                self.backend.pool[1, 0, block, offset] = k[position]
                self.backend.pool[1, 1, block, offset] = v[position]
            self.rows.append(StepRow("r", (0,) * new, start, taken, True, new > 1, SamplingParams()))
            self.q.append(q[start:])
            self.k.append(k)
            self.v.append(v)

    def attend(self) -> list[torch.Tensor]:
        """The backend's outputs, a tensor per row, in layer 1."""
        new = [len(row.tokens) for row in self.rows]
        k, v = (
            torch.cat([x[row.start :] for x, row in zip(kv, self.rows, strict=True)]) for kv in (self.k, self.v)
        )
        out = self.backend.attend(1, torch.cat(self.q), k, v, self.backend.plan(self.rows))
        return list(out.split(new))

    def expected(self) -> list[torch.Tensor]:
        """The dense answers."""
        return [
            dense(q, k, v, row.start, self.window)
            for q, k, v, row in zip(self.q, self.k, self.v, self.rows, strict=True)
        ]


def check(
    parts: list[tuple[int, int]], dtype: torch.dtype = torch.float64, tolerance: float = 1e-12, window: int = 0
) -> None:
    """In blocks of any order, and in blocks that lie behind each other."""
    for shuffled in (True, False):
        sequences = Sequences(parts, dtype, len(parts), window, shuffled)
        for ours, dense_out in zip(sequences.attend(), sequences.expected(), strict=True):
            torch.testing.assert_close(ours.double(), dense_out, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("new", BOUNDARIES)
@pytest.mark.parametrize("start", [0, *BOUNDARIES])
def test_one_row_at_block_boundaries(start: int, new: int) -> None:
    check([(start, new)])


def test_decodes_prefills_and_lone_tokens_in_one_step() -> None:
    check([(15, 1), (100, 1), (16, 1), (0, 40), (33, 17), (0, 1), (64, 64)])


def test_decode_lengths_far_apart() -> None:
    check([(start, 1) for start in (3, 900, 17, 0, 450, 31, 32, 33, 1, 890)])


@pytest.mark.parametrize("window", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 40, 5000])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    lengths = [(start, 1) for start in (0, 15, 16, 17, 39, 40, 41, 300)]
    check([*lengths, (0, 50), (15, 17), (16, 40), (64, 64), (200, 2)], window=window)


# Rounding of the number format is about 2^-8 of a value near 1, or 2^-11; outputs are averages of such values.
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)]
)
def test_serving_dtypes(dtype: torch.dtype, tolerance: float) -> None:
    check([(15, 1), (100, 1), (0, 40), (33, 17)], dtype, tolerance)


def test_only_the_own_layer_and_slots_are_written() -> None:
    sequences = Sequences([(20, 1), (0, 18)], torch.float64, seed=1)
    before = sequences.backend.pool.clone()
    sequences.attend()
    changed = (sequences.backend.pool != before) & ~(sequences.backend.pool.isnan() & before.isnan())
    touched = changed.flatten(4).any(dim=-1).nonzero().tolist()
    decode, prefill = sequences.rows
    # The decode's own slot, and zeros in the rest of its last block, which it alone holds.
    slots = [(decode.blocks[1], offset) for offset in range(4, BLOCK)]
    slots += [(prefill.blocks[p // BLOCK], p % BLOCK) for p in range(18)]
    assert sorted(map(tuple, touched)) == sorted((1, kv, *slot) for kv in (0, 1) for slot in slots)
    assert not sequences.backend.pool[1, :, decode.blocks[1], 5:].any()


def test_a_block_that_changes_hands_is_zeroed_again() -> None:
    """A decode begins it, others fill it with NaN, a prefill begins it anew, and a decode reads it."""
    backend = TorchAttention(SHAPE, num_blocks=3, block_size=BLOCK, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)

    def attend(start: int, new: int, value: float | None = None) -> tuple[torch.Tensor, ...]:
        row = StepRow("r", (0,) * new, start, (1,), True, new > 1, SamplingParams())
        q, k, v = (
            torch.randn(new, heads, DIM, generator=generator, dtype=torch.float64)
            for heads in (HEADS, KV_HEADS, KV_HEADS)
        )
        if value is not None:
            k.fill_(value)
        return q, k, v, backend.attend(0, q, k, v, backend.plan([row]))

    for start in range(3):
        attend(start, 1)
    attend(0, BLOCK, torch.nan)
    _, k, v, _ = attend(0, 5)
    q, more_k, more_v, out = attend(5, 1)
    torch.testing.assert_close(out, dense(q, torch.cat((k, more_k)), torch.cat((v, more_v)), 5))
