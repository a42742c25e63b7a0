"""Plans of logs with nothing usual about them: no crash, the right verdict, a reason that can be read."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.planning import load_from, plan_for
from helpers.planted import blocks_of, independent
from helpers.quick import only_the_decision
from helpers.workload_traces import make_trace

from advisor.advice.simulated import Simulated
from advisor.logs.trace import Trace
from advisor.simulation.slo import Slo

SLO = Slo(ttft_s=4, tpot_s=0.1)


@pytest.fixture(autouse=True)
def _decision(monkeypatch: pytest.MonkeyPatch) -> None:
    only_the_decision(monkeypatch)


def plan(trace: Trace, slo: Slo = SLO, gpus: int = 2) -> Simulated:
    return plan_for(trace, "qwen2.5-32b", "a100-sxm-80g", gpus, slo)


def short(n: int = 20, rate: float = 0.3) -> Trace:
    return independent(n, rate, prompt=(3000, 5000), output=(50, 150))


def test_twenty_requests_keep_the_defaults() -> None:
    """20 blocks of a minute are what an interval needs; 20 seconds hold none."""
    found = plan(short())
    assert found.decision.verdict == "keep_defaults"
    assert found.decision.chosen is not None
    assert found.decision.chosen.layout.name.startswith("defaults")


def test_targets_below_one_step_are_infeasible() -> None:
    """Reading 65 GB of weights on two A100 takes 16 ms."""
    found = plan(short(), Slo(ttft_s=4, tpot_s=0.005))
    assert (found.decision.verdict, found.decision.chosen) == ("infeasible", None)
    assert found.decision.why == "no layout keeps the targets at any rate"
    assert (found.attribution, found.mean_trap, found.gpus_needed) == ((), None, None)


def test_one_output_token_each_leaves_only_the_first_token_to_judge() -> None:
    """No gap between tokens: a target for it that nothing could keep changes nothing."""
    trace = make_trace([4000] * 30, [1] * 30, arrivals=[3.0 * i for i in range(30)])
    found = plan(trace, Slo(ttft_s=4, tpot_s=1e-6))
    assert found.decision.verdict == "keep_defaults"
    assert found.control.low_rps > 0


def test_a_log_that_says_nothing_of_reuse_is_planned_without() -> None:
    trace = make_trace([4000] * 30, [50] * 30, arrivals=[3.0 * i for i in range(30)])
    found = plan(trace)
    assert found.decision.verdict == "keep_defaults"
    table = dict(found.attribution)
    assert table["cache"].per_gpu == table["nothing"].per_gpu
    assert all(
        one.layout.router.policy != "prefix_affinity"
        for one in (*found.found.finalists[:-1], *found.found.others)
    )


def test_few_long_sessions_are_scaled_in_time_and_still_share() -> None:
    """Four sessions: a tenth more traffic is no whole session."""
    n, sessions = 80, 4
    rows = [(i % sessions, 1000 + 200 * (i // sessions)) for i in range(n)]
    trace = make_trace(
        [length for _, length in rows], [50] * n, arrivals=[float(i) for i in range(n)],
        blocks=blocks_of([length for _, length in rows], [(who, length) for who, length in rows]), size=16,
        sessions=[f"s{who}" for who, _ in rows],
    )  # fmt: skip
    found = plan(trace)
    best = found.found.best
    assert best is not None
    assert best.at is not None
    assert (best.at.hit_rate_tokens or 0) > 0.5  # each turn repeats the one before it


@pytest.mark.slow
def test_an_attainment_of_99_in_100_is_served_at_a_lower_rate_than_of_90() -> None:
    """Bursts of ten at once, every ten seconds: the last of a burst decides the tail."""
    calm = independent(80, 1.0, prompt=(3000, 5000), output=(50, 150))
    trace = replace(calm, arrival_s=np.repeat(np.arange(8) * 10.0, 10))
    loose, strict = (plan(trace, Slo(ttft_s=4, tpot_s=0.1, attainment=a)) for a in (0.9, 0.99))
    assert loose.found.best is not None
    assert strict.found.best is not None
    assert 0 < strict.found.best.per_gpu < loose.found.best.per_gpu


def test_all_at_once_is_a_load_without_a_rate() -> None:
    """`advise` plans such a log by the rules: nothing can be searched over its rate."""
    trace = replace(short(), arrival_s=np.zeros(20))
    assert load_from(trace).span_s == 0
    found = plan(short(), Slo())  # without targets the rate does not matter
    assert found.decision.verdict in {"keep_defaults", "change"}
    assert found.control.per_gpu > 0


def test_no_number_of_a_decision_is_nan() -> None:
    """A control that keeps the targets nowhere has no ratio, not one that is no number."""
    found = plan(short(60), Slo(ttft_s=4, tpot_s=0.035))
    ratio = found.decision.ratio
    assert ratio is None or math.isfinite(ratio.middle)
