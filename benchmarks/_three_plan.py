"""What `three_ideas` compares: devices and step times, the planner's advice, the five configurations.

Whatever the planner found best of each form is stripped to nothing, to each idea alone and filled with all
three, on the same devices. Starts no engine, except to calibrate.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from advisor.advice.by_simulation import simulated_plan
from advisor.advice.host import HostCosts, load_host_costs
from advisor.advice.plan import Candidate, Plan
from advisor.advice.search.attribution import rows
from advisor.advice.search.hardware import Hardware, hardware_of
from advisor.advice.search.judge import simulate_layout
from advisor.advice.search.layout import Layout, layouts
from advisor.advice.search.search import same
from advisor.advice.simulated import SimulationOptions
from advisor.advice.situation import draw
from advisor.advice.sizing import parallel
from advisor.advice.steps import Calibrations
from advisor.advice.target import CPU, Target
from advisor.deploy.calibrate import calibrate, calibrate_one_core, host_path, step_times_path
from advisor.logs.trace import Trace
from advisor.simulation.from_trace import load_of
from advisor.simulation.outcome import Outcome
from advisor.simulation.slo import Slo
from advisor.validation.host_costs import measure_host_costs
from advisor.workload.measure import measure
from benchmarks._three_results import ADVISED, ARMS, FACTORS, Arm, PlanRecord, SetupRecord
from benchmarks._three_traffic import BLOCK, Kind
from engine.config import EngineConfig, ModelConfig, PoolConfig, RouterConfig, ServerConfig
from engine.emulation import EmulatedLink, EmulatedPool, Emulation
from engine.errors import MachineError
from engine.fetch import EMBEDDED_NAME
from engine.host import usable_memory
from engine.step_time.calibrated import CalibratedStepTime
from engine.step_time.files import Key, load_calibrations
from engine.step_time.plain import from_plain, plain

CORES = 2
GPU, GPUS, MODEL = "h100-sxm", 8, "llama-3.1-8b"
# Requests of the trace that is planned for: on the CPU (True) enough to prove anything to the planner (1,000),
# on GPUs to hold the blocks of its interval.
PLANNED = {True: 1200, False: 40_000}
FIRST_RPS = {True: 2.0, False: 100.0}  # of that trace; the planner finds goodput wherever it is
MOST_QUEUED = 100_000  # the simulation refuses nobody
# CPU seconds a wall second that an emulation may ask of router, client and instances together, and what a step
# of an instance takes of them: its steps have to end on time (ours).
BUSY, STEP_S = 0.6, 0.7e-3


@dataclass(frozen=True, slots=True)
class Ground:
    """What a setup stands on; `calibrations` is empty for an emulation, whose step times are the roofline's."""

    on_cpu: bool
    dtype: str
    calibrations: Calibrations
    host: HostCosts
    gpu: str = GPU
    gpus: int = GPUS
    model: str = MODEL  # on GPUs; on the CPU it is the embedded one
    requests: int | None = None  # that are planned for; None: as many as `PLANNED` says

    def target(self, slo: Slo) -> Target:
        """The devices with targets."""
        if not self.on_cpu:
            return Target(model=self.model, gpu=self.gpu, gpus=self.gpus, dtype=self.dtype, slo=slo)  # type: ignore[arg-type]
        return Target(
            model=EMBEDDED_NAME,
            dtype=self.dtype,
            gpu=CPU,
            gpus=CORES,
            memory_bytes=usable_memory(),
            host=self.host,
            slo=slo,
        )

    def hardware(self, kind: Kind, seed: int) -> Hardware:
        """Step times, memory and link as the planner and the simulation take them."""
        trace = self.planned(kind, seed)
        return hardware_of(draw(measure(trace), self.target(kind.slo), self.calibrations), self.calibrations)

    def planned(self, kind: Kind, seed: int) -> Trace:
        """The requests that are planned for."""
        return kind.trace(self.requests or PLANNED[self.on_cpu], FIRST_RPS[self.on_cpu], seed)


