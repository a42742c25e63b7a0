"""What router and client take of an instance's cores, and which instances of a CPU's cores are compared."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from helpers.workloads import workload
from rich.console import Console

from advisor.advice.host import HostCosts, SharedCores, load_host_costs, save_host_costs
from advisor.advice.links import links_of
from advisor.advice.machine import Machine
from advisor.advice.plan import Candidate, Plan, StepTimeUse
from advisor.advice.profiles import model_shape
from advisor.advice.resolve import TargetOptions, resolve_target
from advisor.advice.search.hardware import core_sizes, hardware_of
from advisor.advice.situation import draw
from advisor.advice.steps import choose_step_times
from advisor.advice.target import Target
from advisor.report.plan import show_plan
from engine.config import PoolConfig, RouterConfig
from engine.errors import InputError
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.files import Key
from engine.step_time.model import StepShape

MODEL = "smollm2-135m-instruct"
STEPS = CalibratedStepTime(Coefficients(0.020, 0.0, 0.001, 0.0, 0.0015, 1e-6), 0.03, 0.08, 100)
COSTS = HostCosts(request_s=0.004, token_s=0.0005, copy_bytes_per_s=2e9, measured=True)


def target(cores: int = 2, **fields: object) -> Target:
    return Target.model_validate(
        {"model": MODEL, "gpu": "cpu", "gpus": cores, "memory_bytes": 16 * 10**9, "host": COSTS} | fields
    )


def key(cores: int, dtype: str = "bfloat16") -> Key:
    return Key("advise", "1", "cpu", MODEL, dtype, cores)


def test_steps_on_shared_cores_are_longer_by_a_part_of_each_row() -> None:
    """4 ms a request and 0.5 ms a token on two cores: 2 ms a prompt and 0.25 ms a decode row of a step."""
    chosen = choose_step_times(target(), model_shape(MODEL), 1, {key(2): STEPS})
    for shape, more in (
        (StepShape(((100, 0), (20, 5))), 2 * 0.002),
        (StepShape((), 8, 900), 8 * 0.00025),
        (StepShape(((64, 0),), 3, 60), 0.002 + 3 * 0.00025),
        (StepShape(), 0.0),
    ):
        assert chosen.model.seconds(shape) == pytest.approx(STEPS.seconds(shape) + more)
    one = choose_step_times(target(), model_shape(MODEL), 1, {key(1): STEPS}, 1)
    shape = StepShape((), 8, 900)
    assert one.model.seconds(shape) == pytest.approx(STEPS.seconds(shape) + 8 * 0.0005)
    assert chosen.use.error_p90 == STEPS.error_p90


def test_a_run_of_decodes_is_the_sum_of_its_steps() -> None:
    model = SharedCores(STEPS, 0.002, 0.00025)
    first, growth = model.decode_line(8, 800)
    for step in range(4):
        assert first + growth * step == pytest.approx(model.seconds(StepShape((), 8, 800 + 8 * step)))


def test_gpus_share_nothing_with_router_and_client() -> None:
    gpu = Target(model="llama-3.1-8b", gpu="h100-sxm", gpus=2)
    assert choose_step_times(gpu, model_shape("llama-3.1-8b"), 1, {}).use.shared is None


def test_what_is_taken_is_in_the_plan_with_its_basis() -> None:
    shape = model_shape(MODEL)
    measured = choose_step_times(target(), shape, 1, {}).use
    assert measured.shared == "4 ms of CPU a request and 0.5 ms a token (measured here)"
    assumed = choose_step_times(target(host=None), shape, 1, {}).use
    assert "ours; advise calibrate measures it" in str(assumed.shared)
    pools = (PoolConfig(count=2),)
    plan = Plan(
        target=target(),
        step_time=measured,
        candidates=(Candidate(name="two", pools=pools, router=RouterConfig(), gpus=2),),
        chosen="two",
        verdict="undecided",
        runs_on={"advise": "yes"},
    )
    stream = StringIO()
    show_plan(Console(file=stream, width=100), plan)
    text = " ".join(stream.getvalue().split())
    assert f"router and client share the cores: {measured.shared}" in text
    assert "2 x 1 core:" in text


def test_a_measurement_of_this_machine_is_part_of_the_target() -> None:
    def resolved(machine: Machine) -> Target:
        found = resolve_target(TargetOptions(here=True), None, machine)
        assert isinstance(found, Target)
        return found

    measured = resolved(Machine(2, 2**34, host=COSTS))
    assert (measured.host, measured.origins["host"]) == (COSTS, "this machine")
    assert links_of(measured, 2) == (2e9, None)
    assert resolved(Machine(2, 2**34)).host is None


def test_host_costs_are_kept_and_read(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "host.yaml"
    assert load_host_costs(path) is None
    save_host_costs(path, COSTS)
    assert load_host_costs(path) == COSTS
    path.write_text("request_s: -1")
    with pytest.raises(InputError, match="not a file of host costs"):
        load_host_costs(path)


def test_instances_have_all_cores_or_a_power_of_two() -> None:
    assert core_sizes(1) == [1]
    assert core_sizes(2) == [2, 1]
    assert core_sizes(6) == [6, 1, 2, 4]


def test_a_guess_is_not_compared_with_a_measurement() -> None:
    """Nor are other numbers: one fleet has one model."""
    situation = draw(workload(), target(), {key(2): STEPS})
    assert set(hardware_of(situation, {key(2): STEPS}).step_times) == {2}
    assert set(hardware_of(situation, {key(2): STEPS, key(1): STEPS}).step_times) == {2, 1}
    assert set(hardware_of(situation, {key(2): STEPS, key(1, "float32"): STEPS}).step_times) == {2}
    guessed = draw(workload(), target(), {})
    assert set(hardware_of(guessed, {}).step_times) == {2, 1}


def test_cores_of_the_roofline_share_the_memory() -> None:
    """Decodes are bound by bandwidth: two instances of one core take twice as long for a step as one of two."""
    shape = replace(model_shape(MODEL))
    alone = target(host=HostCosts(request_s=0, token_s=0))
    whole, half = (choose_step_times(alone, shape, 1, {}, cores).model for cores in (2, 1))
    read = StepShape((), 1, 2_000)
    fixed = 0.0001 * shape.layers  # 100 us a layer, whatever the cores
    assert half.seconds(read) - fixed == pytest.approx(2 * (whole.seconds(read) - fixed), rel=1e-6)


def test_a_step_time_use_of_an_older_plan_is_read() -> None:
    assert StepTimeUse.model_validate({"source": "roofline", "error_p90": None, "key": "k"}).shared is None
