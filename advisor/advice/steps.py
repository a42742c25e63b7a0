"""Which step times a plan rests on: calibrated for this very engine, else published for it, else a roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from advisor.advice import profiles
from advisor.advice.plan import StepTimeUse
from advisor.advice.target import Target
from engine.shape import ModelShape
from engine.step_time.calibrated import CalibratedStepTime
from engine.step_time.files import Key
from engine.step_time.model import StepTimeModel
from engine.step_time.roofline import Device, RooflineStepTime, cpu_cores

ELEMENT_BYTES = {"auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "fp8": 1.0}
# Worst P90 on 595 fp16 steps of Llama 2 and Mistral, TensorRT-LLM on A100 and H100: 28 %; other engines unseen.
GPU_ROOFLINE_ERROR = 0.30
Calibrations = Mapping[Key, CalibratedStepTime]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The chosen model, how the plan cites it, and the numbers (dtype) it was measured in."""

    model: StepTimeModel
    use: StepTimeUse
    dtype: str


def choose_step_times(target: Target, shape: ModelShape, tp: int, calibrations: Calibrations) -> StepTimes:
    """The most trusted step times that fit the target's engine, device, model, dtype and parallelism."""
    parallel = target.gpus if target.on_cpu and isinstance(target.gpus, int) else tp
    calibrated = _calibrated(target, parallel, calibrations)
    if calibrated is not None:
        return calibrated
    return _published(target, tp) or _roofline(target, shape, tp, parallel)


def _calibrated(target: Target, parallel: int, calibrations: Calibrations) -> StepTimes | None:
    """A calibration of another version of the engine says nothing about this one."""
    fitting = [
        key
        for key in calibrations
        if (key.engine, key.device, key.model, key.parallel)
        == (target.stack, target.gpu, target.model, parallel)
        and target.dtype in ("auto", key.dtype)
        and target.stack_version in (None, key.version)
    ]
    if not fitting:
        return None
    key = max(fitting)
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
    device = cpu_cores(cores) if target.on_cpu else gpu_device(target.gpu)
    weights = ELEMENT_BYTES[target.dtype]
    kv = weights if target.kv_dtype == "auto" else ELEMENT_BYTES[target.kv_dtype]
    error = None if target.on_cpu else GPU_ROOFLINE_ERROR
    model = RooflineStepTime(shape, device, tp, weights, kv, error_p90=error)
    where = f"{cores} CPU cores" if target.on_cpu else f"{target.gpu} x {tp}"
    use = StepTimeUse(source="roofline", error_p90=error, key=f"{target.model}, {where}, efficiencies ours")
    return StepTimes(model, use, target.dtype)


def gpu_device(name: str) -> Device:
    """The roofline device of a GPU profile."""
    gpu = profiles.gpu(name)
    return Device(gpu.bf16_tflops * 1e12, gpu.mem_bw_gbs * 1e9, gpu.link.gbs_per_dir * 1e9)