def survey(setup: str, code: str, seed: int, *, quick: bool, calibration: Path | None) -> SetupRecord:
    """Measure what a setup needs, on the CPU its step times; `calibration`: a folder that has them."""
    cpu = platform.processor() or platform.machine()
    machine = f"{os.cpu_count()} cores ({cpu}), Python {platform.python_version()}"
    record = SetupRecord(
        setup=setup,
        code=code,
        seed=seed,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine,
        words=f"{GPUS} x {GPU} emulated, {MODEL}; both figures rest on the same roofline step times: "
        "this tests the engine, not the advice",
    )
    if setup == "emulated":
        return record
    calibrations, host = _calibrated(quick, calibration)
    dtype = next(key.dtype for key in reversed(list(calibrations)) if key.parallel == CORES)
    known = {key.parallel: (key, model) for key, model in calibrations.items() if key.dtype == dtype}
    errors = ", ".join(
        f"{model.error_p90 or math.nan:.0%} on {n} core{'s' * (n > 1)}"
        for n, (_, model) in sorted(known.items())
    )
    return msgspec.structs.replace(
        record,
        words=f"{EMBEDDED_NAME} in {dtype}, step times calibrated (P90 error {errors}), {host}",
        dtype=dtype,
        step_times=tuple({"key": asdict(key), "model": _finite(plain(model))} for key, model in known.values()),
        host=host.model_dump(mode="json"),
    )


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Without the bend of a fit, which is infinite: JSON has no such number."""
    return {name: value for name, value in values.items() if name != "bend"}


def _calibrated(quick: bool, folder: Path | None) -> tuple[Mapping[Key, CalibratedStepTime], HostCosts]:
    if folder is not None:
        return load_calibrations(step_times_path(folder)), load_host_costs(host_path(folder)) or HostCosts()
    whole = calibrate(quick=quick, threads=CORES)
    one = calibrate_one_core(whole, quick=quick)
    if one is None:
        raise MachineError(f"{CORES} cores are needed, each of which can be pinned")
    return {whole.key: whole.step_time, one.key: one.step_time}, measure_host_costs()


def ground_of(record: SetupRecord) -> Ground:
    """The setup as it was surveyed."""
    calibrations: dict[Key, CalibratedStepTime] = {}
    for one in record.step_times:
        model = from_plain({**one["model"], "bend": math.inf})
        assert isinstance(model, CalibratedStepTime)
        calibrations[Key(**one["key"])] = model
    host = HostCosts.model_validate(record.host)
    return Ground(record.setup == "cpu", record.dtype, calibrations, host)


def advise_on(kind: Kind, setup: SetupRecord) -> PlanRecord:
    """Plan for a kind as `advise analyze` does, and make its configurations. Raises MachineError."""
    ground = ground_of(setup)
    plan, hardware, devices = plan_on(kind, ground, setup.seed)
    choice = plan.choice
    if choice is None or choice.goodput_rps_per_gpu is None:
        raise MachineError(f"no configuration keeps the targets of {kind.name} on {setup.setup} at any rate")
    goodput_rps = choice.goodput_rps_per_gpu.low * choice.gpus
    advice = Layout(choice.name, choice.pools, choice.router)
    arms = _arms(advice, plan, hardware, devices)
    advised = next((name for name, layout in arms.items() if same(layout, advice)), ADVISED)
    arms.setdefault(advised, advice)
    return PlanRecord(
        setup=setup.setup,
        code=setup.code,
        seed=setup.seed,
        kind=kind.name,
        digest=kind.digest,
        devices=devices,
        goodput_rps=goodput_rps,
        time_scale=1.0 if ground.on_cpu else time_scale(kind, goodput_rps, hardware, arms),
        verdict=plan.verdict,
        advice=choice.name,
        advised=advised,
        arms={
            name: Arm(
                words=words(layout, on_cpu=ground.on_cpu),
                pools=tuple(pool.model_dump(mode="json") for pool in layout.pools),
                router=layout.router.model_dump(mode="json"),
            )
            for name, layout in arms.items()
        },
    )


def plan_on(kind: Kind, ground: Ground, seed: int) -> tuple[Plan, Hardware, int]:
    """The plan for a kind, the devices as it takes them to be, and how many they are."""
    target, trace = ground.target(kind.slo), ground.planned(kind, seed)
    load, workload = load_of(trace, BLOCK), measure(trace)
    options = SimulationOptions(seed=seed)
    situation, plan = simulated_plan(workload, target, trace, load, ground.calibrations, options, None)
    return plan, hardware_of(situation, ground.calibrations), situation.gpus


def _arms(advice: Layout, plan: Plan, hardware: Hardware, devices: int) -> dict[str, Layout]:
    """Nothing, each idea alone, all three: of the advice and of the best layout of the other form."""
    colocated, split = (
        advice if advice.split == kind else _best(plan, hardware, devices, split=kind) for kind in (False, True)
    )
    whole, apart = dict(rows(colocated, None)), dict(rows(split, None))
    found = (whole["nothing"], whole["cache"], whole["budget"], apart["nothing"], apart["cache + budget"])
    return dict(zip(ARMS, found, strict=True))


def _best(plan: Plan, hardware: Hardware, devices: int, *, split: bool) -> Layout:
    """Of the candidates that were simulated; where none of the kind was, the first that fits."""

    def goodput(one: Candidate) -> float:
        return 0.0 if one.goodput_rps_per_gpu is None else one.goodput_rps_per_gpu.low

    made = [
        Layout(one.name, one.pools, one.router) for one in sorted(plan.candidates, key=goodput, reverse=True)
    ]
    made += layouts(hardware, devices, reuse=False)
    best = next((one for one in made if one.split == split and one.gpus == devices), None)
    if best is None:
        raise MachineError(f"{devices} devices hold no {'split' if split else 'colocated'} fleet")
    return best


def time_scale(kind: Kind, goodput_rps: float, hardware: Hardware, arms: Mapping[str, Layout]) -> float:
    """How much slower the emulation's clock has to be for two cores to send, stream and step in time."""
    costs = HostCosts()
    sending = FACTORS[-1] * goodput_rps * (costs.request_s + costs.token_s * kind.output_mean)
    steps = max(
        sum(pool.count / hardware.step_time(pool.tp).decode_line(1, BLOCK)[0] for pool in layout.pools)
        for layout in arms.values()
    )
    return max(1.0, math.ceil(2 * (sending + steps * STEP_S) / BUSY) / 2)


