"""Block ids and novel tokens equal what sets of whole prefixes give."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from advisor.logs.columns import Columns
from advisor.logs.formats.base import Basis
from advisor.logs.identity import BlockIndex
from advisor.logs.record import Record

Rows = list[tuple[str, list[int]]]
prompts = st.lists(
    st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 1), min_size=1, max_size=9)),
    min_size=1,
    max_size=12,
)


def build(
    rows: Rows, arrivals: list[int], size: int, key: bytes
) -> tuple[list[list[int]], list[int], list[int]]:
    """Block ids and novel tokens of the rows in order of arrival, and that order."""
    index, columns = BlockIndex(size, key), Columns(size)
    for (model, tokens), arrival in zip(rows, arrivals, strict=True):
        record = Record(arrival_ns=arrival, prompt_tokens=len(tokens), model=model)
        columns.add(record, index.add(model, tokens))
    index.check_invariants()
    trace = columns.finish(Basis(clock=None, arrival=""), index)[0]
    assert trace.blocks is not None
    assert trace.novel_tokens is not None
    order = np.argsort(arrivals, kind="stable").tolist()
    return [trace.blocks.row(row).tolist() for row in range(len(rows))], trace.novel_tokens.tolist(), order


@given(prompts, st.integers(1, 4), st.data())
def test_ids_and_novel_tokens_against_sets_of_prefixes(rows: Rows, size: int, data: st.DataObject) -> None:
    arrivals = data.draw(st.lists(st.integers(0, 5), min_size=len(rows), max_size=len(rows)))
    ids, novel, order = build(rows, arrivals, size, b"key")
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for place, row in enumerate(order):
        model, tokens = rows[row]
        ends = range(size, len(tokens) + 1, size)
        assert ids[place] == [known.setdefault((model, tuple(tokens[:end])), len(known)) for end in ends]
        prefixes = {(model, tuple(tokens[:end])) for end in range(1, len(tokens) + 1)}
        assert novel[place] == len(prefixes - seen)
        seen |= prefixes


@given(prompts, st.integers(1, 4))
def test_the_key_of_the_run_does_not_show(rows: Rows, size: int) -> None:
    arrivals = list(range(len(rows)))
    assert build(rows, arrivals, size, b"one key") == build(rows, arrivals, size, b"another")


@given(prompts, st.randoms(use_true_random=False))
def test_the_sum_of_novel_tokens_does_not_depend_on_order_or_block_size(rows: Rows, random: object) -> None:
    one = build(rows, list(range(len(rows))), 1, b"key")[1]
    other = build(rows, list(range(len(rows)))[::-1], 4, b"key")[1]
    assert sum(one) == sum(other)
