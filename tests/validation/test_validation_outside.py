"""Calibration from outside: known step times come back, on a virtual clock and from an emulation."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.virtual_endpoint import VirtualEndpoint

from advisor.advice.profiles import model_shape
from advisor.advice.steps import choose_step_times
from advisor.advice.target import Target
from advisor.deploy.local import start_engine
from advisor.validation.endpoint import Endpoint
from advisor.validation.outside import calibrate_url, fitted, profile_of, stack_of
from advisor.validation.outside_design import Speed, budget_of, chunks, design
from advisor.validation.outside_probes import Measured, measure
from advisor.validation.outside_rows import overhead_s
from engine.config import EngineConfig, PoolConfig
from engine.emulation import EmulatedPool, Emulation
from engine.errors import InputError, InvalidMeasurementError, MachineError
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.files import Key, load_calibrations, save_calibrations
from engine.step_time.model import StepShape

# Of a GPU of the 80 GB kind and a model of 8B: 10 ms a step, 55 us a prompt token.
GPU = CalibratedStepTime(Coefficients(0.009, 0.002, 5.5e-5, 3e-9, 1e-4, 1.5e-7))
# Of two cores and a model of 135M, with the bump that small steps have there.
CORES = CalibratedStepTime(
    Coefficients(0.024, 0.004, 1.2e-3, 1.1e-7, 0.0025, 2e-6),
    bumps=(0.0, 0.004, 0.008, 0.01, 0.004, 0.0, 0, 0, 0),
)
GRID = [
    *(StepShape(((new, context),)) for new in (16, 64, 256, 512) for context in (0, 1024)),
    *(StepShape((), rows, rows * context) for rows in (1, 4, 16) for context in (64, 512, 1500)),
    *(StepShape(((new, 0),), rows, rows * 300) for new in (64, 256) for rows in (1, 8)),
]


def outside(endpoint: VirtualEndpoint, **given: Any) -> Measured:
    given = {"on_cpu": False, "max_len": 8192, "enough_s": 0.0, "most_streams": 16, **given}
    return asyncio.run(measure(endpoint.answer, clock=lambda: endpoint.now, seed=3, **given))


def off(found: CalibratedStepTime, true: CalibratedStepTime, shapes: list[StepShape] = GRID) -> float:
    return max(abs(found.seconds(shape) / true.seconds(shape) - 1) for shape in shapes)


@pytest.mark.parametrize(("true", "on_cpu"), [(GPU, False), (CORES, True)])
@pytest.mark.parametrize("token_budget", [8192, 512, 384])
def test_known_step_times_come_back_on_a_grid(
    true: CalibratedStepTime, on_cpu: bool, token_budget: int
) -> None:
    """Within 10 %, whatever the token budget; the way of 6 ms is found and taken out, within 1 ms."""
    endpoint = VirtualEndpoint(true.seconds, token_budget=token_budget, way_s=0.006)
    measured = outside(endpoint, on_cpu=on_cpu)
    found, way_s = fitted(measured, round_trip_s=0.001, seed=3)
    assert measured.design.budget == (None if token_budget == 8192 else token_budget)
    assert way_s == pytest.approx(0.006, abs=0.001)
    assert off(found, true) < 0.10
    assert found.source == "calibrated"
    assert found.error_p90 is not None
    assert found.error_p90 < 0.03


def test_stamps_that_are_late_cost_little() -> None:
    endpoint = VirtualEndpoint(GPU.seconds, way_s=0.006, late_s=0.001)
    assert off(fitted(outside(endpoint), 0.001, 3)[0], GPU) < 0.10


def test_a_way_that_is_not_taken_out_would_be_seen() -> None:
    """The same records, the way counted as part of the step: short prompts then are far off."""
    endpoint = VirtualEndpoint(GPU.seconds, way_s=0.02)
    measured = outside(endpoint)
    whole = Measured(measured.design, [replace_seconds(row, 0.02) for row in measured.lone], measured.rows)
    short = [StepShape(((16, 0),))]
    assert off(fitted(measured, 0.001, 3)[0], GPU, short) < 0.05
    assert overhead_s(whole.lone, whole.rows, 0.0, GPU.seconds) == pytest.approx(0.04, abs=0.001)


def replace_seconds(row: Any, more_s: float) -> Any:
    return row._replace(seconds=row.seconds + more_s)


def test_steps_are_those_that_the_engine_made() -> None:
    """The rows hold exactly the seconds of the model for the shapes that they claim, a mean's middle apart."""
    endpoint = VirtualEndpoint(GPU.seconds, token_budget=512)
    measured = outside(endpoint, most_streams=None)
    assert {row.shape.decode_rows for row in measured.rows if row.shape.prefill} == {1, 16, 32}
    assert {row.shape.decode_rows for row in measured.rows if not row.shape.prefill} == {1, 4, 16, 32, 64}
    assert max(new for row in measured.rows for new, _ in row.shape.prefill) == 512 - 32
    for shape, seconds in [*measured.lone, *measured.rows]:
        assert seconds == pytest.approx(GPU.seconds(shape), rel=2e-3)