def words(layout: Layout, *, on_cpu: bool) -> str:
    """A configuration as the table has it."""
    parts = []
    for pool in layout.pools:
        role = "" if pool.role == "colocated" else f" {pool.role}"
        cores = f"{pool.devices_per_instance} core{'s' * (pool.devices_per_instance > 1)}"
        parts.append(f"{pool.count}{role} x {cores if on_cpu else parallel(pool.tp, pool.pp)}")
    first, cached = layout.pools[0], all(pool.prefix_cache for pool in layout.pools)
    how = "prefill first" if first.batching == "prefill_first" else f"budget {first.token_budget:,}"
    extra = [how, "cache" if cached else "no cache"]
    extra += ["by prefix"] if layout.router.policy == "prefix_affinity" else []
    extra += ["longest prefix first"] if first.queue_policy == "prefix_first" else []
    extra += ["bypass"] if layout.router.bypass else []
    return ", ".join([" + ".join(parts), *extra])


def layout_of(name: str, arm: Arm) -> Layout:
    """The configuration of an arm."""
    pools = tuple(PoolConfig.model_validate(pool) for pool in arm.pools)
    return Layout(name, pools, RouterConfig.model_validate(arm.router))


def config_of(layout: Layout, ground: Ground) -> EngineConfig:
    """What the engine is started with."""
    model = ModelConfig(name=ground.model)
    if ground.on_cpu:
        model = ModelConfig(name=EMBEDDED_NAME, dtype=ground.dtype)
    server = ServerConfig(port=0, max_queued=MOST_QUEUED, drain_s=0.0)
    return EngineConfig(pools=layout.pools, router=layout.router, model=model, server=server)


def emulation_of(layout: Layout, hardware: Hardware, time_scale: float, gpu: str = GPU) -> Emulation:
    """The emulation of a configuration, with the very numbers that it is simulated with."""
    pools = [
        EmulatedPool(role=pool.role, step_time=hardware.step_time(pool.tp), kv_tokens=pool.kv_tokens or 1)
        for pool in layout.pools
    ]
    return Emulation(
        gpu=gpu,
        time_scale=time_scale,
        pools=tuple(pools),
        link=EmulatedLink(bytes_per_s=hardware.link_bytes_per_s),
        kv_bytes_per_token=hardware.kv_bytes_per_token,
        max_len=hardware.copies[1].shape.max_len,
        vocab=hardware.copies[1].shape.vocab,
    )


def predict(
    kind: Kind, plan: PlanRecord, layout: Layout, hardware: Hardware, factor: float, seconds: float
) -> Outcome:
    """What the simulation makes of a cell; `seconds` of the wall."""
    trace = kind.cell(plan.rate_rps(factor), seconds / plan.time_scale, plan.seed)
    return simulate_layout(load_of(trace, BLOCK), layout, hardware)
