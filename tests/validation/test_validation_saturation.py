"""Requests in flight that keep growing: queues of known theory on a virtual clock, and hand-made runs."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.one_server import records_of_queue

from advisor.validation.record import Record
from advisor.validation.saturation import in_flight, saturation

RUNS = 100


def found(load: float, requests: int, warm_up: int = 0) -> int:
    """In how many of `RUNS` runs of M/D/1 at this load requests are said to pile up."""
    runs = (records_of_queue(load, requests, seed, warm_up=warm_up) for seed in range(RUNS))
    return sum(saturation(records).oversaturated for records in runs)


@pytest.mark.parametrize("load", [0.8, 0.95])
@pytest.mark.parametrize("requests", [60, 600])
def test_no_false_alarm_below_capacity(load: float, requests: int) -> None:
    assert found(load, requests) <= 5


@pytest.mark.parametrize(("load", "requests", "at_least"), [(1.5, 600, 95), (1.25, 1000, 95)])
def test_overload_is_found(load: float, requests: int, at_least: int) -> None:
    assert found(load, requests) >= at_least


def record(due: float, done: float | None) -> Record:
    return Record(0, due, 1, 1, "ok", t_send=due, t_done=done)


def steady(at: np.ndarray, e2e_s: float) -> list[Record]:
    return [record(due, due + e2e_s) for due in at.tolist()]


def test_in_flight_by_hand() -> None:
    # [0, 2) holds one for 2 s and one for 1 s; [2, 4) one for 1 s: means 1.5 and 0.5.
    cells = in_flight(np.array([0.0, 1.0]), np.array([3.0, 2.0]), np.array([0.0, 2.0, 4.0]))
    assert cells == pytest.approx([1.5, 0.5])


def test_figures_of_a_queue_that_grows_evenly() -> None:
    # A request a second whose E2E grows by 1 s a second: at t, t / 2 are in flight. Thirds of 300 s: 75, 125.
    run = saturation([record(float(t), 2.0 * t) for t in range(301)])
    assert run.oversaturated
    assert run.middle == pytest.approx(75, rel=0.02)
    assert run.last == pytest.approx(125, rel=0.02)
    assert run.growth == pytest.approx(2 / 3, rel=0.02)
    assert run.slope_low == pytest.approx(0.5, rel=0.05)
    assert run.text == "75 requests in flight in the middle third, 125 in the last"


def test_growth_within_a_fifth_is_none() -> None:
    # The same slope on top of a backlog of 200: 275 and 325, 18 % more.
    backlog = [record(0.0, 1000.0)] * 200
    run = saturation([*backlog, *(record(float(t), 2.0 * t) for t in range(301))])
    assert run.growth == pytest.approx(50 / 275, rel=0.05)
    assert not run.oversaturated


def test_a_log_that_gets_busier_is_no_queue() -> None:
    # The rate rises in proportion to time, from 0 to 4 a second, and E2E is 10 s throughout: in flight are
    # rate x 10 s, from a mean of 20 in the middle third to 33 in the last.
    arrivals = 300 * np.sqrt(np.linspace(0, 1, 600))
    run = saturation(steady(arrivals, 10.0))
    assert run.growth == pytest.approx(2 / 3, abs=0.05)
    assert run.slope_low is not None
    assert run.slope_low > 0
    assert not run.oversaturated
    # The same arrivals where E2E grows with them are a queue.
    assert saturation([record(due, due + 10 + due / 5) for due in arrivals.tolist()]).oversaturated


def test_a_burst_at_the_end_is_no_trend() -> None:
    # 29 cells alike and one with thirty more: the mean grows by over a fifth, the slope proves nothing.
    run = saturation([*steady(np.arange(0, 300, 1.0), 3.0), *[record(290.0, 299.0)] * 30])
    assert run.growth is not None
    assert run.growth > 0.2
    assert not run.oversaturated


def test_a_fraction_of_a_request_is_no_queue() -> None:
    # From 0.5 to 0.9 in flight, and as even as can be: 80 % more of nearly nothing.
    run = saturation([record(float(t), t + 0.3 + 0.002 * t) for t in range(301)])
    assert run.growth is not None
    assert run.growth > 0.2
    assert run.slope_low is not None
    assert run.slope_low > 0
    assert not run.oversaturated


def test_requests_without_an_end_are_in_flight_until_the_run_ends() -> None:
    served = [record(float(t), t + 1.0) for t in range(300)]
    lost = [record(float(t), None) for t in range(0, 300, 2)]
    assert saturation([*served, *lost]).oversaturated
    assert not saturation(served).oversaturated


@pytest.mark.parametrize("records", [[], [record(0.0, None)], [record(5.0, 6.0)] * 40, [record(0.0, 1.0)] * 29])
def test_too_little_to_say(records: list[Record]) -> None:
    run = saturation(records)
    assert (run.oversaturated, run.growth, run.slope_low) == (False, None, None)
    assert "too few" in run.text
