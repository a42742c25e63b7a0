"""Ids of single blocks become ids of whole beginnings, and chained ids stay as they are."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from advisor.logs.chain import chain, is_chained
from advisor.logs.trace import IntColumn, rank_by_first


def ragged(rows: Sequence[Sequence[int]]) -> tuple[IntColumn, IntColumn]:
    ids = np.array([block for row in rows for block in row], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64)))
    return (rank_by_first(ids)[1] if len(ids) else ids), starts


def beginnings(rows: Sequence[Sequence[int]]) -> list[int]:
    """What the ids must be, counted the slow way."""
    known: dict[tuple[int, ...], int] = {}
    return [
        known.setdefault(tuple(row[:end]), len(known)) for row in rows for end in range(1, len(row) + 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[1, 2, 3], [1, 2, 4]], True),
        ([[1, 2], [3, 2]], False),  # one block behind two others
        ([[1, 2], [2]], False),  # one block first and second
        ([[1, 1]], False),  # one block twice in a row
        ([[], [1], []], True),
        ([], True),
    ],
)
def test_what_is_chained(rows: list[list[int]], expected: bool) -> None:
    ids, starts = ragged(rows)
    assert is_chained(ids, starts) is expected
    assert (chain(ids, starts) is ids) is expected


def test_a_block_at_two_places_gets_two_ids() -> None:
    ids, starts = ragged([[7, 8, 9], [9, 8], [7, 8, 8], []])
    assert chain(ids, starts).tolist() == [0, 1, 2, 3, 4, 0, 1, 5]


@pytest.mark.parametrize("seed", range(20))
def test_any_rows_against_a_dictionary_of_beginnings(seed: int) -> None:
    rng = random.Random(seed)
    rows = [[rng.randrange(4) for _ in range(rng.randrange(12))] for _ in range(rng.randrange(40))]
    ids, starts = ragged(rows)
    assert chain(ids, starts).tolist() == beginnings(rows)


@pytest.mark.parametrize("seed", range(5))
def test_chained_ids_are_a_fixed_point(seed: int) -> None:
    rng = random.Random(seed)
    ids, starts = ragged([[rng.randrange(4) for _ in range(rng.randrange(12))] for _ in range(40)])
    once = chain(ids, starts)
    assert is_chained(once, starts)
    assert chain(once, starts) is once
