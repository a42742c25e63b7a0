"""The linear layer in every dtype, against the product in float64."""

from __future__ import annotations

import pytest
import torch

from engine.model import linear as linears
from engine.model.linear import GatedLinear, Linear
from engine.model.ops import TorchOps


@pytest.fixture(params=[False, True], ids=["narrow", "wide"], autouse=True)
def wide(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of many bfloat16 tokens as a CPU does them whose float32 is slow, and as one whose is fast."""
    monkeypatch.setattr("engine.model.linear._float32_is_faster", lambda _threads: request.param)


@pytest.mark.parametrize("tokens", [1, 7, 33, 130])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),  # half of a unit in the last place of outputs near 2
    [(torch.bfloat16, 2**-7), (torch.float16, 2**-10), (torch.float32, 1e-5), (torch.float64, 1e-13)],
)
def test_is_the_exact_product_rounded(
    dtype: torch.dtype, tolerance: float, with_bias: bool, tokens: int
) -> None:
    generator = torch.Generator().manual_seed(tokens)
    x, weight, bias = (
        torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)
        for size in ((tokens, 72), (50, 72), (50,))
    )
    weight /= 8
    with torch.inference_mode():
        ours = Linear(weight, bias if with_bias else None)(x)
    exact = x.double() @ weight.double().T + (bias.double() if with_bias else 0)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("tokens", [1, 7, 33, 130])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),  # gate and product are each rounded
    [(torch.bfloat16, 2**-6), (torch.float16, 2**-9), (torch.float32, 1e-5), (torch.float64, 1e-13)],
)
def test_a_gated_layer_is_silu_of_the_gate_times_the_rest(
    dtype: torch.dtype, tolerance: float, with_bias: bool, tokens: int
) -> None:
    generator = torch.Generator().manual_seed(tokens)
    x, weight, bias = (
        torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)
        for size in ((tokens, 72), (100, 72), (100,))
    )
    weight /= 8
    with torch.inference_mode():
        ours = GatedLinear(weight, bias if with_bias else None, TorchOps())(x)
    gate, up = (x.double() @ weight.double().T + (bias.double() if with_bias else 0)).chunk(2, dim=1)
    exact = gate / (1 + (-gate).exp()) * up
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("packs", [True, False])
def test_wide_products_are_chosen_by_the_race_and_from_so_many_tokens_on(
    monkeypatch: pytest.MonkeyPatch, packs: bool
) -> None:
    weight = torch.ones(8, 8, dtype=torch.bfloat16)
    if packs and not linears._packs(weight):
        pytest.skip("this CPU has no packed bfloat16 product")
    if not packs:
        monkeypatch.setattr(linears, "_packs", lambda _weight: False)
    least = linears.WIDE_FROM if packs else linears.PLAIN_WIDE_FROM
    tokens: list[int] = []
    wide = linears._wide
    monkeypatch.setattr(linears, "_wide", lambda x, *rest: tokens.append(len(x)) or wide(x, *rest))
    for faster in (False, True):
        monkeypatch.setattr(linears, "_float32_is_faster", lambda _threads, faster=faster: faster)
        with torch.inference_mode():
            for count in (least - 1, least):
                Linear(weight)(torch.ones(count, 8, dtype=torch.bfloat16))
        assert tokens == ([least] if faster else [])
