"""Turns in a plan: sent when the log has them, and where that is too early, after the turn before them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.planning import plan_for
from helpers.planted import blocks_of
from helpers.quick import only_the_decision
from helpers.workload_traces import make_trace

from advisor.logs.trace import Trace
from advisor.simulation.slo import Slo


@pytest.fixture(autouse=True)
def _decision(monkeypatch: pytest.MonkeyPatch) -> None:
    only_the_decision(monkeypatch)


def agents(*, lasted_s: float, think_s: float, sessions: int = 60, turns: int = 5) -> Trace:
    """Sessions whose turns of 1,500 tokens more and 200 out took `lasted_s` each in the log."""
    rng = np.random.default_rng(0)
    begin = np.sort(rng.uniform(0, 600, sessions))
    rows = sorted(
        (float(start + turn * (lasted_s + think_s)), who, 1500 * (turn + 1))
        for who, start in enumerate(begin)
        for turn in range(turns)
    )
    lengths = [length for _, _, length in rows]
    return make_trace(
        lengths, [200] * len(rows), arrivals=[at for at, _, _ in rows],
        blocks=blocks_of(lengths, [(who, length) for _, who, length in rows]), size=16,
        sessions=[f"s{who}" for _, who, _ in rows], e2e_s=np.full(len(rows), lasted_s),
    )  # fmt: skip


def test_turns_that_would_overlap_are_also_simulated_waiting() -> None:
    """200 tokens from 65 GB of weights on one H100 (3.35 TB/s) take 4 s at least; the log's took 1 s."""
    found = plan_for(agents(lasted_s=1, think_s=1), "qwen2.5-32b", "h100-sxm", 1, Slo(ttft_s=4, tpot_s=0.1))
    assert found.at_log_rate is not None
    assert found.at_log_rate.early_turns > 0.9
    assert found.waiting is not None
    assert found.waiting.chosen is not None
    assert found.waiting.chosen.at is not None
    assert found.waiting.chosen.at.early_turns == 0


def test_turns_with_time_to_end_are_simulated_once() -> None:
    found = plan_for(agents(lasted_s=9, think_s=30), "qwen2.5-32b", "h100-sxm", 1, Slo(ttft_s=4, tpot_s=0.1))
    assert found.at_log_rate is not None
    assert found.at_log_rate.early_turns <= 0.05
    assert found.waiting is None
