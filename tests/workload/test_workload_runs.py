"""Runs of blocks, and the order they are found with, against walks in plain Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
from helpers.workload_traces import chain, make_trace
from hypothesis import example, given
from hypothesis import strategies as st

from advisor.logs.ordinals import run_heads
from advisor.workload.runs import by_key, previous_use

keys = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)  # some leave no room beside them for an index


@given(st.lists(keys, max_size=30) | st.lists(st.integers(-3, 3), max_size=30))
@example([])
@example([2**62, -1, 2**62])
def test_the_use_before_is_the_latest_of_the_same_key(values: list[int]) -> None:
    latest: dict[int, int] = {}
    expected = []
    for index, value in enumerate(values):
        expected.append(latest.get(value, -1))
        latest[value] = index
    assert previous_use(np.array(values, dtype=np.int64)).tolist() == expected


@given(st.lists(keys, max_size=30) | st.lists(st.integers(-3, 3), max_size=30))
@example([])
def test_by_key_is_pythons_stable_sort(values: list[int]) -> None:
    order, is_first = by_key(np.array(values, dtype=np.int64))
    expected = sorted(range(len(values)), key=values.__getitem__)
    assert order.tolist() == expected
    assert is_first.tolist() == [values.index(values[index]) == index for index in expected]


def test_runs_of_a_long_log_begin_where_the_number_of_uses_changes() -> None:
    # Prompts of up to 300 blocks that part anywhere, 150,000 uses: more than are looked up at once.
    rng = np.random.default_rng(0)
    paths = [[0] * int(rng.integers(1, 300)) + [row] * int(rng.integers(0, 3)) for row in range(1000)]
    trace = make_trace([len(path) for path in paths], blocks=chain(paths), size=1)
    assert trace.blocks is not None
    ids, starts = trace.blocks.ids.tolist(), trace.blocks.starts.tolist()
    times = Counter(ids)
    changes = [at for at in range(1, len(ids)) if times[ids[at]] != times[ids[at - 1]]]
    assert len(ids) > 100_000
    assert run_heads(trace.blocks.ids, trace.blocks.starts).tolist() == sorted({*changes, *starts[:-1]})
