"""The hit rate of every cache size against an explicit LRU cache and against the published Mooncake values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.lru import simulate
from helpers.workload_traces import chain, make_trace, mooncake
from hypothesis import example, given, settings
from hypothesis import strategies as st

from advisor.logs.trace import Trace
from advisor.workload.capacity import capacity_curve, sample_hits
from advisor.workload.runs import Runs, find_runs
from advisor.workload.stack_distance import find_reuses, larger_before


def runs_of(trace: Trace) -> Runs:
    assert trace.blocks is not None
    return find_runs(trace.blocks, trace.prompt_tokens)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Small traces with branching prefixes, partial last blocks, empty prompts and repeated requests."""
    paths = draw(st.lists(st.lists(st.integers(0, 2), max_size=7), min_size=1, max_size=25))
    size = draw(st.integers(1, 4))
    short = draw(st.lists(st.integers(0, size - 1), min_size=len(paths), max_size=len(paths)))
    prompts = [max(0, len(path) * size - cut) for path, cut in zip(paths, short, strict=True)]
    return make_trace(prompts, blocks=chain(paths), size=size)


@settings(max_examples=300, deadline=None)
@given(traces())
def test_every_capacity_equals_the_simulated_cache(trace: Trace):
    runs = runs_of(trace)
    capacities = np.arange(int(runs.blocks.sum()) + 2)
    hits = find_reuses(runs).count_hits(capacities)
    assert hits.tolist() == [list(simulate(trace, capacity)) for capacity in capacities.tolist()]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 18), st.integers(0, 5)), unique_by=lambda pair: pair[0]))
@example([(3, 1), (4, 2), (5, 1), (0, 1), (1, 4), (6, 1), (2, 3)])  # stretches of neighbours
def test_larger_before_equals_counting_pairs(pairs):
    values = np.array([value for value, _ in pairs], dtype=np.int64)
    weights = np.array([weight for _, weight in pairs], dtype=np.float64)
    expected = [sum(w for v, w in pairs[:i] if v > value) for i, (value, _) in enumerate(pairs)]
    assert larger_before(values, weights).tolist() == expected


def test_mooncake_at_the_published_sizes(shared: Path):
    # expected_stats.json: blocks of 512 tokens, leaves leave first.
    expected = json.loads((shared / "traces/expected_stats.json").read_text())["mooncake/conversation"]
    points = {int(blocks): rate for blocks, rate in expected["lru_prefix_hit"].items()}
    trace = mooncake(shared)
    sizes = [blocks * 512 for blocks in points]
    curve, error = capacity_curve(runs_of(trace), int(trace.prompt_tokens.sum()), sizes, seed=0)
    measured = {point.tokens // 512: point.hit_rate_blocks for point in curve}
    assert error == 0.0
    assert len(curve) == 32 + len(points)
    for blocks, rate in points.items():
        assert measured[blocks] == pytest.approx(rate, abs=5e-7), blocks
    # The largest size holds every block: the unlimited cache, in blocks and in tokens.
    assert curve[-1].tokens == 182_790 * 512
    assert curve[-1].hit_rate_blocks == pytest.approx(0.366412, abs=5e-7)
    assert curve[-1].hit_rate_tokens == pytest.approx(0.373624, abs=5e-7)


def test_mooncake_in_blocks_and_tokens_equals_the_simulated_cache(shared: Path):
    trace = mooncake(shared)
    hits = find_reuses(runs_of(trace)).count_hits(np.array([3000]))
    assert hits[0].tolist() == list(simulate(trace, 3000))


def test_two_prefixes_and_room_for_one():
    # SGLang, NeurIPS'24, unit oracle: alternating order with capacity for one prefix hits nothing.
    paths = [[n % 2] * 10 for n in range(20)]
    trace = make_trace([10] * 20, blocks=chain(paths))
    reuses = find_reuses(runs_of(trace))
    assert reuses.count_hits(np.array([10]))[0, 0] == 0
    assert reuses.count_hits(np.array([20]))[0, 0] == 18 * 10


def test_a_size_between_blocks_counts_whole_blocks():
    trace = make_trace([8, 8], blocks=[[0, 1], [0, 1]], size=4)
    curve, _ = capacity_curve(runs_of(trace), 16, [7, 8], seed=0)
    assert {point.tokens: point.hit_rate_tokens for point in curve}[7] == 4 / 16
    assert {point.tokens: point.hit_rate_tokens for point in curve}[8] == 8 / 16


def sessions_trace(rng: np.random.Generator) -> Trace:
    """A system prompt of 5 blocks before 300 sessions of growing history, turns shuffled among sessions."""
    turns = np.sort(rng.integers(0, 300, 4000) + rng.uniform(0, 0.5, 4000) + np.arange(4000) / 40)
    grown: dict[int, int] = {}
    paths = []
    for session in (turns.astype(np.int64) % 300).tolist():
        grown[session] = grown.get(session, 0) + int(rng.integers(1, 6))
        paths.append([-1] * 5 + [session] * min(60, grown[session]))
    return make_trace([len(path) * 16 for path in paths], blocks=chain(paths), size=16)


def test_sampled_curve_is_within_its_stated_error():
    trace = sessions_trace(np.random.default_rng(1))
    runs = runs_of(trace)
    capacities = np.unique(np.geomspace(1, runs.blocks[~runs.seen].sum(), 20).astype(np.int64))
    exact = find_reuses(runs).count_hits(capacities)
    covered = 0
    for seed in range(20):
        estimate, half_width = sample_hits(runs, capacities, len(runs) // 5, seed)
        covered += np.abs(estimate - exact).max(axis=0)[1] <= half_width.max(axis=0)[1]
    assert covered >= 17  # of 20 at 95 %: fewer than 17 has probability 0.016


def test_sampling_starts_beyond_the_limit_and_says_so():
    trace = sessions_trace(np.random.default_rng(2))
    runs, tokens = runs_of(trace), int(trace.prompt_tokens.sum())
    exact, no_error = capacity_curve(runs, tokens, (), seed=0, exact_uses=len(runs))
    sampled, error = capacity_curve(runs, tokens, (), seed=0, exact_uses=len(runs) - 1)
    assert no_error == 0.0
    assert 0.0 < error < 0.1
    assert sampled != exact
    assert sampled == capacity_curve(runs, tokens, (), seed=0, exact_uses=len(runs) - 1)[0]
    # The end of the curve is known without sampling.
    assert sampled[-1].hit_rate_tokens == pytest.approx(exact[-1].hit_rate_tokens, abs=1e-12)
