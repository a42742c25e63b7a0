"""Reuse over time and over windows: public Mooncake figures, and explicit caches that forget or start empty."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers.workload_traces import chain, make_trace, mooncake
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.logs.trace import Trace
from advisor.workload.measure import measure
from advisor.workload.reuse import gaps_of, weighted_percentiles, window_hits
from advisor.workload.runs import Runs, find_runs
from advisor.workload.sharing import measure_sharing


def runs_of(trace: Trace) -> Runs:
    assert trace.blocks is not None
    return find_runs(trace.blocks, trace.prompt_tokens)


@pytest.fixture(scope="module")
def conversation(shared: Path) -> Trace:
    return mooncake(shared)


def block_hit_rates(trace: Trace, parts: int) -> list[float]:
    """Of every window of consecutive rows, from an empty cache."""
    assert trace.blocks is not None
    cuts = trace.blocks.starts[len(trace) * np.arange(parts + 1) // parts]
    return (window_hits(runs_of(trace), len(trace), parts)[:, 0] / np.diff(cuts)).tolist()


def test_mooncake_conversation_window_effects_on_prefix_hit(conversation: Trace) -> None:
    # traces/README.md: whole file 0.366, first half 0.346, first tenth 0.233, a middle tenth 0.200.
    assert block_hit_rates(conversation, 1) == [pytest.approx(0.366, abs=5e-4)]
    assert block_hit_rates(conversation, 2)[0] == pytest.approx(0.346, abs=5e-4)
    assert block_hit_rates(conversation, 10)[0] == pytest.approx(0.233, abs=5e-4)
    assert block_hit_rates(conversation, 10)[5] == pytest.approx(0.200, abs=5e-4)


def test_mooncake_conversation_random_tenth_prefix_hit(conversation: Trace) -> None:
    # traces/README.md: a random tenth of the rows 0.122. Mean of ten draws, standard deviation 0.008 each.
    rates = []
    for seed in range(10):
        rows = np.random.default_rng(seed).choice(len(conversation), len(conversation) // 10, replace=False)
        sharing = measure_sharing(conversation.take(np.sort(rows)), 0, ()).sharing
        rates.append(sharing.hit_rate_blocks)
    assert np.mean(rates) == pytest.approx(0.122, abs=0.006)


def test_mooncake_conversation_window_curve(conversation: Trace) -> None:
    curve = measure_sharing(conversation, 0, ()).sharing.window_curve
    assert [point.share for point in curve] == [0.1, 0.25, 0.5, 1.0]
    assert curve[-1].hit_rate_blocks == pytest.approx(0.366412, abs=5e-7)  # expected_stats.json
    assert curve[-1].hit_rate_tokens == pytest.approx(0.373624, abs=5e-7)
    # Each is the mean of its windows, weighted by their blocks.
    assert conversation.blocks is not None
    halves = block_hit_rates(conversation, 2)
    blocks = np.diff(conversation.blocks.starts[[0, 6015, 12031]])
    assert curve[2].hit_rate_blocks == pytest.approx(np.average(halves, weights=blocks))


def test_mooncake_conversation_reuse_within_a_cache_life(conversation: Trace) -> None:
    # reference/logs.md A3.5: without the block of every request, 76 % of reuses within 300 s, 93 % in 600 s.
    runs = runs_of(conversation)
    own = runs.uses()[runs.node] < len(conversation)
    reuses = runs.blocks[own & runs.seen].sum()
    for life, share in ((300, 0.76), (600, 0.93)):
        kept = runs.blocks[own & (gaps_of(runs, conversation.arrival_s) <= life)].sum()
        assert kept / reuses == pytest.approx(share, abs=0.005)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    rows = draw(
        st.lists(
            st.tuples(st.lists(st.integers(0, 1), max_size=5), st.integers(0, 2), st.integers(0, 400)),
            min_size=1,
            max_size=20,
        )
    )
    return make_trace(
        [max(0, 3 * len(path) - cut) for path, cut, _ in rows],
        arrivals=np.cumsum([gap for _, _, gap in rows]),
        blocks=chain([path for path, _, _ in rows]),
        size=3,
    )


def kept_tokens(trace: Trace, life_s: float) -> int:
    """Hit tokens of a cache that remembers when each block was last used, and forgets it `life_s` later."""
    assert trace.blocks is not None
    last_use: dict[int, float] = {}
    hits = 0
    for row in range(len(trace)):
        now, path = float(trace.arrival_s[row]), trace.blocks.row(row).tolist()
        warm = [now - last_use.get(block, -np.inf) <= life_s for block in path]
        depth = warm.index(False) if False in warm else len(path)
        hits += min(3 * depth, int(trace.prompt_tokens[row]))
        last_use.update(dict.fromkeys(path, now))
    return hits


@settings(max_examples=200, deadline=None)
@given(traces())
def test_a_cache_that_forgets_keeps_as_much_as_an_explicit_one(trace: Trace) -> None:
    life = {point.seconds: point.hit_rate_tokens for point in measure(trace).sharing.cache_life}
    total = int(trace.prompt_tokens.sum())
    expected = {seconds: kept_tokens(trace, seconds) / total for seconds in (300, 3600)} if total else {}
    assert life == pytest.approx(expected)


def test_every_use_renews_the_life() -> None:
    # The same prompt every 200 s: 600 s after the first, only uses between keep it.
    trace = make_trace([10] * 4, arrivals=[0, 200, 400, 600], blocks=[[0]] * 4, size=10)
    assert measure(trace).sharing.cache_life[0].hit_rate_tokens == 3 / 4
    seldom = make_trace([10] * 4, arrivals=[0, 301, 602, 903], blocks=[[0]] * 4, size=10)
    assert [point.hit_rate_tokens for point in measure(seldom).sharing.cache_life] == [0.0, 3 / 4]


def test_without_times_a_cache_life_is_unknown() -> None:
    workload = measure(make_trace([10, 10], arrivals=[np.nan, np.nan], blocks=[[0], [0]], size=10))
    assert workload.sharing.cache_life == ()
    (entry,) = [entry for entry in workload.unknown if entry.path == "sharing.cache_life"]
    assert "times" in entry.why


@settings(max_examples=100, deadline=None)
@given(traces(), st.integers(1, 4))
def test_windows_hit_as_if_each_were_a_log_of_its_own(trace: Trace, parts: int) -> None:
    cuts = len(trace) * np.arange(parts + 1) // parts
    assert trace.blocks is not None
    runs = runs_of(trace)
    expected = []
    for start, end in pairwise(cuts.tolist()):
        own = runs_of(trace.take(np.arange(start, end)))
        expected.append([int(own.blocks[own.seen].sum()), int(own.tokens[own.seen].sum())])
    assert window_hits(runs, len(trace), parts).tolist() == expected


def test_a_short_log_has_no_short_windows() -> None:
    trace = make_trace([10] * 5, blocks=[[0]] * 5, size=10)
    points = [(point.share, point.hit_rate_tokens) for point in measure(trace).sharing.window_curve]
    assert points == [(0.5, 3 / 5), (1.0, 4 / 5)]


def test_weighted_percentiles_are_numpys_of_the_repeated_values() -> None:
    rng = np.random.default_rng(0)
    shares = (0.0, 0.1, 0.5, 0.9, 1.0)
    for size in (1, 2, 7, 100):
        values, counts = rng.integers(0, 20, size) / 7, rng.integers(1, 9, size)
        expected = np.percentile(np.repeat(values, counts), [100 * share for share in shares])
        assert weighted_percentiles(values, counts, shares) == pytest.approx(expected.tolist(), abs=1e-12)
