"""What a plan says serves: its configuration as the simulator takes it, on the step times that it rests on.

The numbers are chosen by the functions that the planner itself uses, router and client on the cores of a CPU
included, so that a prediction of a replay and the plan differ in the requests alone. Measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from advisor.advice.links import NODE_GPUS, links_of, stage_link
from advisor.advice.plan import Plan, StepTimeUse
from advisor.advice.profiles import model_shape
from advisor.advice.sizing import ModelCopy
from advisor.advice.steps import Calibrations, StepTimes, choose_step_times, kv_bytes
from advisor.simulation.deployment import Deployment, Pool, Transport
from engine.config import EngineConfig, PoolConfig
from engine.launchable import devices
from engine.shape import ModelShape
from engine.step_time.model import StepTimeModel
from engine.step_time.pipelined import PipelinedStepTime
from engine.step_time.scaled import ScaledStepTime

OURS = "advise"  # the stack whose engine is the bundled one


@dataclass(frozen=True, slots=True)
class Planned:
    """A configuration to simulate, and the step times that it has: of its pools those that are known worst."""

    deployment: Deployment
    use: StepTimeUse

    def times(self, factor: float) -> Deployment:
        """The deployment with every step `factor` times as long."""
        if factor == 1.0:
            return self.deployment
        pools = (
            replace(pool, step_time=ScaledStepTime(pool.step_time, factor, factor))
            for pool in self.deployment.pools
        )
        return replace(self.deployment, pools=tuple(pools))


def planned(plan: Plan, config: EngineConfig, calibrations: Calibrations) -> Planned | str:
    """`config` on the step times of `plan`, or why they are not to be had.

    A plan for the bundled engine keeps the kind of step times that it was made with; one for another engine
    takes a calibration that was made since. Raises InputError for a model that is not known.
    """
    target = plan.target
    shape = model_shape(target.model, target.model_path)
    calibrated = plan.step_time.source == "calibrated"
    known = calibrations if calibrated or target.stack != OURS else {}
    steps = [
        choose_step_times(target, shape, pool.tp, known, pool.devices_per_instance) for pool in config.pools
    ]
    if calibrated and any(one.use.source != "calibrated" for one in steps):
        return f"the step times of the plan are not here any more ({plan.step_time.key})"
    link_bytes_per_s = links_of(target, devices(config))[0]
    pools = tuple(
        Pool(
            pool.model_copy(update={"kv_tokens": _kv_tokens(plan, shape, pool, chosen.dtype)}),
            _staged(_moved(plan, chosen), plan, pool, shape, link_bytes_per_s),
        )
        for pool, chosen in zip(config.pools, steps, strict=True)
    )
    per_token = shape.kv_bytes_per_token(kv_bytes(target, steps[0].dtype, shape))
    deployment = Deployment(
        pools=pools,
        router=config.router,
        transport=Transport(link_bytes_per_s, per_token),
        max_len=target.max_len or shape.max_len,
        max_queued=config.server.max_queued,
    )
    return Planned(deployment, max((one.use for one in steps), key=lambda use: use.error_p90 or 0.0))


def _moved(plan: Plan, chosen: StepTimes) -> StepTimeModel:
    """With the factors of the plan's backtest, where it was made with them."""
    tested = plan.backtest
    if tested is None or not tested["planned_with"]:
        return chosen.model
    return ScaledStepTime(chosen.model, tested["prefill_factor"], tested["decode_factor"])


def _staged(
    model: StepTimeModel, plan: Plan, pool: PoolConfig, shape: ModelShape, link_bytes_per_s: float
) -> StepTimeModel:
    """Through all pipeline stages of an instance."""
    if pool.pp == 1:
        return model
    link = stage_link(plan.target) if pool.tp * pool.pp <= NODE_GPUS else link_bytes_per_s
    return PipelinedStepTime(model, pool.pp, shape.layers, shape.hidden, link)


def _kv_tokens(plan: Plan, shape: ModelShape, pool: PoolConfig, dtype: str) -> int:
    copy = ModelCopy(plan.target, shape, pool.tp, dtype, pool.pp, pool.devices_per_instance)
    return pool.kv_tokens or copy.kv_tokens(pool.token_budget)
