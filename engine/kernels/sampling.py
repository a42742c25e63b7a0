"""Argmax over a vocabulary in tiles, plain or with Gumbel noise; one number a row leaves the GPU.

Noise comes from triton's counter-based generator (Philox 4x32-10, Salmon et al. 2011): the seed is its key,
position and token id its counter, so that a request draws the same tokens whatever the batch. They are not the
tokens that `engine.sampling` draws, whose generator is 64-bit. Which tokens may be drawn (top-k, top-p) was
decided before: the others' logits are -inf.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803 - triton reads a kernel's annotations itself, and its constants are upper-case by custom

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from engine.kernels.launch import Launch, padded

_TILE = 1024


@triton.jit
def _gumbel(seed, position, token):
    """A Gumbel variable for each token id; seed, position: scalars."""
    low = token.to(tl.uint32)
    zero = low * 0
    bits, _, _, _ = tl.philox(
        seed, low, zero + position.to(tl.uint32), zero + (position >> 32).to(tl.uint32), zero
    )
    uniform = (bits.to(tl.float32) + 0.5) * 2.0**-32
    # Rounding may reach 1, whose exponential variable is infinite: a row's only token could never be drawn.
    uniform = tl.minimum(uniform, 1.0 - 2.0**-24)
    # -log(1 - u) by its series where the difference would round away what makes rare tokens rare.
    series = uniform * (1.0 + uniform * (0.5 + uniform * (1.0 / 3.0)))
    exponential = tl.where(uniform < 2.0**-8, series, -tl.log(1.0 - uniform))
    return -tl.log(exponential)


@triton.jit(do_not_specialize=["logits_row", "tiles"])
def best_kernel(
    logits,  # [rows, VOCAB]
    seeds,  # NOISE: int64 [rows]
    positions,  # NOISE: int64 [rows]
    best,  # float32 [rows, tiles]
    where,  # int32 [rows, tiles]
    logits_row,
    tiles,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    NOISE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token = tile * TILE + tl.arange(0, TILE)
    real = token < VOCAB
    score = tl.load(logits + row * logits_row + token, mask=real, other=float("-inf")).to(tl.float32)
    if NOISE:
        score += _gumbel(tl.load(seeds + row), tl.load(positions + row), token)
    value, index = tl.max(score, 0, return_indices=True)  # the first of equals
    tl.store(best + row * tiles + tile, value)
    tl.store(where + row * tiles + tile, tile * TILE + index)


@triton.jit(do_not_specialize=["tiles"])
def choose_kernel(
    best,  # float32 [rows, tiles]
    where,  # int32 [rows, tiles]
    tokens,  # int64 [rows]
    tiles,
    VOCAB: tl.constexpr,
    TILES_PAD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES_PAD)
    real = tile < tiles
    score = tl.load(best + row * tiles + tile, mask=real, other=float("-inf"))
    _, index = tl.max(score, 0, return_indices=True)
    # With NaN among the logits any index may come back; it must still be a token.
    token = tl.load(where + row * tiles + tl.minimum(index, tiles - 1))
    tl.store(tokens + row, tl.minimum(token, VOCAB - 1).to(tl.int64))


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row, the first of equals. logits: [rows, vocab]; result: int64 [rows]."""
    return _run(logits, None)


def draw(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """A token of each row with probability softmax(logits).

    logits: [rows, vocab], temperature applied, -inf where a token may not be drawn; seeds, positions: int64
    [rows]; result: int64 [rows].
    """
    return _run(logits, (seeds, positions))


class TritonChoice:
    """`engine.sampling.Choice` by these kernels."""

    def greedy(self, logits: torch.Tensor) -> torch.Tensor:
        """See `Choice`."""
        return greedy(logits)

    def draw(self, scaled: torch.Tensor, keys: Sequence[tuple[int, int]]) -> torch.Tensor:
        """See `Choice`."""
        # A seed is what its 64 bits say, whichever way its sign is read.
        numbers = torch.tensor([((seed + 2**63) % 2**64 - 2**63, place) for seed, place in keys])
        seeds, positions = numbers.to(scaled.device).unbind(1)
        return draw(scaled.float(), seeds.contiguous(), positions.contiguous())


def launches(
    logits: torch.Tensor, tokens: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[Launch, Launch]:
    """The two launches that fill `tokens`, int64 [rows]; `keys`: seeds and positions, where noise is wanted."""
    rows, vocab = logits.shape
    tiles = -(-vocab // _TILE)
    best = torch.empty(rows, tiles, dtype=torch.float32, device=logits.device)
    where = torch.empty(rows, tiles, dtype=torch.int32, device=logits.device)
    seeds, positions = keys or (tokens, tokens)
    found = {"best": best, "where": where, "tiles": tiles, "VOCAB": vocab}
    return (
        Launch(
            best_kernel,
            (rows, tiles),
            {
                "logits": logits, "seeds": seeds, "positions": positions, "logits_row": logits.stride(0),
                **found, "TILE": _TILE, "NOISE": keys is not None,
            },
        ),
        Launch(choose_kernel, (rows,), {"tokens": tokens, **found, "TILES_PAD": padded(tiles)}, warps=1),
    )  # fmt: skip


def _run(logits: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for launch in launches(logits, tokens, keys):
        launch.run()
    return tokens
