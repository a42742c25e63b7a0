"""What `regret` compares: the advised configuration and a grid of others on the same devices.

The grid is a list of ordinary choices, fixed before anything was measured: sizes of instances, token budgets,
splits. On the emulated setup the planner takes step times from its roofline and the engine sleeps a fit to
steps that TensorRT-LLM 0.9 was measured to take: the planner has not seen them. Starts no engine, but to
calibrate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from advisor.advice.host import HostCosts
from advisor.advice.plan import Candidate, Plan
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.layout import Layout, by_prefix, colocated, default_layout, split
from advisor.advice.search.search import same
from benchmarks._regret_traffic import SMOKE
from benchmarks._silicon import Silicon
from benchmarks._three_plan import Ground, ground_of, plan_on, time_scale, words
from benchmarks._three_plan import survey as surveyed
from benchmarks._three_results import ADVISED, Arm, PlanRecord, SetupRecord
from benchmarks._three_traffic import Kind
from engine.errors import MachineError
from engine.step_time.files import Key
from engine.step_time.fit import fit
from engine.step_time.model import StepShape, StepTimeModel
from engine.step_time.plain import from_plain, plain
from engine.step_time.scaled import ScaledStepTime

ALTERNATIVES = {"cpu": 5, "emulated": 8, "smoke": 1}
SOURCE, TABLE, TABLE_MODEL, TABLE_DTYPE, SIZES = (
    "trtllm09-h100",
    "trtllm-0.9.0",
    "llama2-70b",
    "fp8",
    (1, 2, 4, 8),
)
FEWEST_ROWS = 30  # of a table, at TP 1 it has 39
GPU, GPUS, MODEL, DTYPE = "h100-sxm", 8, "llama-2-70b", "fp8"
PLANNED = 12_000  # requests that are planned for: the planner takes minutes for more
SMOKE_SLOWER, SMOKE_RPS, SMOKE_PLANNED = 1.2, 8.0, 200  # the emulator's steps; what is sent, what planned for


def survey(
    setup: str, code: str, seed: int, *, quick: bool, calibration: Path | None, silicon: Path
) -> SetupRecord:
    """What a setup stands on: on the CPU its calibration, for the emulation the step times that it sleeps."""
    if setup == "cpu":
        return surveyed(setup, code, seed, quick=quick, calibration=calibration)
    record = msgspec.structs.replace(
        surveyed("emulated", code, seed, quick=True, calibration=None), setup=setup
    )
    if setup == "smoke":
        return msgspec.structs.replace(
            record, words=f"emulated, every step {SMOKE_SLOWER:g} times as long as planned"
        )
    read = Silicon(silicon)

    def rows(tp: int) -> tuple[list[StepShape], list[float]]:
        return read.table(SOURCE, TABLE_MODEL, TABLE_DTYPE, tp)

    tables = [(tp, fit(*rows(tp), fewest=FEWEST_ROWS)) for tp in SIZES]
    errors = ", ".join(f"{model.error_p90 or math.nan:.0%} at TP {tp}" for tp, model in tables)
    keys = [Key("trtllm", "0.9.0", GPU, MODEL, DTYPE, tp, tp) for tp, _ in tables]
    return msgspec.structs.replace(
        record,
        dtype=DTYPE,
        step_times=tuple(
            {"key": asdict(key), "model": {k: v for k, v in plain(model).items() if k != "bend"}}
            for key, (_, model) in zip(keys, tables, strict=True)
        ),
        words=f"{GPUS} x {GPU} emulated, {MODEL} in {DTYPE}; planned with the roofline, slept: a fit to the "
        f"steps of {TABLE} ({SOURCE}; P90 error of the fit {errors})",
    )


def ground(record: SetupRecord) -> Ground:
    """What is planned on: of an emulation no measured step times."""
    if record.setup == "cpu":
        return ground_of(record)
    if record.setup == "smoke":
        return Ground(False, "auto", {}, HostCosts(), gpus=1, requests=SMOKE_PLANNED)
    return Ground(False, record.dtype, {}, HostCosts(), gpu=GPU, gpus=GPUS, model=MODEL, requests=PLANNED)


def slept(record: SetupRecord, hardware: Hardware) -> Hardware:
    """The devices as they are: with the step times that the emulation sleeps."""
    if record.setup == "cpu":
        return hardware
    times: dict[int, StepTimeModel]
    if record.setup == "smoke":
        times = {
            tp: ScaledStepTime(model, SMOKE_SLOWER, SMOKE_SLOWER) for tp, model in hardware.step_times.items()
        }
    else:
        times = {
            Key(**one["key"]).tp: from_plain({**one["model"], "bend": math.inf}) for one in record.step_times
        }
    return replace(hardware, step_times=times)


def advise_on(kind: Kind, setup: SetupRecord) -> PlanRecord:
    """Plan for a workload as `advise analyze` does, and make the grid. Raises MachineError: no advice."""
    if setup.setup == "smoke":
        return _smoke_plan(kind, setup)
    on = ground(setup)
    plan, hardware, devices = plan_on(kind, on, setup.seed)
    choice = _advice(plan, slept(setup, hardware))
    advice = Layout(choice.name, choice.pools, choice.router)
    assert choice.goodput_rps_per_gpu is not None
    goodput_rps = choice.goodput_rps_per_gpu.mid * choice.gpus
    others = [one for one in grid(hardware, devices, reuse=_shares(kind)) if not same(one, advice)]
    arms = {ADVISED: advice} | {one.name: one for one in others[: ALTERNATIVES[setup.setup]]}
    note = "" if choice.name == plan.chosen else f"; {plan.chosen} has instances that are not emulated"
    return PlanRecord(
        setup=setup.setup,
        code=setup.code,
        seed=setup.seed,
        kind=kind.name,
        digest=kind.digest,
        devices=devices,
        goodput_rps=goodput_rps,
        time_scale=1.0 if on.on_cpu else time_scale(kind, goodput_rps, slept(setup, hardware), arms),
        verdict=plan.verdict,
        advice=choice.name + note,
        advised=ADVISED,
        arms={name: _arm(layout, on_cpu=on.on_cpu) for name, layout in arms.items()},
    )


def _advice(plan: Plan, hardware: Hardware) -> Candidate:
    """The choice; where it has stages, or instances of a size without step times, the best that has not."""

    def runs(one: Candidate) -> bool:
        return all(pool.pp == 1 and hardware.size(pool) in hardware.step_times for pool in one.pools)

    known = [one for one in plan.candidates if one.goodput_rps_per_gpu is not None and runs(one)]
    if plan.choice is not None and plan.choice in known:
        return plan.choice
    if plan.choice is None or not known:
        raise MachineError("no configuration that can be run keeps the targets at any rate")
    return max(known, key=lambda one: one.goodput_rps_per_gpu.mid if one.goodput_rps_per_gpu else 0.0)


def grid(hardware: Hardware, devices: int, *, reuse: bool) -> Iterator[Layout]:
    """The alternatives in order; more than are measured, since one of them may be the advice.

    `reuse`: prompts share prefixes, so that several instances are chosen by prefix.
    """
    made = _on_cores(hardware, devices) if hardware.on_cpu else _on_gpus(hardware, devices)
    for layout in made:
        yield (by_prefix(layout) if reuse else None) or layout


def _on_cores(hardware: Hardware, cores: int) -> Iterator[Layout]:
    yield colocated(hardware, 1, cores, 128, "round_robin")
    yield colocated(hardware, cores, 1, 128, "least_loaded")
    yield colocated(hardware, 1, cores, 512, "round_robin")
    yield split(hardware, (1, (1, 1)), (cores - 1, (1, 1)))
    yield colocated(hardware, cores, 1, 512, "least_loaded")
    yield colocated(hardware, cores, 1, 32, "least_loaded")


def _on_gpus(hardware: Hardware, gpus: int) -> Iterator[Layout]:
    """Of instances of 2, 4 and 8 GPUs, the sizes that the steps were measured of."""
    yield colocated(hardware, gpus // 2, 2, 512, "least_loaded")
    yield colocated(hardware, gpus // 4, 4, 512, "least_loaded")
    yield split(hardware, (gpus // 4, (2, 1)), (gpus // 4, (2, 1)))
    yield colocated(hardware, gpus // 2, 2, 2048, "least_loaded")
    yield colocated(hardware, gpus // 8, 8, 512, "round_robin")
    yield split(hardware, (gpus // 8, (4, 1)), (gpus // 8, (4, 1)))
    yield colocated(hardware, gpus // 4, 4, 2048, "least_loaded")
    yield colocated(hardware, gpus // 2, 2, 256, "least_loaded")
    yield split(hardware, (gpus // 2 - 1, (2, 1)), (1, (2, 1)))


def _shares(kind: Kind) -> bool:
    return any(group.prefixes for group in kind.groups)


def _arm(layout: Layout, *, on_cpu: bool) -> Arm:
    return Arm(
        words=words(layout, on_cpu=on_cpu),
        pools=tuple(pool.model_dump(mode="json") for pool in layout.pools),
        router=layout.router.model_dump(mode="json"),
    )


def _smoke_plan(kind: Kind, setup: SetupRecord) -> PlanRecord:
    """The engine's defaults as the advice, a smaller budget as the alternative: no search."""
    hardware = ground(setup).hardware(SMOKE, setup.seed)
    layouts = {ADVISED: default_layout(hardware, 1), "budget 64": colocated(hardware, 1, 1, 64, "round_robin")}
    return PlanRecord(
        setup=setup.setup,
        code=setup.code,
        seed=setup.seed,
        kind=kind.name,
        digest=kind.digest,
        devices=1,
        goodput_rps=SMOKE_RPS,
        time_scale=1.0,
        verdict="keep_defaults",
        advice="defaults",
        advised=ADVISED,
        arms={name: _arm(layout, on_cpu=False) for name, layout in layouts.items()},
    )
