"""The mean trap on the public Azure code log: bursts need several times the GPUs that mean lengths say.

First 2,000 requests at 4 a second, Qwen3-32B in 8 bits. A peer's replay on H200 printed the P90 TTFT by GPUs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.planning import load_from, plan_for
from helpers.planted import azure_code_at
from helpers.quick import only_the_decision

from advisor.advice.search.hardware import hardware_of
from advisor.advice.search.judge import AtRate, Goal, Job, at_rate
from advisor.advice.search.layout import colocated
from advisor.advice.situation import draw
from advisor.advice.target import Target
from advisor.logs.trace import Trace
from advisor.simulation.slo import Slo
from advisor.workload.measure import measure

REQUESTS, RATE_RPS = 2000, 4.0
SLO = Slo(ttft_s=0.5, tpot_s=0.06)
PEER_TTFT_P90_S = {1: 45.5, 2: 9.3, 4: 2.1, 8: 0.5}


@pytest.fixture(scope="module")
def log(shared: Path) -> Trace:
    return azure_code_at(shared, REQUESTS, RATE_RPS)


def replayed(log: Trace, gpu: str, gpus: int) -> AtRate:
    """The log on so many instances of one GPU, with vLLM's budget."""
    target = Target(model="qwen3-32b", dtype="fp8", gpu=gpu, gpus=gpus, stack="vllm", slo=SLO)
    hardware, load = hardware_of(draw(measure(log), target, {}), {}), load_from(log)
    job = Job(colocated(hardware, gpus, 1, 8192, "least_loaded"), hardware, 0, RATE_RPS, 0.1)
    return at_rate(job, load, Goal(SLO), len(load) / load.span_s)


@pytest.mark.parametrize("gpus", PEER_TTFT_P90_S)
def test_the_tail_of_the_first_token_is_that_of_another_replay(log: Trace, gpus: int) -> None:
    """Another simulator with step times of its own: within a quarter at every number of GPUs."""
    found = replayed(log, "h200-sxm", gpus).ttft_p90_s
    assert found == pytest.approx(PEER_TTFT_P90_S[gpus], rel=0.25)


def test_fewer_than_four_gpus_miss_the_targets_by_far(log: Trace) -> None:
    for gpus in (1, 2, 3):
        assert replayed(log, "h100-sxm", gpus).attainment < 0.9


@pytest.mark.slow
def test_mean_lengths_say_one_gpu_and_the_trace_needs_four_at_least(
    log: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_the_decision(monkeypatch)
    plan = plan_for(log, "qwen3-32b", "h100-sxm", 8, SLO, dtype="fp8")
    assert plan.mean_trap is not None
    assert plan.mean_trap["answer"]["gpus"] == 1
    assert plan.mean_trap["replay"]["attainment"] < 0.9
    assert plan.gpus_needed is not None
    assert plan.gpus_needed >= 4
