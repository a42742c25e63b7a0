"""Utilisation of an instance, against a hand-run schedule."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.workloads import workload

from advisor.advice.advise import advise
from advisor.advice.load import Traffic, load_limit, running_rows, utilisation
from advisor.advice.target import Target
from advisor.simulation.slo import Slo
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.files import Key

# 10 ms a step, 1 ms a new token, 2 ms a decode row, contexts free.
STEPS = CalibratedStepTime(Coefficients(0.010, 0.0, 0.001, 0.0, 0.002, 0.0), 0.02, 0.05, 100)


def test_utilisation_counts_mixed_steps_and_leftover_decodes() -> None:
    # 1 rps, 300 uncached and 120 output tokens, budget 104 with 4 decodes: 3 mixed steps carry 12 decode
    # tokens, the other 108 run 4 at a time in 27 steps.
    traffic = Traffic(rate_rps=1.0, prompt=400, uncached=300, output=120)
    mixed_s, decode_s = 0.010 + 0.100 + 4 * 0.002, 0.010 + 4 * 0.002
    assert utilisation(STEPS, traffic, 104, 4) == pytest.approx(3 * mixed_s + 27 * decode_s)


def test_decodes_that_all_ride_along_need_no_steps_of_their_own() -> None:
    traffic = Traffic(rate_rps=1.0, prompt=400, uncached=300, output=12)
    assert utilisation(STEPS, traffic, 104, 4) == pytest.approx(3 * (0.010 + 0.100 + 4 * 0.002))


def test_utilisation_is_that_of_a_schedule_run_step_by_step() -> None:
    """A saturated instance served step by step takes as long as the formula says, to a few percent of edges."""
    requests, uncached, output, budget, rows = 200, 150, 40, 54, 4
    waiting, prefilling, decoding, busy_s = requests, 0, [], 0.0
    while waiting or prefilling or decoding:
        room, new = budget - len(decoding), 0
        started = len(decoding)
        while room > 0 and (prefilling or (waiting and len(decoding) < rows)):
            if not prefilling:
                waiting, prefilling = waiting - 1, uncached
            chunk = min(prefilling, room)
            prefilling, room, new = prefilling - chunk, room - chunk, new + chunk
            if not prefilling:
                decoding.append(output)
                if len(decoding) >= rows:
                    break
        busy_s += 0.010 + 0.001 * new + 0.002 * started
        decoding = [left - 1 for left in decoding[:started] if left > 1] + decoding[started:]
    load = utilisation(STEPS, Traffic(1.0, uncached, uncached, output), budget, rows)
    assert busy_s / requests == pytest.approx(load, rel=0.10)


@pytest.mark.parametrize(("per_token_s", "expected"), [(0.02, 2), (0.0, 1), (10.0, 32)])
def test_running_rows_follow_littles_law(per_token_s: float, expected: int) -> None:
    assert running_rows(Traffic(2.0, 100, 100, 50), per_token_s, limit=32) == expected


def test_load_limit_is_one_at_the_rate_that_fills_the_instance() -> None:
    target = Target(
        model="smollm2-135m-instruct",
        gpu="cpu",
        gpus=2,
        memory_bytes=16 * 10**9,
        slo=Slo(ttft_s=3, tpot_s=0.15),
    )
    key = Key("advise", "1", "cpu", "smollm2-135m-instruct", "bfloat16", 2)
    plan = advise(workload(), target, {key: STEPS}).plan
    assert plan is not None
    lengths = np.full(100, 400), np.full(100, 60), np.full(100, 240)

    def load(window_s: float) -> float:
        return load_limit(*lengths, window_s, plan, STEPS)

    # Stretch the window until it is just full.
    full_s = 100.0
    for _ in range(60):
        full_s *= load(full_s)
    assert load(full_s) == pytest.approx(1.0, abs=1e-6)
    assert load(2 * full_s) < 1.0 < load(full_s / 2)
    # Work of 240 uncached tokens at least their 1 ms each, 60 outputs at least their 2 ms each.
    assert 100 / full_s < 1 / (0.240 + 0.120)