def test_a_prompt_in_fewer_steps_than_its_budget_says_gives_no_rows() -> None:
    """A budget that the user names and the engine does not have."""
    measured = outside(VirtualEndpoint(GPU.seconds), budget=256)
    assert measured.design.mixed[2][0] > 256
    assert {sum(new for new, _ in row.shape.prefill) for row in measured.rows} == {0, 16, 128}
    for shape, seconds in measured.rows:
        assert seconds == pytest.approx(GPU.seconds(shape), rel=2e-3)


def test_streams_that_are_refused_are_left_out() -> None:
    endpoint = VirtualEndpoint(GPU.seconds, most=20)
    measured = outside(endpoint, most_streams=None)
    assert measured.refused == {32, 64}
    assert max(row.shape.decode_rows for row in measured.rows) == 16
    assert off(fitted(measured, 0.0, 3)[0], GPU) < 0.10


def test_no_more_streams_than_are_allowed() -> None:
    measured = outside(VirtualEndpoint(GPU.seconds), most_streams=8)
    assert max(row.shape.decode_rows for row in measured.rows) == 4


def test_a_slow_endpoint_is_measured_within_the_limit() -> None:
    """A laptop that computes 20 prompt tokens a second and decodes 4: short prompts are enough."""
    slow = CalibratedStepTime(Coefficients(0.2, 0.0, 0.05, 0.0, 0.05, 0.0))
    endpoint = VirtualEndpoint(slow.seconds, until_s=300.0)
    measured = outside(endpoint, on_cpu=True, enough_s=120.0, limit_s=300.0)
    assert endpoint.now < 305
    assert max(row.shape.tokens for row in measured.lone) <= 80
    assert measured.refused == set()
    assert off(fitted(measured, 0.0, 3)[0], slow, [StepShape(((64, 0),)), StepShape((), 8, 512)]) < 0.10


def test_no_probe_begins_after_the_limit() -> None:
    endpoint = VirtualEndpoint(CORES.seconds)
    measured = outside(endpoint, on_cpu=True, enough_s=600.0, limit_s=100.0)
    assert 100 <= endpoint.now < 160
    assert measured.passes >= 1


def test_too_few_steps_are_an_error() -> None:
    measured = outside(VirtualEndpoint(CORES.seconds, until_s=10.0), on_cpu=True, limit_s=10.0)
    with pytest.raises(InvalidMeasurementError, match="too little could be measured"):
        fitted(measured, 0.0, 3)


def test_an_endpoint_that_serves_nothing_is_an_error() -> None:
    with pytest.raises(MachineError, match="does not serve"):
        outside(VirtualEndpoint(GPU.seconds, most=0))


@pytest.mark.parametrize(
    ("excess", "budget"),
    [
        ([0.05, 0.05, 0.05, 0.047], 512),  # 2,016 tokens beside one stream: 3 x 511 and 483
        ([0.0, 0.05, 0.05, 0.05, 0.047], 512),  # a step that began before
        ([0.02], None),
        ([], None),
        ([0.1, 0.1, 0.025], 896),  # 2 x 895 and 226
    ],
)
def test_the_budget_is_read_off_the_steps_of_a_stream(excess: list[float], budget: int | None) -> None:
    assert budget_of(2016, 1, excess) == budget


