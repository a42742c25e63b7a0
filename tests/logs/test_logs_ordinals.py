"""Numbers for ids equal what numpy's `unique` and a walk in plain Python give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from advisor.logs.ordinals import distinct, is_by_first, merge_distinct

hashes = st.integers(0, 2**64 - 1)
alike = st.integers(0, 7) | st.integers(2**64 - 8, 2**64 - 1)  # told apart by their lowest bits only


@given(st.lists(hashes | alike, max_size=40))
@example([3, 2, 3, 1, 2])
def test_distinct_is_numpys_unique(ids: list[int]) -> None:
    values = np.array(ids, dtype=np.uint64)
    found, one, place = distinct(values)
    expected, inverse = np.unique(values, return_inverse=True)
    assert np.array_equal(found, expected)
    assert np.array_equal(values[one], expected)
    assert np.array_equal(place, inverse)


@pytest.mark.parametrize("bits", [64, 20, 4])
def test_distinct_of_many(bits: int) -> None:
    values = np.random.default_rng(0).integers(0, 2**bits, 50_000, dtype=np.uint64)
    found, one, place = distinct(values)
    expected, inverse = np.unique(values, return_inverse=True)
    assert np.array_equal(found, expected)
    assert np.array_equal(values[one], expected)
    assert np.array_equal(place, inverse)


@given(st.lists(st.sets(hashes | alike, max_size=20), min_size=1, max_size=5))
def test_merged_parts_have_equal_ordinals_for_equal_values(parts: list[set[int]]) -> None:
    ordinals, count = merge_distinct([np.array(sorted(part), dtype=np.uint64) for part in parts])
    by_value: dict[int, int] = {}
    for part, numbers in zip(parts, ordinals, strict=True):
        for value, number in zip(sorted(part), numbers.tolist(), strict=True):
            assert by_value.setdefault(value, number) == number
    assert sorted(by_value.values()) == list(range(count))


@given(st.lists(st.integers(-1, 5), max_size=12))
def test_ids_by_first_appearance_are_known(ids: list[int]) -> None:
    order = list(dict.fromkeys(ids))
    assert is_by_first(np.array(ids, dtype=np.int32)) == (order == list(range(len(order))))
