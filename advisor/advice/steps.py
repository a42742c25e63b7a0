"""Which step times a plan rests on: calibrated for this very engine, else published for it, else a roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from advisor.advice import profiles
from advisor.advice.host import HostCosts, SharedCores
from advisor.advice.plan import StepTimeUse
from advisor.advice.target import Target
from engine.shape import ModelShape
from engine.step_time.calibrated import CalibratedStepTime
from engine.step_time.files import Key
from engine.step_time.model import StepTimeModel
from engine.step_time.roofline import CPU_CONSTANTS, Device, RooflineStepTime, cpu_cores

# nvfp4: 4 bits and an 8-bit scale for 16 weights; int4: a 16-bit scale for 128.
ELEMENT_BYTES = {
    "auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "float32": 4.0,
    "fp8": 1.0, "int8": 1.0, "fp4": 0.5625, "int4": 0.516,
}  # fmt: skip
Calibrations = Mapping[Key, CalibratedStepTime]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The chosen model, how the plan cites it, and the numbers (dtype) it was measured in."""

    model: StepTimeModel
    use: StepTimeUse
    dtype: str


def choose_step_times(
    target: Target, shape: ModelShape, tp: int, calibrations: Calibrations, cores: int | None = None,
    *, shared: bool = True,
) -> StepTimes:  # fmt: skip
    """The most trusted step times that fit the target's engine, device, model, dtype and parallelism.

    `cores`: those of one instance, on a CPU; None: all of the target's. There router and client take their
    part, unless `shared` is False.
    """
    parallel = (cores or cores_of(target)) if target.on_cpu else tp
    chosen = (
        _calibrated(target, parallel, tp, calibrations)
        or _published(target, tp)
        or _roofline(target, shape, tp, parallel)
    )
    return _shared(chosen, target.host_costs, parallel) if target.on_cpu and shared else chosen


def cores_of(target: Target) -> int:
    """Cores of a target on a CPU."""
    return target.gpus if isinstance(target.gpus, int) else 1


def _shared(chosen: StepTimes, costs: HostCosts, cores: int) -> StepTimes:
    """On cores that router and client run on too."""
    model = SharedCores(chosen.model, costs.request_s / cores, costs.token_s / cores)
    return replace(chosen, model=model, use=chosen.use.model_copy(update={"shared": str(costs)}))


def _calibrated(target: Target, parallel: int, tp: int, calibrations: Calibrations) -> StepTimes | None:
    """The newest that fits. A calibration of another version of the engine says nothing about this one."""
    fitting = [
        key
        for key in calibrations
        if (key.engine, key.device, key.model, key.parallel, key.tp)
        == (target.stack, target.gpu, target.model, parallel, tp)
        and target.dtype in ("auto", key.dtype)
        and target.stack_version in (None, key.version)
    ]
    if not fitting:
        return None
    key = fitting[-1]
    model = calibrations[key]
    return StepTimes(
        model, StepTimeUse(source="calibrated", error_p90=model.error_p90, key=str(key)), key.dtype
    )


def _published(target: Target, tp: int) -> StepTimes | None:
    for profile in profiles.step_times():
        same = (profile.engine, profile.gpu, profile.model, profile.tp)
        if same == (target.stack, target.gpu, target.model, tp):
            model = profile.step_time()
            if len(model.covers) == 2:
                use = StepTimeUse(source="published", error_p90=model.error_p90, key=profile.id)
                return StepTimes(model, use, target.dtype)
    return None


def _roofline(target: Target, shape: ModelShape, tp: int, cores: int) -> StepTimes:
    weights = weight_bytes(target.dtype, shape)
    kv = kv_bytes(target, target.dtype, shape)
    if target.on_cpu:
        device = cpu_cores(cores)
        # Cores share the memory: an instance on some of them has its part of the bandwidth.
        device = replace(device, bytes_per_s=device.bytes_per_s * cores / max(cores, cores_of(target)))
        model = RooflineStepTime(shape, device, CPU_CONSTANTS, tp, weight_bytes=weights, kv_bytes=kv)
        basis = f"{cores} CPU cores, constants ours"
    else:
        model = gpu_roofline(
            shape, target.gpu, target.stack, target.stack_version, dtype=target.dtype, tp=tp, kv_bytes=kv
        )
        family = profiles.roofline(target.stack, target.stack_version)
        basis = f"{target.gpu} x {tp}, constants of {family.id}"
    use = StepTimeUse(source="roofline", error_p90=model.error_p90, key=f"{target.model}, {basis}")
    return StepTimes(model, use, target.dtype)


def gpu_roofline(
    shape: ModelShape,
    gpu: str,
    stack: str,
    version: str | None = None,
    *,
    dtype: str = "auto",
    tp: int = 1,
    kv_bytes: float = 2.0,
) -> RooflineStepTime:
    """The roofline of a model on a GPU profile, with constants and known error of the stack's family."""
    family, device = profiles.roofline(stack, version), gpu_device(gpu, tp, dtype)
    on = profiles.gpu(gpu).device_class
    if tp > 1 and on == "nvlink" and device.link_bytes_per_s == 0:
        on = "pcie"
    return RooflineStepTime(
        shape,
        device,
        family.constants,
        tp,
        weight_bytes(dtype, shape),
        kv_bytes,
        error_p90=family.error(on, experts=shape.experts is not None).p90,
    )


def weight_bytes(dtype: str, shape: ModelShape) -> float:
    """Bytes a weight of the layers; `auto`: as the checkpoint stores it, else 16 bits."""
    if dtype == "auto" and shape.quantised_bytes is not None:
        return shape.quantised_bytes
    return ELEMENT_BYTES[dtype]


def kv_bytes(target: Target, dtype: str, shape: ModelShape) -> float:
    """Bytes an element of the KV cache, beside weights in `dtype`; quantised weights leave it in 16 bits."""
    return max(weight_bytes(dtype, shape), 2.0) if target.kv_dtype == "auto" else ELEMENT_BYTES[target.kv_dtype]


def gpu_device(name: str, tp: int = 1, dtype: str = "auto") -> Device:
    """The roofline device of a GPU profile: its link between `tp` of them, its peak for weights in `dtype`."""
    gpu = profiles.gpu(name)
    low = {"fp8": gpu.fp8_tflops, "fp4": gpu.fp4_tflops}.get(dtype)
    return Device(
        gpu.bf16_tflops * 1e12, gpu.mem_bw_gbs * 1e9, gpu.link_bytes_per_s(tp), low * 1e12 if low else None
    )
