"""Which part of a log a layout is judged on, and how closely its goodput is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.planning import devices, layout
from helpers.simulating import make_load

from advisor.advice.search import judge as judging
from advisor.advice.search.judge import Goal, Job, judge, longest_s, part_of
from advisor.simulation.load import Load
from advisor.simulation.outcome import Outcome
from advisor.simulation.slo import Slo

GOAL = Goal(Slo(ttft_s=1.0, attainment=0.9))


def log(requests: int, rate_rps: float) -> Load:
    """Evenly spaced requests, each with a length of its own."""
    return make_load(np.arange(requests) / rate_rps, list(range(100, 100 + requests)), 5)


def test_far_above_the_rate_of_a_log_all_of_it_has_its_place() -> None:
    """1,000 requests at 0.5/s, judged at 500/s: a window of 10 s holds 5 of them, and 1,000 copies 5,000."""
    load = log(1000, 0.5)
    part = part_of(load, 3000, 500.0, GOAL)
    found = part.scale(part.load, 1000.0)
    assert len(found) == pytest.approx(5000, rel=0.05)
    assert len(set(found.prompt_tokens.tolist())) > 950
    assert found.span_s <= 10


def test_near_the_rate_of_a_log_the_part_is_its_own_busiest_stretch() -> None:
    part = part_of(log(1000, 2.0), 100, 2.0, GOAL)
    assert part.requests == len(part.load) == pytest.approx(100, abs=1)


@pytest.mark.parametrize("rate_rps", [2.0, 3.0])
def test_a_part_of_so_many_seconds_is_the_same_for_every_layout(rate_rps: float) -> None:
    part = part_of(log(5000, 2.0), 100, rate_rps, GOAL, length_s=600.0)
    assert part.load.span_s == pytest.approx(600, abs=1)
    assert part.load.arrival_s[0] == 1900  # of 2,500 s the one with the most tokens


def test_a_log_tells_no_more_than_it_has_requests() -> None:
    """1,000 requests in 2,000 s: at 10/s they are used up after 150 s, though copies would fill any time."""
    assert longest_s(log(1000, 0.5), 0.5) == pytest.approx(2000, abs=5)
    assert longest_s(log(1000, 0.5), 10.0) == pytest.approx(150)


def at(rate_rps: float, cliff_rps: float) -> Outcome:
    """All requests keep a TTFT of 1 s up to the cliff, none beyond."""
    count = 100
    zeros = np.zeros(count)
    ttft_s = np.full(count, 0.1 if rate_rps <= cliff_rps else 9.0)
    ints, served = np.ones(count, dtype=np.int64), np.ones(count, dtype=np.bool_)
    return Outcome(
        np.arange(count) / rate_rps, ttft_s, ttft_s, zeros, zeros, zeros, ints, ints, ints, served,
        np.zeros(0), np.zeros(0),
    )  # fmt: skip


@pytest.mark.parametrize("cliff_rps", [0.87, 1.0, 1.19])
def test_a_cliff_between_the_first_two_rates_is_found_to_the_tolerance(
    cliff_rps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interpolation alone stays near one end of such a step."""

    def simulated(_job: Job, _part: Any, _goal: Goal, rate_rps: float) -> Outcome:
        return at(rate_rps, cliff_rps)

    monkeypatch.setattr(judging, "_at_factor", simulated)
    job = Job(layout("one"), devices(), 0, 1.0, 0.025, graded=True)
    found = judge(job, log(1000, 1.0), GOAL)
    assert found.high_rps is not None
    assert found.low_rps <= cliff_rps < found.high_rps
    assert found.high_rps <= found.low_rps * 1.025
