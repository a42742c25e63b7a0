"""The situation that the rules judge: traffic, device, targets and step times brought to one set of numbers.

Draws it once; nothing changes it afterwards. Lengths are tokens, times seconds, rates requests/s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.advice.load import Traffic, decode_step_seconds, prefill_seconds, utilisation
from advisor.advice.profiles import model_shape
from advisor.advice.rules.capacity import DISPERSION_10S, SIZING_LOAD
from advisor.advice.sizing import MOST_SEQS, ModelCopy, Sizing, size_instance, smallest_size
from advisor.advice.steps import Calibrations, StepTimes, choose_step_times, gpu_device
from advisor.advice.target import Target
from advisor.workload.model import Distribution, Workload
from engine.errors import MachineError
from engine.shape import ModelShape
from engine.step_time.model import StepShape
from engine.step_time.roofline import cpu_cores

FIRST_BUDGET = 2048  # for the KV capacity that the hit rate is read at; the budget itself comes later
HitBasis = Literal["prompts of the log", "cached tokens of the log", "assumed"]
REFERENCE_ROWS, REFERENCE_CONTEXT = (
    32,
    4096,
)  # Sarathi-Serve's t1: the decode step that tightness is measured in


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything the rules look at.

    `mean` is the traffic of one instance at the log's mean rate, `sizing_rps` the rate of all instances that
    the plan is sized for. `hit` is the token hit rate at the KV capacity of all instances, or what
    `hit_basis` says; None where nothing is known, and then nothing is taken to hit. U at `tail` is what the
    TTFT target must hold for.
    """

    workload: Workload
    target: Target
    shape: ModelShape
    tp: int
    instances: int
    steps: StepTimes
    mean: Traffic
    sizing_rps: float
    arrival_cv: float
    hit: float | None
    hit_basis: HitBasis | None
    uncached_p50: float
    uncached_p90: float
    uncached_tail: float
    sizing: Sizing
    prefill_share: float
    pp: int = 1

    @property
    def gpus(self) -> int:
        """Devices that the plan uses; on a CPU cores."""
        if self.target.on_cpu:
            return self.target.gpus if isinstance(self.target.gpus, int) else 1
        return self.tp * self.pp * self.instances

    @property
    def hit_unlimited(self) -> float:
        """Token hit rate of an unlimited cache; 0 where sharing is unknown."""
        return self.workload.sharing.hit_rate_tokens or 0.0

    @property
    def flops(self) -> float:
        """Peak FLOP/s of one instance."""
        return cpu_cores(self.gpus).flops if self.target.on_cpu else gpu_device(self.target.gpu).flops * self.tp

    @property
    def longest(self) -> float:
        """Longest prompt plus longest output of the log."""
        return longest_request(self.workload)

    @property
    def reference_decode_s(self) -> float:
        """t1, the decode step that tightness is measured in: 32 rows of 4k context (Sarathi-Serve).

        Ours: no more rows than the plan runs, no longer context than the log has.
        """
        context = min(REFERENCE_CONTEXT, round(self.longest))
        rows = min(REFERENCE_ROWS, self.sizing.max_seqs)
        return self.steps.model.seconds(StepShape((), rows, rows * context))

    @property
    def decode_floor_s(self) -> float:
        """One decode alone on the device."""
        return decode_step_seconds(self.steps.model, self.mean, 1)

    @property
    def prefill_floor_s(self) -> float:
        """The uncached part of a long prompt alone on the device."""
        return prefill_seconds(self.steps.model, self.uncached_tail)


def draw(
    workload: Workload, target: Target, calibrations: Calibrations, assumed_hit: float | None = None
) -> Situation:
    """The situation of a workload with rate and lengths of each request on a target.

    `assumed_hit` is a token hit rate to plan with where none is known. Raises MachineError, InputError.
    """
    shape = model_shape(target.model, target.model_path)
    longest = min(longest_request(workload), target.max_len or shape.max_len)
    typical = _traffic(workload, None)
    size = smallest_size(target, shape, longest, typical.prompt + typical.output)
    if size is None:
        raise MachineError(
            f"{target.model} and its longest request do not fit",
            why=f"{target.gpus} x {target.gpu} leave too little memory for weights and KV cache",
            hint="advise analyze LOG --gpus N, with a larger N",
        )
    tp, pp = size
    steps = choose_step_times(target, shape, tp, calibrations)
    copy = ModelCopy(target, shape, tp, steps.dtype, pp)
    room = copy.kv_tokens(FIRST_BUDGET)
    sizing_rps = _sizing_rate(workload)
    hit, basis = _hit(workload, room, assumed_hit)
    instances = _instances(target, tp * pp, steps, _traffic(workload, hit).at(sizing_rps / pp))
    # Routed by prefix, replicas keep different prefixes: their caches add up.
    hit, basis = _hit(workload, room * instances, assumed_hit)
    p50, p90, tail = (_uncached(workload, hit, q) for q in ("p50", "p90", _tail(target.slo.attainment)))
    traffic = _traffic(workload, hit)
    cv = workload.arrivals.cv_spread or workload.arrivals.cv or 1.0
    # Ours, for the rules: each step that a pipeline has in flight is as that of an instance of its own.
    sizing = size_instance(copy, steps.model, traffic.at(sizing_rps / (instances * pp)), tail, cv)
    return Situation(
        workload, target, shape, tp, instances, steps, traffic.at(traffic.rate_rps / instances), sizing_rps,
        cv, hit, basis, p50, p90, tail, sizing, _prefill_share(steps, traffic, sizing.rows), pp,
    )  # fmt: skip


