"""Sampling: the distribution, the supports of top-k and top-p, and independence from the batch."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from engine.request import SamplingParams
from engine.sampling import sample_step, support
from engine.step import Step, StepRow

VOCAB = 12
LOGITS = torch.tensor([0.1, 2.0, -1.0, 0.7, 1.5, -2.5, 0.0, 1.1, -0.3, 0.4, -1.7, 0.9])


def row(position: int, params: SamplingParams, output_index: int = 0) -> StepRow:
    """A decode row whose sampled token lands at `position`."""
    return StepRow("r", (0,), position - 1, (1,), True, False, params, output_index)


def sample(logits: torch.Tensor, rows: list[StepRow], eos: frozenset[int]) -> list[int]:
    """The tokens of a step whose rows all sample."""
    return [token for token in sample_step(logits, Step(1, tuple(rows)), eos).tokens if token is not None]


def kept(params: SamplingParams) -> set[int]:
    return set(support(LOGITS, params).isfinite().nonzero().flatten().tolist())


def test_draws_follow_softmax_of_scaled_logits() -> None:
    """20,000 draws at temperature 0.8; one draw in a thousand seeds would be rejected by chance."""
    params = SamplingParams(temperature=0.8, seed=4)
    rows = [row(position, params) for position in range(1, 20_001)]
    drawn = torch.tensor(sample(LOGITS.expand(len(rows), -1), rows, frozenset()))
    expected = (LOGITS.double() / 0.8).softmax(dim=-1) * len(rows)
    assert chisquare(drawn.bincount(minlength=VOCAB), expected).pvalue > 1e-3


def test_seeds_draw_independently() -> None:
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in range(5_000)]
    drawn = torch.tensor(sample(LOGITS.expand(len(params), -1), [row(9, one) for one in params], frozenset()))
    expected = LOGITS.double().softmax(dim=-1) * len(params)
    assert chisquare(drawn.bincount(minlength=VOCAB), expected).pvalue > 1e-3


def test_a_row_draws_the_same_in_every_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 500, generator=generator)
    rows = [row(7 + n, SamplingParams(temperature=1.0, top_p=0.9, seed=n % 5)) for n in range(40)]
    together = sample(logits, rows, frozenset())
    order = torch.randperm(40, generator=generator).tolist()
    shuffled = sample(logits[order], [rows[n] for n in order], frozenset())
    assert [together[n] for n in order] == shuffled
    assert [sample(logits[n : n + 1], [rows[n]], frozenset())[0] for n in range(40)] == together


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64 + 5])
def test_any_integer_is_a_seed(seed: int) -> None:
    params = SamplingParams(temperature=1.0, seed=seed)
    assert 0 <= sample(LOGITS[None], [row(1, params)], frozenset())[0] < VOCAB


def test_top_k_keeps_the_k_likeliest() -> None:
    assert kept(SamplingParams(temperature=1.3, top_k=3)) == {1, 4, 7}
    assert kept(SamplingParams(temperature=1.3, top_k=VOCAB + 5)) == set(range(VOCAB))
    assert kept(SamplingParams(temperature=1.3)) == set(range(VOCAB))


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    """By hand: softmax is 0.304 (1), 0.184 (4), 0.124 (7), 0.101 (11), 0.083 (3), ..."""
    assert kept(SamplingParams(temperature=1.0, top_p=0.30)) == {1}
    assert kept(SamplingParams(temperature=1.0, top_p=0.31)) == {1, 4}
    assert kept(SamplingParams(temperature=1.0, top_p=0.71)) == {1, 4, 7, 11}
    assert kept(SamplingParams(temperature=1.0, top_p=0.72)) == {1, 4, 7, 11, 3}
    assert kept(SamplingParams(temperature=1.0, top_p=1e-9)) == {1}


def test_top_p_acts_on_what_top_k_left() -> None:
    """Of tokens 1, 4 and 7 alone, token 1 has 0.496 of the probability."""
    assert kept(SamplingParams(temperature=1.0, top_k=3, top_p=0.49)) == {1}
    assert kept(SamplingParams(temperature=1.0, top_k=3, top_p=0.50)) == {1, 4}


def test_greedy_takes_the_first_of_equals_and_ignores_the_seed() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]], dtype=torch.bfloat16)
    assert sample(logits, [row(1, SamplingParams(seed=9))], frozenset()) == [1]


def test_end_of_sequence_is_suppressed_until_min_tokens() -> None:
    params = SamplingParams(min_tokens=3)
    rows = [row(9, params, output_index) for output_index in (0, 2, 3)]
    assert sample(LOGITS.expand(3, -1), rows, frozenset({1, 4})) == [7, 7, 1]
    drawn = [row(n, SamplingParams(min_tokens=1, temperature=2.0)) for n in range(1, 400)]
    assert not {1, 4} & set(sample(LOGITS.expand(399, -1), drawn, frozenset({1, 4})))


def test_ignore_eos_leaves_the_logits_alone() -> None:
    assert sample(LOGITS[None], [row(9, SamplingParams(ignore_eos=True))], frozenset({1})) == [1]


def test_the_logits_of_the_caller_stay_as_they_are() -> None:
    logits = LOGITS[None].clone()
    sample(logits, [row(9, SamplingParams(min_tokens=3))], frozenset({1}))
    assert torch.equal(logits[0], LOGITS)


def test_neighbouring_large_seeds_differ() -> None:
    """Seeds past 2**53 would fall together if the key went through a float."""
    logits = torch.zeros(1, 10_000)
    drawn = {
        sample(logits, [row(1, SamplingParams(temperature=1.0, seed=2**62 + n))], frozenset())[0]
        for n in range(8)
    }
    assert len(drawn) > 1
