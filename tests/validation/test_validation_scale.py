"""The same window at other rates: whole sessions, nested draws, copies with content of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.replay_traces import block_trace, hits_by_block_ids, steady_trace

from advisor.logs.trace import Labels, Trace
from advisor.simulation.from_trace import load_of
from advisor.simulation.scaling import scaled
from advisor.validation.prompts import PromptFactory
from advisor.validation.scale import scale_window
from advisor.validation.window import Window, select


def chats(sessions: int = 40, turns: int = 3, seed: int = 0) -> Trace:
    """Sessions of growing prompts behind one system block, turns 5 s apart, starts at random."""
    rng = np.random.default_rng(seed)
    arrivals, rows, codes = [], [], []
    for session in range(sessions):
        start = rng.uniform(0, 100)
        own = [1 + session * turns + turn for turn in range(turns)]
        for turn in range(turns):
            arrivals.append(start + 5 * turn)
            rows.append((16 * (turn + 2), [0, *own[: turn + 1]]))
            codes.append(session)
    order = np.argsort(arrivals)
    trace = block_trace([rows[i] for i in order], 16)
    names = tuple(str(i) for i in range(sessions))
    session = Labels(names, np.array(codes)[order])
    return replace(trace, arrival_s=np.array(arrivals)[order] - min(arrivals), session=session)


def whole_sessions(window: Window, turns: int = 3) -> bool:
    return bool((np.bincount(window.session) == turns).all())


def test_a_lower_rate_leaves_out_whole_sessions_and_nests() -> None:
    window = select(chats(), "all")
    half, less = scale_window(window, 0.5, "sessions", 3), scale_window(window, 0.25, "sessions", 3)
    assert (len(half), len(less)) == (60, 30)
    assert whole_sessions(half)
    assert set(less.rows.tolist()) < set(half.rows.tolist())
    assert np.array_equal(half.due_s, window.due_s[half.rows])  # nothing moves
    assert half.length_s == window.length_s


def test_a_higher_rate_copies_whole_sessions_with_their_gaps_and_content_of_their_own() -> None:
    window = select(chats(), "all")
    more = scale_window(window, 2.5, "sessions", 3)
    assert len(more) == 300
    assert whole_sessions(more)
    assert np.all(np.diff(more.due_s) >= 0)
    behind = more.parent >= 0
    assert np.allclose(more.due_s[behind] - more.due_s[more.parent[behind]], 5)
    # The system block is shared by all; each session's blocks are its own, in every copy.
    assert more.trace.blocks is not None
    distinct = len(np.unique(more.trace.blocks.ids))
    assert distinct == 1 + 100 * 3
    per_request = np.array(hits_by_block_ids(more.trace, 16)) / more.trace.prompt_tokens
    once = np.array(hits_by_block_ids(window.trace, 16)) / window.trace.prompt_tokens
    assert per_request.mean() == pytest.approx(once.mean(), abs=0.01)
    prompts = PromptFactory(32_000, 1).build(more.trace)
    assert len({prompt.tobytes() for prompt in prompts}) == 300


def test_the_draw_is_that_of_the_simulation() -> None:
    trace = chats()
    for factor in (0.6, 1.7):
        simulated = scaled(load_of(trace, 16), factor, 5)
        replayed = scale_window(select(trace, "all"), factor, "sessions", 5)
        assert np.allclose(replayed.due_s, simulated.arrival_s)
        assert np.array_equal(replayed.trace.prompt_tokens, simulated.prompt_tokens)
        assert np.array_equal(replayed.parent, simulated.parent)


def test_time_divides_all_times() -> None:
    window = scale_window(select(steady_trace(11, 1.0), "all"), 2.0, "time", 0)
    assert np.allclose(window.due_s, np.arange(11) / 2)
    assert window.length_s == 5
    assert window.scaled


def test_a_factor_of_one_changes_nothing() -> None:
    window = select(chats(), "all")
    assert scale_window(window, 1.0, "sessions", 9) is window


def test_the_warm_up_is_scaled_with_the_window() -> None:
    window = select(chats(), "50..100", warm_up_s=30)
    half = scale_window(window, 0.5, "sessions", 1)
    kept = set(half.session.tolist())
    assert len(half) == pytest.approx(len(window) / 2, abs=3)
    assert (~half.judged).sum() > 0
    assert len(kept) < len(set(window.session.tolist()))
