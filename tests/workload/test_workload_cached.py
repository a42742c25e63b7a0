"""Cached tokens of the log: their share, and what no request of the log explains of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.workload_traces import chain, make_blocks, make_trace, mooncake
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.advice.rules.data_quality import UNEXPLAINED, incomplete
from advisor.logs.trace import IntColumn, Totals, Trace
from advisor.workload.measure import measure
from advisor.workload.sharing import measure_sharing


def unexplained(trace: Trace) -> float | None:
    return measure_sharing(trace, 0, ()).sharing.unexplained_share


def unlimited_cache(trace: Trace) -> IntColumn:
    """What an engine that forgets nothing has cached of every prompt, by a set of all blocks seen."""
    assert trace.blocks is not None
    seen: set[int] = set()
    cached = []
    for row in range(len(trace)):
        path = trace.blocks.row(row).tolist()
        depth = next((d for d, block in enumerate(path) if block not in seen), len(path))
        cached.append(min(depth * trace.blocks.size, int(trace.prompt_tokens[row])))
        seen.update(path)
    return np.array(cached)


@pytest.fixture(scope="module")
def served(shared: Path) -> Trace:
    """Mooncake conversation as logged by an engine that forgets nothing."""
    trace = mooncake(shared)
    return replace(trace, cached_tokens=unlimited_cache(trace))


def test_mooncake_conversation_whole_explains_all_it_cached(served: Trace) -> None:
    sharing = measure_sharing(served, 0, ()).sharing
    assert sharing.cached_share == pytest.approx(0.373624, abs=5e-7)  # expected_stats.json, token_hit
    assert sharing.unexplained_share == 0.0
    assert incomplete(sharing.unexplained_share, sharing.cached_share, sharing.hit_rate_tokens) is None


@pytest.mark.parametrize("seed", range(3))
def test_mooncake_conversation_a_random_tenth_looks_sampled(served: Trace, seed: int) -> None:
    rows = np.sort(np.random.default_rng(seed).choice(len(served), len(served) // 10, replace=False))
    sharing = measure_sharing(served.take(rows), 0, ()).sharing
    # traces/README.md: a random tenth shows 0.122 of blocks, give or take the draw.
    assert sharing.hit_rate_blocks == pytest.approx(0.122, abs=0.015)
    assert sharing.unexplained_share is not None
    # Of the cached 0.37 the tenth explains 0.12, and once more so by requests that come later.
    assert 0.05 < sharing.unexplained_share < 0.37 - 0.12
    found = incomplete(sharing.unexplained_share, sharing.cached_share, sharing.hit_rate_tokens)
    assert found is not None
    assert (found.code, found.verdict) == ("ADV905", "check")


@pytest.mark.parametrize("parts", [10, 2])
def test_mooncake_conversation_its_start_alone_does_not_look_sampled(served: Trace, parts: int) -> None:
    # A log that begins with an empty cache lacks nothing that came before, whenever it ends.
    assert unexplained(served.take(np.arange(len(served) // parts))) == 0.0


def test_mooncake_conversation_half_an_hour_is_told_from_every_other_request(served: Trace) -> None:
    # Both have 6,000 requests. The half hour was served with a warm cache; its sharing is 0.34 of 0.40.
    half = unexplained(served.take(np.arange(len(served) // 2, len(served))))
    other = unexplained(served.take(np.arange(0, len(served), 2)))
    assert half is not None
    assert other is not None
    assert 0 < half < UNEXPLAINED < other


def common(a: list[int], b: list[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@st.composite
def served_logs(draw: st.DrawFn) -> Trace:
    """Complete logs of an engine with 1-token pages that caches prompts and answers and forgets nothing."""
    size, rounding = draw(st.integers(1, 4)), draw(st.sampled_from(["ceil", "floor"]))
    texts: list[list[int]] = []  # every prompt with its answer
    prompts, outputs, cached, paths = [], [], [], []
    for _ in range(draw(st.integers(1, 12))):
        start = draw(st.sampled_from([[], *texts]))
        prompt = start[: draw(st.integers(0, len(start)))] + draw(st.lists(st.integers(0, 2), max_size=5))
        answer = draw(st.lists(st.integers(0, 2), max_size=6))
        cached.append(max((common(prompt, text) for text in texts), default=0))
        texts.append(prompt + answer)
        whole = len(prompt) // size * size if rounding == "floor" else len(prompt)
        paths.append([tuple(prompt[n : min(n + size, len(prompt))]) for n in range(0, whole, size)])
        prompts.append(len(prompt))
        outputs.append(len(answer))
    numbers = {content: n for n, content in enumerate({block for path in paths for block in path})}
    rows = chain([[numbers[block] for block in path] for path in paths])
    trace = make_trace(prompts, outputs, blocks=rows, size=size)
    return replace(trace, cached_tokens=np.array(cached))


@settings(max_examples=300, deadline=None)
@given(served_logs(), st.randoms(use_true_random=False))
def test_a_complete_log_in_any_order_explains_all_it_cached(trace: Trace, random: object) -> None:
    assert unexplained(trace) in (0.0, None)
    order = list(range(len(trace)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert unexplained(trace.take(np.array(order))) in (0.0, None)


def chat(turns: int, **columns: object) -> Trace:
    """One session: a first prompt of 100 tokens, answers of 30, new messages of 20, all at 1-token blocks."""
    prompts = [100 + 50 * turn for turn in range(turns)]
    rows = [list(range(length)) for length in prompts]
    cached = np.array([0, *[length - 20 for length in prompts[1:]]])
    return make_trace(prompts, [30] * turns, blocks=rows, size=1, cached_tokens=cached, **columns)


def test_answers_that_come_back_are_explained() -> None:
    # 130 of the second prompt's 150 tokens were cached: the first prompt and its answer of 30.
    assert unexplained(chat(2)) == 0.0
    assert unexplained(chat(5)) == 0.0


def test_a_missing_turn_shows_in_the_next() -> None:
    # Without turns 1 and 2 of 4: the last prompt had 230 cached; the first brought 100 and its answer 30.
    assert unexplained(chat(4).take(np.array([0, 3]))) == pytest.approx(100 / (100 + 250))


def test_tokens_that_the_log_does_not_show_are_not_held_against_it() -> None:
    # 40 tokens of tools before a text of 10: cached from other requests with the same tools, which show no text
    # in common.
    trace = make_trace(
        [50, 50], [1, 1], blocks=[list(range(10)), list(range(10, 20))], size=1, cached_tokens=np.array([0, 40])
    )
    assert unexplained(trace) == 0.0


def test_unknown_content_or_answers_could_explain_anything() -> None:
    cut = chat(4).take(np.array([0, 3]))
    assert unexplained(replace(cut, output_tokens=np.array([-1, -1]))) == 0.0
    between = make_trace([100, 300, 250], [30] * 3, cached_tokens=np.array([0, 0, 230]))
    blocks = make_blocks([list(range(100)), [], list(range(250))], 1)
    known = np.array([True, False, True])
    assert unexplained(replace(between, blocks=replace(blocks, known=known))) is None


def test_cached_share_is_over_rows_that_log_both() -> None:
    trace = make_trace([100, 100, -1, 50], cached_tokens=np.array([50, -1, 20, 60]))
    # The second does not log cached tokens, the third no prompt length, the fourth more cached than prompt.
    assert measure(trace).sharing.cached_share == 0.5
    assert measure(make_trace([100])).sharing.cached_share is None


def test_cached_share_of_the_totals_where_no_request_logs_it() -> None:
    def of(**sums: object) -> float | None:
        return measure(make_trace([100, 100], totals=Totals("usage", **sums))).sharing.cached_share

    assert of(prompt_tokens=1000, cached_tokens=563) == 0.563
    assert of(cached_share=0.42) == 0.42
    assert of(prompt_tokens=1000) is None


def test_the_threshold_is_a_few_points() -> None:
    assert incomplete(UNEXPLAINED, 0.5, 0.4) is None
    assert incomplete(UNEXPLAINED + 1e-9, 0.5, 0.4) is not None
    assert incomplete(None, 0.5, 0.4) is None
