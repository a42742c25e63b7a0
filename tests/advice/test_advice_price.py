"""Money from closed forms, worked by hand, and from the break-even examples of facts/hosted.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.advice.price import (
    ApiPrice,
    Tokens,
    api_usd,
    usd_per_million_tokens,
    usd_per_month,
)
from engine.errors import InputError

OPUS = ApiPrice(input=4.0, output=20.0, cached_input=0.2, cache_write=5.0, batch_discount=0.5)


def test_a_month_is_730_hours_of_every_gpu() -> None:
    assert usd_per_month(8, 2.5) == 14_600


def test_a_million_tokens_at_full_and_at_half_load() -> None:
    # 3600 tokens/s are 12.96 million an hour; two GPUs at 3.24 cost 6.48: half a dollar a million.
    assert usd_per_million_tokens(2, 3.24, 3600) == pytest.approx(0.5)
    assert usd_per_million_tokens(2, 3.24, 3600, load=0.5) == pytest.approx(1.0)
    assert usd_per_million_tokens(2, 3.24, 0) is None


def test_each_kind_of_token_has_its_price() -> None:
    million = 1e6
    assert api_usd(Tokens(million, 0, 0, 0), OPUS) == pytest.approx(4.0)
    assert api_usd(Tokens(0, million, 0, 0), OPUS) == pytest.approx(0.2)
    assert api_usd(Tokens(0, 0, million, 0), OPUS) == pytest.approx(5.0)
    assert api_usd(Tokens(0, 0, 0, million), OPUS) == pytest.approx(20.0)
    assert api_usd(Tokens(million, million, million, million), OPUS, batch=True) == pytest.approx(14.6)


def test_without_cache_prices_cached_tokens_cost_as_input() -> None:
    plain = ApiPrice(input=1.04, output=1.04)
    assert api_usd(Tokens(0, 5e5, 5e5, 1e6), plain) == pytest.approx(2.08)


def test_a_prompt_splits_by_its_hit_rate() -> None:
    assert Tokens.of(1000, 50, 0.75) == Tokens(250, 750, 0, 50)
    assert Tokens.of(1000, 50, 0.75, writes=True) == Tokens(0, 750, 250, 50)


def test_batch_prices_of_the_facts_are_half(shared: Path) -> None:
    facts = json.loads((shared / "facts" / "hosted.json").read_text())
    row = next(row for row in facts["models"] if row["model"] == "claude-opus-5-5")
    price = ApiPrice(row["input"], row["output"], row["cached_input"], row["cache_write"], 0.5)
    assert api_usd(Tokens(1e6, 0, 0, 0), price, batch=True) == pytest.approx(row["batch_input"])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: usd_per_month(1, -1.0),
        lambda: usd_per_million_tokens(1, 1.0, 10, load=1.5),
        lambda: Tokens.of(10, 1, 1.2),
        lambda: Tokens(-1, 0, 0, 0),
        lambda: ApiPrice(1.0, -1.0),
        lambda: ApiPrice(1.0, 1.0, batch_discount=2.0),
    ],
)
def test_what_cannot_be_a_price_is_an_input_error(wrong: object) -> None:
    with pytest.raises(InputError):
        wrong()  # type: ignore[operator]
