"""Traffic that shifts half way: called within two windows of each shift, by name, and never while it is steady.

Twenty logs of conversations, each beside a plan from another hour pair of the same traffic. A conversation
begins with one of four system prompts and grows with each turn; then a client puts something new in front of
every prompt, so that nothing is shared; then twice as many come.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers.compared import analysis, over
from helpers.workload_traces import make_blocks, make_trace

from advisor.advice.analysis import Analysis
from advisor.advice.drift import PlanDrift, _error, compare
from advisor.logs.trace import Trace

SEEDS = [seed if seed < 5 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(20)]
WINDOW_S, BLOCK = 600.0, 160
STEADY_S, SHARED_S, FAST_S = 7200.0, 7200.0, 10_800.0  # sharing ends, and the rate doubles
END_S = 14_400.0
SESSIONS_RPS, TURNS, THINK_S = 0.25, 4.0, 40.0


def conversations(
    seed: int,
    end_s: float,
    *,
    alone_s: float = np.inf,
    fast_s: float = np.inf,
    before_s: float = 1800.0,
    turns: float = TURNS,
) -> Trace:
    """Poisson sessions of geometric length and exponential think time, one request a second.

    The log begins `before_s` after the service.
    From `alone_s` on no request shares a block with any other; from `fast_s` on twice as many sessions come.
    """
    rng = np.random.default_rng(seed)
    begins = rng.uniform(-before_s, end_s, rng.poisson(SESSIONS_RPS * TURNS / turns * (end_s + before_s)))
    if fast_s < end_s:
        more = rng.uniform(fast_s, end_s, rng.poisson(SESSIONS_RPS * (end_s - fast_s)))
        begins = np.concatenate((begins, more))
    arrivals, rows, outputs, fresh = [], [], [], 16
    for begin in begins.tolist():
        system = int(rng.choice(4, p=(0.4, 0.3, 0.2, 0.1)))
        path, at = [4 * system + block for block in range(4)], begin
        for _ in range(rng.geometric(1 / turns)):
            new = 1 + int(rng.poisson(0.6))
            path = [*path, *range(fresh, fresh + new)]
            fresh += new
            if 0 <= at < end_s:
                arrivals.append(at)
                rows.append(path)
                if at >= alone_s:
                    rows[-1] = list(range(fresh, fresh + len(path)))
                    fresh += len(path)
                outputs.append(int(rng.lognormal(5.0, 0.6)) + 1)
            at += rng.exponential(THINK_S)
    order = np.argsort(arrivals)
    prompts = np.array([BLOCK * len(row) for row in rows])
    trace = make_trace(prompts[order], np.array(outputs)[order], arrivals=np.array(arrivals)[order])
    return replace(trace, blocks=make_blocks([rows[at] for at in order], BLOCK))


@cache
def planned(seed: int) -> Analysis:
    """The plan of two hours of that traffic."""
    return analysis(conversations(1000 + seed, STEADY_S))


@cache
def shifted(seed: int) -> Trace:
    return conversations(seed, END_S, alone_s=SHARED_S, fast_s=FAST_S)


def part(trace: Trace, from_s: float, to_s: float) -> Trace:
    """What a log holds of it."""
    inside = (trace.arrival_s >= from_s) & (trace.arrival_s < to_s)
    cut = trace.take(np.flatnonzero(inside))
    return replace(cut, arrival_s=cut.arrival_s - cut.arrival_s[0])


def at(seed: int, to_s: float, from_s: float = 0.0) -> PlanDrift:
    """What cron says at `to_s`; a window ends with the first request behind it."""
    return compare(planned(seed), part(shifted(seed), from_s, to_s + 20.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_shift_is_called_within_two_windows_by_its_name_and_nothing_before(seed: int) -> None:
    assert over(at(seed, SHARED_S)) == set()
    first = at(seed, SHARED_S + 2 * WINDOW_S)
    assert over(first) == {"hit_rate_tokens", "uncached_mean"}
    assert over(at(seed, FAST_S)) == {"hit_rate_tokens", "uncached_mean"}
    second = at(seed, FAST_S + 2 * WINDOW_S)
    assert over(second) == {"hit_rate_tokens", "uncached_mean", "rate_rps"}
    assert (second.window_s, second.windows) == (WINDOW_S, 20)
    since = {move.name: move.since_s for move in second.moves}
    assert since["hit_rate_tokens"] in (SHARED_S, SHARED_S + WINDOW_S)
    assert since["rate_rps"] in (FAST_S, FAST_S + WINDOW_S)
    assert since["output_mean"] is None


@pytest.mark.parametrize("seed", range(5))
def test_the_last_hours_of_a_steady_log_are_no_drift_either(seed: int) -> None:
    """As `--since` cuts them, in the middle of sessions, whose beginning no cache has seen."""
    for from_s in range(0, 7200, 1500):
        assert over(at(seed, SHARED_S, float(from_s))) == set(), from_s


def test_the_same_of_a_log_that_is_longer_than_the_plans() -> None:
    """Its cache starts empty again every so often, where sessions go on."""
    assert over(compare(planned(0), conversations(77, 5 * STEADY_S))) == set()


def test_a_plan_from_the_start_of_a_service_is_no_drift_to_what_came_later() -> None:
    """Its first window has first turns alone; a log of later begins in the middle of long sessions."""
    plan = analysis(conversations(3, STEADY_S, before_s=0.0, turns=12.0))
    later = conversations(4, 5400.0, before_s=7200.0, turns=12.0)
    assert over(compare(plan, later)) == set()


def test_requests_that_are_alike_count_as_fewer() -> None:
    """Means of sessions of ten equal turns: the standard error is that of the sessions, not of the turns."""
    rng = np.random.default_rng(5)
    sessions = rng.normal(100.0, 20.0, 60)
    alike, apart = np.repeat(sessions, 10), rng.normal(100.0, 20.0, 600)
    assert _error(apart) == pytest.approx(20 / np.sqrt(600), rel=0.35)
    assert _error(alike) == pytest.approx(20 / np.sqrt(60), rel=0.35)
    assert _error(np.array([1.0])) == np.inf


@pytest.mark.parametrize(
    ("hours", "rate", "width_s"),
    # Two hours show changes of 5 minutes, a day those of an hour; 500 requests are to be in a window.
    [
        (2.1, 1.0, 600.0),
        (2.1, 0.8, 900.0),
        (2.1, 0.3, 1800.0),
        (2.1, 0.01, 3600.0),
        (13.0, 1.0, 1800.0),
        (25.0, 1.0, 3600.0),
    ],
)
def test_the_width_of_what_is_judged(hours: float, rate: float, width_s: float) -> None:
    arrivals = np.arange(0, hours * 3600, 1 / rate)
    trace = make_trace([10] * len(arrivals), [10] * len(arrivals), arrivals=arrivals)
    assert compare(analysis(trace), trace).window_s == width_s


def test_when_is_told_on_the_wall_clock_where_the_log_has_one() -> None:
    trace = part(shifted(0), 0.0, STEADY_S)
    assert compare(planned(0), trace).first_epoch_s is None
    assert compare(planned(0), replace(trace, first_epoch_s=1.7e9)).first_epoch_s == 1.7e9
