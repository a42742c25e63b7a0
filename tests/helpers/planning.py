"""Plans for tests: devices with round numbers, layouts judged by a formula, whole plans of small logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from helpers.simulating import Affine

from advisor.advice.control import default_control
from advisor.advice.profiles import model_shape
from advisor.advice.search.hardware import Hardware, hardware_of
from advisor.advice.search.judge import AtRate, Job, Judged
from advisor.advice.search.layout import Layout
from advisor.advice.simulated import Simulated, SimulationOptions, simulate_plan
from advisor.advice.situation import draw
from advisor.advice.sizing import ModelCopy
from advisor.advice.target import Target
from advisor.logs.trace import Trace
from advisor.simulation.bootstrap import Graded
from advisor.simulation.from_trace import load_of
from advisor.simulation.load import Load
from advisor.simulation.slo import Slo
from advisor.workload.arrivals import spread_trace
from advisor.workload.measure import measure
from engine.config import PoolConfig, RouterConfig
from engine.step_time.model import StepTimeModel

BLOCK = 16


def devices(
    model: str = "llama-3-8b",
    gpu: str = "a100-sxm-80g",
    *,
    step_time: StepTimeModel | None = None,
    longest: int = 4096,
    degrees: Sequence[int] = (1, 2, 4, 8),
) -> Hardware:
    """The memory of real GPUs, with step times of round numbers that TP does not change."""
    target, shape = Target(model=model, gpu=gpu, gpus=8), model_shape(model, None)
    times = step_time or Affine(fixed=0.01, prefill=1e-4, row=1e-4)
    return Hardware(
        on_cpu=False,
        step_times=dict.fromkeys(degrees, times),
        copies={tp: ModelCopy(target, shape, tp, "bfloat16") for tp in degrees},
        longest=longest,
        kv_bytes_per_token=int(shape.kv_bytes_per_token()),
        link_bytes_per_s=100e9,
    )


def layout(name: str, count: int = 1, *, prefill: int = 0, tp: int = 1, **pool: Any) -> Layout:
    """A layout: `count` colocated instances, or `prefill` and `count` decode ones."""
    common = {"tp": tp, "devices_per_instance": tp, "kv_tokens": 100_000, "max_seqs": 256} | pool
    if not prefill:
        return Layout(name, (PoolConfig(count=count, **common),), RouterConfig(policy="least_loaded"))
    pools = (
        PoolConfig(role="prefill", count=prefill, **common),
        PoolConfig(role="decode", count=count, **common),
    )
    return Layout(name, pools, RouterConfig(policy="least_loaded"))


def judged(one: Layout, per_gpu: float, *, graded: Sequence[Graded] = (), simulated: int = 100) -> Judged:
    """A layout with a goodput, requests/s per GPU."""
    rate = per_gpu * one.gpus
    at = AtRate(rate, 0.9, 1.0, 0.05, 0.1, 0.0, 10.0, 0)
    return Judged(one, rate, rate * 1.025, None, at, tuple(graded), simulated)


def grades(goodput_rps: float, *, span_s: float = 6000.0, seed: int = 0, steep: float = 1.0) -> list[Graded]:
    """Complete simulations around a goodput: attainment 0.9 there, less above, in a log of `span_s`.

    Misses are drawn anew for each rate, so that attainments have the noise of as many requests.
    """
    made = []
    for factor in (0.6, 0.8, 1.0, 1.25, 1.6):
        rate = goodput_rps * factor
        rng = np.random.default_rng(seed)
        arrival_s = np.sort(rng.uniform(0, span_s, max(2, round(rate * span_s))))
        missing = min(1.0, 0.1 * factor ** (2 * steep))
        made.append(Graded(rate, arrival_s, rng.random(len(arrival_s)) >= missing))
    return made


@dataclass
class FakeJudge:
    """Judges by a formula, requests/s per GPU, and counts what it would have simulated."""

    goodput: Callable[[Layout], float]
    jobs: list[Job] = field(default_factory=list)

    def __call__(self, jobs: Sequence[Job]) -> list[Judged]:
        self.jobs += jobs
        return [judged(job.layout, self.goodput(job.layout), simulated=job.requests) for job in jobs]

    @property
    def simulated(self) -> int:
        return sum(job.requests for job in self.jobs)


def plan_for(
    trace: Trace,
    model: str,
    gpu: str,
    gpus: int,
    slo: Slo,
    *,
    control: Layout | None = None,
    stack: str = "vllm",
    **target: Any,
) -> Simulated:
    """The whole plan of a trace, as `advise analyze` makes it, in this process."""
    wanted = Target.model_validate(
        {"model": model, "gpu": gpu, "gpus": gpus, "slo": slo, "stack": stack} | target
    )
    situation = draw(measure(trace), wanted, {})
    if control is None:
        found = default_control(wanted, hardware_of(situation, {}), situation.gpus)
        control = None if found is None else found.layout
    options = SimulationOptions(control=control, processes=1)
    return simulate_plan(situation, load_from(trace), {}, options)


def load_from(trace: Trace) -> Load:
    """The Load that a plan of the trace simulates."""
    return load_of(spread_trace(trace)[0], BLOCK)


def goodputs(plan: Simulated) -> dict[str, float]:
    """The attribution table: goodput per GPU by idea."""
    return {name: one.per_gpu for name, one in plan.attribution}