def _sizing_rate(workload: Workload) -> float:
    """Rule 9: the busiest minute where arrivals are bursty, else the mean rate."""
    arrivals = workload.arrivals
    bursty = (arrivals.dispersion.get("10") or 0.0) > DISPERSION_10S
    peak = arrivals.peak_rps.get("60")
    return peak if bursty and peak else arrivals.rate_rps or 0.0


def hit_at(workload: Workload, kv_tokens: int) -> float | None:
    """Token hit rate of a cache of `kv_tokens`, read off the capacity curve; None where sharing is unknown."""
    curve = workload.sharing.capacity_curve
    if not curve:
        return workload.sharing.hit_rate_tokens
    sizes = [math.log(point.tokens) for point in curve]
    return float(np.interp(math.log(kv_tokens), sizes, [point.hit_rate_tokens for point in curve]))


def _hit(workload: Workload, kv_tokens: int, assumed: float | None) -> tuple[float | None, HitBasis | None]:
    """The token hit rate to plan with, and what it rests on: measured, else logged, else assumed, else None."""
    measured, logged = hit_at(workload, kv_tokens), workload.sharing.cached_share
    if measured is not None:
        return measured, "prompts of the log"
    if logged is not None:
        return logged, "cached tokens of the log"
    return (assumed, None) if assumed is None else (assumed, "assumed")


def _traffic(workload: Workload, hit: float | None) -> Traffic:
    rate, prompt, output = workload.arrivals.rate_rps, workload.lengths.prompt, workload.lengths.output
    if rate is None or prompt is None or output is None:
        raise ValueError("a workload without rate or lengths has no situation")
    return Traffic(rate, prompt.mean, prompt.mean * (1 - (hit or 0.0)), output.mean)


def _tail(attainment: float) -> str:
    """The measured percentile that covers the attainment."""
    return "p50" if attainment <= 0.5 else "p90" if attainment <= 0.9 else "p99"


def _uncached(workload: Workload, hit: float | None, percentile: str) -> float:
    """U at a percentile: measured with an unlimited cache, moved toward the whole prompt by the hits lost.

    Where only the share that hits is known, it is taken to be that of every prompt.
    """
    whole = _percentile(workload.lengths.prompt, percentile)
    unlimited = workload.sharing.hit_rate_tokens
    if workload.uncached_prompt is None or unlimited is None:
        return whole * (1 - (hit or 0.0))
    kept = min(1.0, (hit or 0.0) / unlimited) if unlimited else 0.0
    return whole - kept * (whole - _percentile(workload.uncached_prompt, percentile))


def _percentile(lengths: Distribution | None, name: str) -> float:
    value = getattr(lengths, name, None)
    if value is None:
        raise ValueError("a workload without the length of each request has no situation")
    return float(value)


def longest_prompt(workload: Workload) -> float:
    """Longest prompt of the log, tokens."""
    return _percentile(workload.lengths.prompt, "max")


def longest_request(workload: Workload) -> float:
    """Longest prompt plus longest output of the log, tokens."""
    return longest_prompt(workload) + _percentile(workload.lengths.output, "max")


def _instances(target: Target, gpus: int, steps: StepTimes, traffic: Traffic) -> int:
    """Replicas of so many GPUs: what the target has, or for `auto` what keeps the load at 0.8 in the window."""
    if target.on_cpu:
        return 1
    if isinstance(target.gpus, int):
        return target.gpus // gpus
    rows = min(MOST_SEQS, FIRST_BUDGET // 2)
    return max(1, math.ceil(utilisation(steps.model, traffic, FIRST_BUDGET, rows) / SIZING_LOAD))


def _prefill_share(steps: StepTimes, traffic: Traffic, rows: int) -> float:
    """phi = E[t_pre(P)] / (E[t_pre(P)] + E[O] t_dec(B) / B), at the mean lengths."""
    prefill = prefill_seconds(steps.model, traffic.prompt)
    decode = traffic.output * decode_step_seconds(steps.model, traffic, rows) / rows
    return prefill / (prefill + decode) if prefill + decode > 0 else 0.0
