"""Isolation against arithmetic done by hand, and against a salt put into the ids."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.logs.trace import Blocks, Labels, Trace
from advisor.workload.isolation import isolate
from advisor.workload.measure import measure
from engine.errors import InputError


def trace_of(rows: list[tuple[int, list[int]]]) -> Trace:
    """(client code, block ids of 10 tokens) a row, one row a second."""
    lengths = [len(ids) for _, ids in rows]
    ids = np.array([block for _, blocks in rows for block in blocks], dtype=np.int64)
    return Trace(
        arrival_s=np.arange(len(rows), dtype=np.float64),
        prompt_tokens=np.array([10 * n for n in lengths], dtype=np.int64),
        output_tokens=np.full(len(rows), 1, dtype=np.int64),
        blocks=Blocks(10, ids, np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)),
        client=Labels(("a", "b"), np.array([client for client, _ in rows], dtype=np.int64)),
    )


def test_a_prefix_is_shared_within_a_client_only() -> None:
    # Blocks 0, 1 of every row. Shared by all, 3 rows of 4 hit; by client, one of a's two and one of b's.
    trace = trace_of([(0, [0, 1]), (1, [0, 1]), (0, [0, 1]), (1, [0, 1])])
    assert measure(trace).sharing.hit_rate_blocks == 6 / 8
    isolated = isolate(trace, "client")
    assert measure(isolated).sharing.hit_rate_blocks == 4 / 8
    assert isolated.blocks is not None
    assert isolated.blocks.ids.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_rows_without_the_label_share_with_nobody() -> None:
    trace = trace_of([(-1, [0]), (-1, [0]), (0, [0]), (0, [0])])
    assert measure(isolate(trace, "client")).sharing.hit_rate_blocks == 1 / 4


def test_a_log_without_the_label_is_an_error_with_a_hint() -> None:
    with pytest.raises(InputError, match="no sessions"):
        isolate(trace_of([(0, [0])]), "session")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 3), max_size=4)), min_size=1, max_size=20))
def test_equal_to_a_salt_in_the_ids(rows: list[tuple[int, list[int]]]) -> None:
    # Chained ids: the prefix itself, as a number in base 10, so that equal ids have equal prefixes.
    chained = [(c, [int("1" + "".join(map(str, ids[: i + 1]))) for i in range(len(ids))]) for c, ids in rows]
    salted = [(client, [10**6 * (client + 1) + block for block in ids]) for client, ids in chained]
    expected = measure(trace_of(salted)).sharing
    got = measure(replace(isolate(trace_of(chained), "client"), unknown=())).sharing
    assert got.hit_rate_blocks == expected.hit_rate_blocks
    assert got.capacity_curve == expected.capacity_curve
    # What the shared log says of a salt is what is left under one.
    within = measure(trace_of(chained)).sharing.within_client
    assert within == got.hit_rate_tokens


def test_what_was_cached_without_isolation_says_nothing_about_it() -> None:
    trace = replace(trace_of([(0, [0]), (1, [0])]), cached_tokens=np.array([0, 10]))
    workload = measure(isolate(trace, "client"))
    assert workload.sharing.cached_share is None
    assert workload.sharing.unexplained_share is None
    why = {entry.path: entry.why for entry in workload.unknown}
    assert "within a client" in why["sharing.cached_share"]
    assert "within a client" in why["sharing.unexplained_share"]
