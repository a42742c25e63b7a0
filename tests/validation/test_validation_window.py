"""The window: which rows, when, and what --fit does to them. Expected rows are counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.replay_traces import block_trace, branching_rows, steady_trace

from advisor.logs.trace import Labels, Trace
from advisor.validation.window import fit_lengths, fit_rate, select
from engine.errors import InputError


def trace_at(arrivals: list[float], prompts: list[int] | None = None) -> Trace:
    return Trace(
        arrival_s=np.array(arrivals),
        prompt_tokens=np.array(prompts or [10] * len(arrivals), dtype=np.int64),
        output_tokens=np.full(len(arrivals), 5, dtype=np.int64),
    )


def test_busiest_is_the_window_with_most_requests() -> None:
    window = select(trace_at([0, 4, 20, 21, 23, 40, 44]), "busiest:5s")
    assert window.rows.tolist() == [2, 3, 4]
    assert window.due_s.tolist() == [0, 1, 3]
    assert window.length_s == 5


def test_busiest_ties_go_to_more_tokens_then_to_the_earlier() -> None:
    arrivals = [0.0, 1, 10, 11, 20, 21]
    assert select(trace_at(arrivals, [5, 5, 9, 9, 9, 9]), "busiest:5s").rows.tolist() == [2, 3]
    assert select(trace_at(arrivals), "busiest:5s").rows.tolist() == [0, 1]


def test_the_end_of_a_window_is_excluded() -> None:
    assert select(trace_at([0, 5, 6]), "busiest:5s").rows.tolist() == [1, 2]
    window = select(trace_at([0, 60, 90, 120]), "60..2m")
    assert window.rows.tolist() == [1, 2]
    assert window.length_s == 60


def test_all_is_the_whole_trace_and_a_short_trace_is_its_own_busiest_window() -> None:
    trace = trace_at([0, 3, 8])
    for spec in ("all", "busiest:10m"):
        window = select(trace, spec)
        assert window.rows.tolist() == [0, 1, 2]
        assert window.length_s == 8


@pytest.mark.parametrize("spec", ["", "busiest", "busiest:0s", "busiest:x", "5", "9..3", "50..60", "1..2..3"])
def test_a_window_that_cannot_be_is_an_input_error_with_a_hint(spec: str) -> None:
    with pytest.raises(InputError) as caught:
        select(trace_at([0, 1, 2]), spec)
    assert caught.value.hint


def test_requests_without_an_output_length_are_left_out_and_counted() -> None:
    trace = replace(trace_at([0, 1, 2]), output_tokens=np.array([-1, 5, 0], dtype=np.int64))
    window = select(trace, "all")
    assert (window.rows.tolist(), window.left_out) == ([1, 2], 1)
    assert window.trace.output_tokens.tolist() == [5, 1]  # nothing asked for cannot be sent


def test_stamps_of_a_coarse_clock_are_spread_within_the_tick_always_alike() -> None:
    # Mooncake's clock ticks every 3 s; ten requests a tick.
    stamps = np.repeat(np.arange(0, 60, 3.0), 10)
    trace = replace(steady_trace(200, 1.0), arrival_s=stamps)
    window = select(trace, "all")
    assert window.tick_s == pytest.approx(3)
    assert len(np.unique(window.due_s)) == 200
    first = window.due_s[0] - select(trace, "all").due_s[0]
    assert first == 0
    shift = window.trace.arrival_s - stamps
    assert shift.max() - shift.min() < 3
    assert np.array_equal(window.due_s, select(trace, "all").due_s)


def test_fit_rate_stretches_by_the_overload_and_only_by_it() -> None:
    window = select(steady_trace(11, 1.0), "all")
    stretched = fit_rate(window, utilisation=1.5, limit=1.0)
    assert stretched.due_s[-1] == pytest.approx(15)
    assert stretched.length_s == pytest.approx(15)
    assert stretched.scaled
    assert fit_rate(window, utilisation=0.8, limit=1.0) is window


def test_fit_lengths_keeps_every_full_block_full() -> None:
    rows = branching_rows(200, size=48, seed=1)
    window = select(block_trace(rows, 48), "all")
    longest = int((window.trace.prompt_tokens + window.trace.output_tokens).max())
    scaled = fit_lengths(window, longest // 3)
    assert int((scaled.trace.prompt_tokens + scaled.trace.output_tokens).max()) <= longest // 3
    assert scaled.scaled
    assert scaled.trace.blocks is not None
    size = scaled.trace.blocks.size
    assert 1 <= size < 48 // 3 + 1
    assert np.array_equal(scaled.trace.prompt_tokens // size, window.trace.prompt_tokens // 48)


def test_fit_lengths_without_blocks_and_where_nothing_is_too_long() -> None:
    window = select(trace_at([0, 1], [1000, 10]), "all")
    scaled = fit_lengths(window, 203)
    assert scaled.trace.prompt_tokens.tolist() == [200, 2]  # 201/1005 of 1000 and of 10
    assert scaled.trace.output_tokens.tolist() == [1, 1]
    assert fit_lengths(window, 1005) is window


def test_blocks_cannot_shrink_below_a_token() -> None:
    window = select(block_trace([(1600, list(range(100)))], 16), "all")
    with pytest.raises(InputError, match="cannot be scaled"):
        fit_lengths(window, 50)


def test_a_random_window_is_the_seeds_and_lies_within_the_log() -> None:
    trace = steady_trace(1000, 1.0)
    starts = {select(trace, "random:100s", seed=seed).from_s for seed in range(20)}
    assert len(starts) == 20
    assert 0 <= min(starts) < max(starts) <= 899
    one, again = select(trace, "random:100s", seed=7), select(trace, "random:100s", seed=7)
    assert np.array_equal(one.rows, again.rows)
    assert len(one) == 100
    assert one.rows[0] == np.ceil(one.from_s)  # one request a second
    assert one.due_s[0] == pytest.approx(one.rows[0] - one.from_s)
    assert select(trace, "random:2000s").rows.tolist() == list(range(1000))


def test_a_warm_up_is_what_precedes_the_window_and_is_not_judged() -> None:
    window = select(trace_at([0, 4, 15, 20, 21, 23, 40]), "busiest:5s", warm_up_s=10)
    assert window.rows.tolist() == [2, 3, 4, 5]
    assert window.due_s.tolist() == [-5, 0, 1, 3]
    assert window.judged.tolist() == [False, True, True, True]
    assert (window.lead_s, window.from_s, window.length_s) == (5, 20, 5)
    assert window.only_judged().rows.tolist() == [3, 4, 5]
    assert window.digest() == select(trace_at([0, 4, 15, 20, 21, 23, 40]), "busiest:5s").digest()


def test_turns_of_a_window_point_at_the_turn_before_within_it() -> None:
    sessions = Labels(("a", "b"), np.array([0, 1, 0, 1, 0]))
    trace = replace(trace_at([0, 1, 2, 3, 4]), session=sessions)
    window = select(trace, "1..10")
    assert window.rows.tolist() == [1, 2, 3, 4]
    assert window.parent.tolist() == [-1, -1, 0, 1]  # the turn before row 2 is outside
    assert window.session[0] == window.session[2] != window.session[1] == window.session[3]
    assert window.take(np.array([1, 3])).parent.tolist() == [-1, 0]


def test_the_digest_is_of_arrivals_lengths_and_blocks() -> None:
    rows = [(48, [0, 1, 2]), (48, [0, 1, 3])]
    same, other = block_trace(rows, 16), block_trace([(48, [0, 1, 2]), (48, [0, 2, 3])], 16)
    digest = select(same, "all").digest()
    assert digest == select(block_trace(rows, 16), "all").digest()
    assert digest != select(other, "all").digest()
    assert digest != select(replace(same, output_tokens=same.output_tokens + 1), "all").digest()
    assert digest != select(replace(same, arrival_s=same.arrival_s * 2), "all").digest()
