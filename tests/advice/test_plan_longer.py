"""On how much of a log the best layout and what runs now are compared."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from helpers.planning import devices, grades, judged, layout
from helpers.simulating import make_load

from advisor.advice import simulated
from advisor.advice.search.judge import Goal, Job, Judged
from advisor.simulation.slo import Slo

LOG = make_load(np.arange(30_000) / 100, 100, 5)  # 300 s of 100 requests a second


def compared(*rates_rps: float, span_s: float, asked_s: float) -> list[Job]:
    """The simulations of layouts of these goodputs, simulated on `span_s` seconds before."""
    jobs: list[Job] = []

    def judge(some: Iterable[Job]) -> list[Judged]:
        jobs.extend(some)
        return [judged(job.layout, 1.0) for job in jobs]

    goal = Goal(Slo(ttft_s=1.0, attainment=0.9))
    work = simulated._Work(cast(Any, SimpleNamespace(gpus=1)), LOG, goal, devices(), None, judge, None)
    known = [judged(layout(f"at {rate:g}"), rate, graded=grades(rate, span_s=span_s)[:1]) for rate in rates_rps]
    found = work._longer(known, asked_s, "causal")
    assert jobs or found is known
    return jobs


@pytest.mark.parametrize(
    ("rates_rps", "asked_s", "length_s"),
    [
        ((100.0, 80.0), 200.0, 200.0),  # as asked
        ((100.0, 80.0), 1260.0, 300.0),  # all of the log
        ((200.0, 80.0), 1260.0, 225.0),  # 1.5 times its requests, at the higher of the rates
        ((100.0, 80.0), 60.0, 150.0),  # 12,000 requests at the lower of the rates
    ],
)
def test_both_are_simulated_to_the_end_on_one_length(
    rates_rps: tuple[float, ...], asked_s: float, length_s: float
) -> None:
    jobs = compared(*rates_rps, span_s=60.0, asked_s=asked_s)
    assert [job.length_s for job in jobs] == pytest.approx([length_s, length_s], abs=0.1)
    assert all(job.graded and job.turns == "causal" for job in jobs)


def test_no_more_is_simulated_than_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "COMPARED", 5000)
    assert [job.length_s for job in compared(100.0, 80.0, span_s=20.0, asked_s=200.0)] == [50.0, 50.0]


def test_what_was_simulated_on_all_of_the_log_is_not_simulated_again() -> None:
    assert not compared(100.0, 80.0, span_s=299.0, asked_s=1260.0)