def test_decodes_go_before_the_chunk() -> None:
    assert chunks(1000, 32, 512, 8) == [(504, 32), (496, 536)]
    assert chunks(1000, 0, None, 8) == [(1000, 0)]


def test_a_pass_is_five_lengths_five_numbers_of_streams_and_three_mixed() -> None:
    for on_cpu in (True, False):
        plan = design(Speed(5000.0, 0.01), 512, on_cpu=on_cpu, max_len=4096)
        assert (len(plan.lone), len(plan.streams), len(plan.mixed)) == (5, 5, 3)
        assert max(plan.lone) == 512
        assert plan.mixed[0] == (plan.lone[0], 1)
        for streams in plan.streams:
            for share in (0.0, 0.5, 1.0):
                context = plan.context(streams, share)
                assert context + plan.output(streams, context) <= 4096


def emulated(true: CalibratedStepTime, time_scale: float = 1.0) -> tuple[EngineConfig, Emulation]:
    pool = PoolConfig(token_budget=512, max_seqs=64, prefix_cache=True, kv_tokens=100_000)
    one = EmulatedPool(role="colocated", step_time=true, kv_tokens=100_000)
    emulation = Emulation(
        gpu="h100-sxm", pools=(one,), kv_bytes_per_token=1.0, max_len=4096, vocab=32_000, time_scale=time_scale
    )
    return EngineConfig(pools=(pool,)), emulation


@pytest.mark.parametrize(
    ("served", "profile"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("smollm2-135m-instruct", "smollm2-135m-instruct"),
        ("my-own", "my-own"),
    ],
)
def test_a_served_name_is_that_of_its_profile(served: str, profile: str) -> None:
    assert profile_of(served) == profile


def test_an_engine_that_does_not_tell_which_it_is_must_be_named() -> None:
    endpoint = Endpoint("http://localhost:1", "m", 4096, 32_000)
    with pytest.raises(InputError, match="does not tell which engine") as raised:
        stack_of(endpoint, None)
    assert "--stack" in str(raised.value.hint)
    assert stack_of(endpoint, "sglang") == "sglang"
    assert stack_of(replace(endpoint, kind="vllm"), None) == "vllm"


@pytest.mark.slow
def test_an_emulated_engine_gives_its_step_times_away(tmp_path: Path) -> None:
    """Over HTTP, on a clock three times slower: within 10 % on the grid, and a plan for that stack finds it."""
    config, emulation = emulated(GPU, time_scale=3.0)
    other = Key("advise", "1", "cpu", "smollm2-135m-instruct", "bfloat16", 2)
    path = tmp_path / "steps.yaml"
    save_calibrations(path, {other: CORES})
    with start_engine(config, port=0, emulation=emulation) as engine:
        for seed in range(3):  # what else the machine does shows in the held-out error
            result = calibrate_url(
                engine.url,
                engine="vllm",
                device="h100-sxm",
                version="0.10.2",
                model="meta-llama/Llama-3.1-8B-Instruct",
                most_streams=16,
                enough_s=60.0,
                time_limit_s=200.0,
                seed=seed,
                out=path,
            )
            if (result.step_time.error_p90 or 1.0) < 0.1:
                break
    assert result.budget == 512
    assert result.warning is None
    assert off(result.step_time, GPU) < 0.10
    assert list(load_calibrations(path)) == [other, result.key]
    target = Target(stack="vllm", model="llama-3.1-8b", gpu="h100-sxm", gpus=1)
    chosen = choose_step_times(target, model_shape("llama-3.1-8b"), 1, load_calibrations(path))
    assert chosen.use.source == "calibrated"
    assert "vllm 0.10.2, llama-3.1-8b" in chosen.use.key
    assert chosen.model == result.step_time
