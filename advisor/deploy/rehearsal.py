"""A rehearsal: from a plan to the emulation that stands for its GPUs, with the plan's own numbers.

Step times, link, KV bytes and KV tokens are those that the plan was simulated with, chosen by the same
functions, so that an emulated fleet and the simulation differ in the clock alone. Measures nothing, starts
nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from advisor.advice import profiles
from advisor.advice.links import links_of
from advisor.advice.plan import Plan
from advisor.advice.profiles import model_shape
from advisor.advice.sizing import ModelCopy
from advisor.advice.steps import Calibrations, StepTimes, choose_step_times, kv_bytes
from advisor.advice.target import CPU, Target
from advisor.deploy.calibrate import step_times_path
from engine.config import EngineConfig, PoolConfig
from engine.emulation import EmulatedLink, EmulatedPool, Emulation
from engine.errors import InputError
from engine.launchable import why_not_launchable
from engine.shape import ModelShape
from engine.step_time.files import load_calibrations
from engine.step_time.model import StepTimeModel
from engine.step_time.scaled import ScaledStepTime

if TYPE_CHECKING:
    from advisor.deploy.launch import Launchable


def rehearsal(what: Launchable, gpu: str, time_scale: float = 1.0) -> Emulation:
    """The emulation of `what` on the plan's GPU, which `gpu` names.

    An edited engine.yaml has the step times of its plan's target. Raises InputError where there is no plan,
    another GPU is named, the plan rests on step times that are not here any more, or `time_scale` is not
    between 0 and 1000.
    """
    plan = what.plan
    if plan is None:
        raise InputError(
            "only a plan can be emulated",
            where=str(what.config_path),
            why="its target says whose step times to sleep, and there is no plan.json beside it",
            hint=f"advise analyze LOG --gpu {gpu} --model NAME, then advise launch --emulate {gpu}",
        )
    _refuse_other_gpu(plan.target, gpu, what.folder)
    if not 0 < time_scale <= 1000:
        raise InputError(f"--time-scale {time_scale:g} is not between 0 and 1000", hint="--time-scale 4")
    shape, target = model_shape(plan.target.model, plan.target.model_path), plan.target
    steps = [_steps(plan, shape, pool) for pool in what.config.pools]
    return Emulation(
        gpu=target.gpu,
        time_scale=time_scale,
        pools=tuple(
            EmulatedPool(
                role=pool.role,
                step_time=_moved(plan, chosen.model),
                kv_tokens=_kv_tokens(target, shape, pool, chosen.dtype),
            )
            for pool, chosen in zip(what.config.pools, steps, strict=True)
        ),
        link=EmulatedLink(bytes_per_s=links_of(target, _gpus(what.config))[0]),
        kv_bytes_per_token=shape.kv_bytes_per_token(kv_bytes(target, steps[0].dtype, shape)),
        max_len=target.max_len or shape.max_len,
        vocab=shape.vocab,
    )


def can_be_rehearsed(target: Target, config: EngineConfig) -> bool:
    """Whether an emulated fleet can stand for a plan's GPUs in this configuration."""
    return not target.on_cpu and why_not_launchable(config, emulated=True) is None


def _refuse_other_gpu(target: Target, gpu: str, folder: Path) -> None:
    named = gpu if gpu == CPU else profiles.gpu(gpu).id
    if named != target.gpu:
        raise InputError(
            f"the plan is for {target.gpu}, not {named}",
            why="a rehearsal sleeps the step times that its plan rests on",
            hint=f"advise launch {folder} --emulate {target.gpu}, or advise plan {folder} --gpu {named}",
        )


def _steps(plan: Plan, shape: ModelShape, pool: PoolConfig) -> StepTimes:
    """What the plan was simulated with. Raises InputError where that was a calibration which is gone.

    Without the part that router and client take of cores: these take it of the real ones.
    """
    calibrated = plan.step_time.source == "calibrated"
    calibrations: Calibrations = load_calibrations(step_times_path()) if calibrated else {}
    cores = pool.devices_per_instance
    chosen = choose_step_times(plan.target, shape, pool.tp, calibrations, cores, shared=False)
    if calibrated and chosen.use.source != "calibrated":
        raise InputError(
            "the plan's step times are not here any more", why=plan.step_time.key, hint="advise calibrate"
        )
    return chosen


def _moved(plan: Plan, model: StepTimeModel) -> StepTimeModel:
    """With the factors of the plan's backtest, where it was made with them."""
    tested = plan.backtest
    if tested is None or not tested["planned_with"]:
        return model
    return ScaledStepTime(model, tested["prefill_factor"], tested["decode_factor"])


def _kv_tokens(target: Target, shape: ModelShape, pool: PoolConfig, dtype: str) -> int:
    copy = ModelCopy(target, shape, pool.tp, dtype, pool.pp, pool.devices_per_instance)
    return pool.kv_tokens or copy.kv_tokens(pool.token_budget)


def _gpus(config: EngineConfig) -> int:
    return sum(pool.count * pool.tp * pool.pp for pool in config.pools)
