"""Sharing against the public Mooncake trace, closed forms, and a dictionary of everything seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.logs import PieceEncoder
from helpers.workload_traces import chain, make_labels, make_trace, mooncake
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.logs.read import read
from advisor.logs.trace import Trace
from advisor.workload.measure import measure
from advisor.workload.model import Sharing
from advisor.workload.sharing import measure_sharing


def sharing_of(trace: Trace) -> Sharing:
    return measure_sharing(trace, 0, ()).sharing


def test_mooncake(shared: Path):
    # expected_stats.json (hit rates); traces/README.md (block 0 gives 12,030 of 105,710 hits; reuse gaps).
    measured = measure_sharing(mooncake(shared), 0, ())
    sharing = measured.sharing
    assert sharing.hit_rate_blocks == pytest.approx(0.366412, abs=5e-7)
    assert sharing.hit_rate_tokens == pytest.approx(0.373624, abs=5e-7)
    assert sharing.reuse_gap_s is not None
    assert sharing.reuse_gap_s.p50 == pytest.approx(135, abs=0.5)
    assert sharing.reuse_gap_s.p90 == pytest.approx(531, abs=0.5)
    first = sharing.top_prefixes[0]
    assert (first.tokens, first.requests) == (512, 12_031)
    assert first.hit_share == pytest.approx(12_030 / 105_710, abs=1e-4)
    assert measured.uncached_tokens is not None
    assert measured.uncached_tokens.mean() == pytest.approx(12_035.061 * (1 - 0.373624), abs=0.02)


def test_agents_share_within_their_session(shared: Path):
    # traces/README.md, lmcache miniswe at block 16: token hit rate 0.934, of which 0.001 needs another session.
    # Other vocabularies move the first a little; the second hardly, as first requests share 10 tokens.
    sharing = sharing_of(read([shared / "traces/lmcache-agent/miniswe"], tokenizer=PieceEncoder()))
    assert sharing.block_size == 16
    assert sharing.hit_rate_tokens == pytest.approx(0.934, abs=0.005)
    assert sharing.across_session == pytest.approx(0.001, abs=5e-4)
    assert sharing.within_session == pytest.approx(sharing.hit_rate_tokens - sharing.across_session)
    assert sharing.hit_rate_tokens < sharing.hit_rate_optimal < sharing.hit_rate_tokens + 0.005


@pytest.mark.parametrize(("n", "s", "u", "expected"), [(100, 1000, 100, 0.900), (7, 32, 16, 6 * 32 / (7 * 48))])
def test_one_shared_prefix_and_unique_tails(n: int, s: int, u: int, expected: float):
    # SGLang, NeurIPS'24, unit oracle: hit_opt = (n - 1) s / (n (s + u)); 0.900 for 100, 1000, 100.
    paths = chain([[0] * s + [request + 1] * u for request in range(n)])
    novel = np.array([s + u] + [u] * (n - 1))
    sharing = sharing_of(make_trace([s + u] * n, blocks=paths, size=1, novel_tokens=novel))
    assert sharing.hit_rate_tokens == pytest.approx(expected)
    assert sharing.hit_rate_blocks == pytest.approx(expected)
    assert sharing.hit_rate_optimal == pytest.approx(expected)
    (top,) = sharing.top_prefixes
    assert (top.tokens, top.requests, top.hit_share) == (s, n, pytest.approx(1.0))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    rows = st.tuples(
        st.lists(st.integers(0, 1), max_size=6), st.integers(0, 2), st.sampled_from(["a", "b", ""])
    )
    drawn = draw(st.lists(rows, min_size=1, max_size=20))
    prompts = [max(0, 3 * len(path) - cut) for path, cut, _ in drawn]
    paths = chain([path for path, _, _ in drawn])
    return make_trace(prompts, blocks=paths, size=3, sessions=[session for _, _, session in drawn])


def seen_tokens(trace: Trace, scoped: bool) -> list[int]:
    """Tokens of each prompt in leading blocks that an earlier request had, by a set of everything seen."""
    assert trace.blocks is not None
    assert trace.session is not None
    seen: set[tuple[int, int]] = set()
    hits = []
    for row in range(len(trace)):
        session = int(trace.session.codes[row]) if scoped else 0
        path = trace.blocks.row(row).tolist()
        depth = next((d for d, block in enumerate(path) if (session, block) not in seen), len(path))
        hits.append(min(depth * 3, int(trace.prompt_tokens[row])) if session >= 0 else 0)
        seen.update((session, block) for block in path)
    return hits


@settings(max_examples=200, deadline=None)
@given(traces())
def test_hits_equal_a_set_of_everything_seen(trace: Trace):
    measured = measure_sharing(trace, 0, ())
    sharing, total = measured.sharing, int(trace.prompt_tokens.sum())
    if total == 0:
        assert sharing.hit_rate_tokens is None
        return
    hits = seen_tokens(trace, scoped=False)
    assert sharing.hit_rate_tokens == pytest.approx(sum(hits) / total)
    assert measured.uncached_tokens is not None
    assert measured.uncached_tokens.tolist() == [p - h for p, h in zip(trace.prompt_tokens, hits, strict=True)]
    if not np.any(trace.session.codes >= 0):
        assert sharing.within_session is None
        return
    within = sum(seen_tokens(trace, scoped=True))
    assert sharing.within_session == pytest.approx(within / total)
    assert sharing.within_session + sharing.across_session == pytest.approx(sharing.hit_rate_tokens)


def test_reuse_gaps_leave_out_what_every_request_shares():
    # Block 0 is in every request; block 1 is used at 0 and 30 s, block 2 at 10 and 14 s.
    paths = chain([[0, 1], [0, 2], [0, 2], [0, 1]])
    sharing = sharing_of(make_trace([8] * 4, arrivals=[0, 10, 14, 30], blocks=paths, size=4))
    assert sharing.reuse_gap_s is not None
    assert sharing.reuse_gap_s.p50 == 17.0  # of 4 and 30
    assert sharing.reuse_gap_s.p90 == pytest.approx(4 + 0.9 * 26)


def test_nested_prefixes_share_the_hits():
    # 4 requests start with 2 blocks, 3 of them go on with 3 more: 3 * 2 and 2 * 3 hits of 12.
    paths = chain([[0, 0, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 2]])
    sharing = sharing_of(make_trace([80, 80, 80, 48], blocks=paths, size=16))
    assert [(top.tokens, top.requests, top.hit_share) for top in sharing.top_prefixes] == [
        (32, 4, 0.5),
        (80, 3, 0.5),
    ]


def test_top_prefixes_hold_the_ten_best_by_hit_tokens_and_by_requests():
    # 12 documents of 100 blocks asked about twice: 100 hits each. 12 greetings of 1 block said 5 times: 4 each.
    documents = [[n] * 100 + [1000 + turn] for n in range(12) for turn in (0, 1)]
    greetings = [[100 + n, 2000 + turn] for n in range(12) for turn in range(5)]
    paths = chain(documents + greetings)
    top = sharing_of(make_trace([len(path) for path in paths], blocks=paths)).top_prefixes
    assert [(prefix.tokens, prefix.requests) for prefix in top] == [(100, 2)] * 10 + [(1, 5)] * 10
    assert [prefix.hit_share for prefix in top] == pytest.approx([100 / 1248] * 10 + [4 / 1248] * 10)


def hidden(trace: Trace, known: list[bool]) -> Trace:
    """The trace without the content of the requests that are not known."""
    assert trace.blocks is not None
    kept = np.flatnonzero(known)
    counts = np.where(known, np.diff(trace.blocks.starts), 0)
    starts = np.concatenate(([0], np.cumsum(counts)))
    blocks = replace(trace.blocks, ids=trace.blocks.take(kept).ids, starts=starts, known=np.array(known))
    return replace(trace, blocks=blocks)


@settings(max_examples=200, deadline=None)
@given(traces(), st.data())
def test_requests_without_content_are_no_misses(trace: Trace, data: st.DataObject):
    known = data.draw(st.lists(st.booleans(), min_size=len(trace), max_size=len(trace)))
    measured = measure_sharing(hidden(trace, known), 0, ())
    alone = measure_sharing(trace.take(np.flatnonzero(known)), 0, ())
    about_all = {"known_share", "duplicates", "window_curve"}
    assert measured.sharing.model_dump(exclude=about_all) == alone.sharing.model_dump(exclude=about_all)
    if measured.uncached_tokens is None:
        assert alone.uncached_tokens is None
    else:
        assert measured.uncached_tokens.tolist() == alone.uncached_tokens.tolist()
    total = int(trace.prompt_tokens.sum())
    if total:
        assert measured.sharing.known_share == int(trace.prompt_tokens[known].sum()) / total


def test_known_content_is_said_where_it_is_a_part():
    trace = hidden(
        make_trace([30, 10, 60], blocks=[[0, 1, 2], [3], [0, 1, 2, 4, 5, 6]], size=10), [True, False, True]
    )
    workload = measure(trace)
    assert workload.sharing.known_share == 0.9
    assert workload.sharing.hit_rate_tokens == 30 / 90
    (entry,) = [entry for entry in workload.unknown if entry.path == "sharing.known_share"]
    assert "10.0% of prompt tokens" in entry.why
    assert "sharing.known_share" not in {entry.path for entry in measure(make_trace([1], blocks=[[0]])).unknown}


def test_a_prompt_of_unknown_length_fills_the_cache_and_counts_for_nothing_else():
    trace = make_trace([-1, 20, 20], blocks=[[0, 1], [0, 1], [2, 3]], size=10)
    measured = measure_sharing(trace, 0, ())
    assert measured.sharing.hit_rate_tokens == 20 / 40
    assert measured.sharing.hit_rate_blocks == 2 / 6
    assert measured.sharing.known_share == 1.0
    assert measured.uncached_tokens is not None
    assert measured.uncached_tokens.tolist() == [0, 20]


def test_sharing_by_client_is_that_by_session_with_other_labels():
    paths = chain([[0, 1], [0, 1], [0, 1], [0, 2]])
    trace = make_trace([20] * 4, blocks=paths, size=10, client=make_labels(["a", "b", "a", ""]))
    sharing = sharing_of(trace)
    # 50 of 80 tokens hit; of those only the third request's 20 come from its own client.
    assert (sharing.hit_rate_tokens, sharing.within_client, sharing.across_client) == (
        50 / 80,
        20 / 80,
        30 / 80,
    )
    assert sharing.within_session is None


def test_nothing_shared_is_zero_and_not_unknown():
    sharing = sharing_of(make_trace([8, 8], blocks=chain([[0], [1]]), size=8))
    assert sharing.hit_rate_tokens == 0.0
    assert sharing.top_prefixes == ()
    assert sharing.reuse_gap_s is None
    assert all(point.hit_rate_tokens == 0.0 for point in sharing.capacity_curve)


def test_prompts_shorter_than_a_block_hit_nothing():
    measured = measure_sharing(make_trace([3, 3], blocks=[[], []], size=16), 0, ())
    assert measured.sharing.hit_rate_tokens == 0.0
    assert measured.sharing.hit_rate_blocks is None
    assert measured.uncached_tokens.tolist() == [3, 3]


def test_no_blocks_is_unknown():
    measured = measure_sharing(make_trace([10, 10]), 0, ())
    assert measured.sharing.hit_rate_tokens is None
    assert measured.sharing.capacity_curve == ()
    assert measured.uncached_tokens is None
