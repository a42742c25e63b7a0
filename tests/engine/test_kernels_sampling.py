"""Argmax and Gumbel argmax over tiles of a vocabulary, under the interpreter."""

from __future__ import annotations

import pytest
import torch
from helpers.interpreter import interpreted

pytest.importorskip("triton")

VOCAB = 2500  # two full tiles and a part of one


def logits_of(rows: int, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0))


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_greedy_is_the_argmax_wherever_it_lies(dtype: torch.dtype) -> None:
    from engine.kernels.sampling import greedy

    logits = logits_of(6).to(dtype)
    places = torch.tensor([0, 1023, 1024, 2047, 2048, VOCAB - 1])
    logits[torch.arange(6), places] = 50
    assert torch.equal(greedy(logits), places)


@interpreted
def test_of_equals_the_first_is_taken() -> None:
    from engine.kernels.sampling import greedy

    logits = torch.zeros(3, VOCAB)
    logits[1, [700, 1500, 2400]] = 3
    logits[2] = -torch.inf
    assert greedy(logits).tolist() == [0, 700, 0]


@interpreted
def test_a_place_past_the_vocabulary_as_nan_may_give_becomes_a_token() -> None:
    """A maximum among NaN may be any place of a tile; the interpreter skips NaN, so the place is made up."""
    from engine.kernels.sampling import choose_kernel

    tokens = torch.empty(1, dtype=torch.int64)
    where = torch.tensor([[1000, 2040, 3071]], dtype=torch.int32)
    best = torch.tensor([[0.0, 1.0, 2.0]])
    choose_kernel[(1,)](best, where, tokens, 3, VOCAB=VOCAB, TILES_PAD=4)
    assert tokens.tolist() == [VOCAB - 1]


@interpreted
def test_draws_are_in_proportion_to_probability() -> None:
    """Counts of 400 draws from 5 tokens: a chi-squared of 4 degrees of freedom passes 23.5 once in 10,000."""
    from engine.kernels.sampling import draw

    probability = torch.tensor([0.5, 0.25, 0.15, 0.08, 0.02])
    count = 400
    tokens = draw(probability.log().expand(count, 5), torch.full((count,), 7), torch.arange(count))
    counts = tokens.bincount(minlength=5)
    expected = probability * count
    assert float(((counts - expected) ** 2 / expected).sum()) < 23.5


@interpreted
def test_one_token_as_likely_as_a_thousand_others_is_drawn_half_of_the_time() -> None:
    """Tells a Gumbel variable from its mirror image. Of 150 draws 75, with a standard deviation of 6.1."""
    from engine.kernels.sampling import draw

    logits = torch.zeros(150, 1001)
    logits[:, 0] = torch.tensor(1000.0).log()
    tokens = draw(logits, torch.full((150,), 5), torch.arange(150))
    assert abs(int((tokens == 0).sum()) - 75) < 5 * 6.1


@interpreted
def test_a_draw_depends_on_seed_and_position_and_on_nothing_else() -> None:
    from engine.kernels.sampling import draw

    row = torch.zeros(1, VOCAB)
    alone = int(draw(row, torch.tensor([3]), torch.tensor([41])))
    seeds, positions = torch.tensor([9, 3, 3, -(2**40), 3]), torch.tensor([41, 41, 42, 41, 41 + 2**32])
    among = draw(row.expand(5, -1), seeds, positions).tolist()
    assert among[1] == alone
    assert len(set(among)) == 5  # 2,500 tokens: a chance of 0.4 % to coincide, with these keys it does not


@interpreted
def test_tokens_outside_the_support_are_never_drawn_and_a_lone_one_always() -> None:
    from engine.kernels.sampling import draw

    logits = torch.full((40, VOCAB), -torch.inf)
    logits[:, [5, 1800]] = 0.0
    logits[:10, 5] = -torch.inf
    tokens = draw(logits, torch.zeros(40, dtype=torch.int64), torch.arange(40))
    assert (tokens[:10] == 1800).all()
    assert set(tokens[10:].tolist()) == {5, 1800}


@interpreted
def test_the_largest_of_equals_with_noise_is_uniform() -> None:
    """200 draws from 1,000: mean and deviation within 5 standard errors of a uniform variable's."""
    from engine.kernels.sampling import draw

    vocab, count = 1000, 200
    tokens = draw(
        torch.zeros(count, vocab), torch.arange(count), torch.zeros(count, dtype=torch.int64)
    ).double()
    deviation = vocab / 12**0.5
    assert abs(float(tokens.mean()) - (vocab - 1) / 2) < 5 * deviation / count**0.5
    assert abs(float(tokens.std()) - deviation) < 5 * deviation / count**0.5


@interpreted
def test_the_choice_of_a_gpu_takes_keys_as_the_engine_gives_them() -> None:
    from engine.kernels.sampling import TritonChoice, draw

    rows = torch.zeros(3, VOCAB, dtype=torch.float64)
    keys = [(2**63 - 1, 5), (2**64 - 3, 5), (-3, 5)]
    tokens = TritonChoice().draw(rows, keys).tolist()
    assert tokens[1] == tokens[2] != tokens[0]
    assert tokens[0] == int(draw(rows[:1], torch.tensor([2**63 - 1]), torch.tensor([5])))
    places = torch.tensor([3, 1500, VOCAB - 1])
    rows[torch.arange(3), places] = 1
    assert torch.equal(TritonChoice().greedy(rows), places)
