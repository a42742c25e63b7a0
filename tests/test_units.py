"""Quantities as people write and read them."""

from __future__ import annotations

import pytest

from advisor.units import parse_seconds, show_seconds


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("300ms", 0.3, "0.3 s"),
        ("90s", 90.0, "90 s"),
        ("90m", 5_400.0, "90 min"),
        ("6h", 21_600.0, "6 h"),
        ("11.25h", 40_500.0, "11.25 h"),
        ("2d", 172_800.0, "48 h"),
        ("5d", 432_000.0, "5 d"),
    ],
)
def test_a_duration_is_read_in_any_unit_and_shown_in_the_one_that_suits_it(
    text: str, seconds: float, shown: str
) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)
    assert show_seconds(seconds) == shown
