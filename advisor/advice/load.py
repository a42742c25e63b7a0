"""How much of an instance's time a stream of requests takes: the utilisation behind sizing, waits and refusals.

Under chunked prefill every step carries the running decodes; a step that also has room for prefill takes a
chunk. So U prefill tokens a second need U / (tau - B) mixed steps, the decodes they carry are free riders
there, and the decodes left over run in steps of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from advisor.advice.plan import Plan
from engine.config import PoolConfig
from engine.step_time.model import StepShape, StepTimeModel

Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Means of the requests that one kind of instance sees; lengths in tokens, rate over all instances."""

    rate_rps: float
    prompt: float
    uncached: float
    output: float

    @property
    def decode_context(self) -> int:
        """KV tokens of a running request half way through its output."""
        return round(self.prompt + self.output / 2)

    @property
    def prefill_context(self) -> int:
        """KV tokens before a chunk half way through the uncached part."""
        return round(self.prompt - self.uncached / 2)

    def at(self, rate_rps: float) -> Traffic:
        """The same requests at another rate."""
        return Traffic(rate_rps, self.prompt, self.uncached, self.output)


def mixed_step_seconds(step_time: StepTimeModel, traffic: Traffic, budget: int, rows: int) -> float:
    """A full step: `rows` decodes, and prefill up to the budget; infinite where decodes leave no room."""
    if budget <= rows:
        return float("inf")
    return step_time.seconds(
        StepShape(((budget - rows, traffic.prefill_context),), rows, traffic.decode_context * rows)
    )


def decode_step_seconds(step_time: StepTimeModel, traffic: Traffic, rows: int) -> float:
    """A step of `rows` decodes and nothing else."""
    return step_time.seconds(StepShape((), rows, traffic.decode_context * rows))


def prefill_seconds(step_time: StepTimeModel, new: float, context: float = 0.0) -> float:
    """One prompt's `new` tokens alone on the device, in one step."""
    return step_time.seconds(StepShape(((round(new), round(context)),))) if round(new) > 0 else 0.0


def utilisation(step_time: StepTimeModel, traffic: Traffic, budget: int, rows: int) -> float:
    """Seconds of work a second of `traffic` brings to one instance that runs `rows` decodes at once."""
    mixed = traffic.rate_rps * traffic.uncached / (budget - rows)
    decode = max(0.0, traffic.rate_rps * traffic.output / rows - mixed)
    return mixed * mixed_step_seconds(step_time, traffic, budget, rows) + decode * decode_step_seconds(
        step_time, traffic, rows
    )


def running_rows(traffic: Traffic, per_token_s: float, limit: int) -> int:
    """Requests decoding at once when a token takes `per_token_s`: Little's law, at least 1, at most `limit`."""
    return max(1, min(limit, round(traffic.rate_rps * traffic.output * per_token_s)))


def load_limit(
    prompt_tokens: Column, output_tokens: Column, uncached_tokens: Column, window_s: float, plan: Plan,
    *step_times: StepTimeModel,
) -> float:  # fmt: skip
    """Utilisation of the plan's instances by a window of requests; above 1 they cannot keep up.

    One entry a request; `uncached_tokens` are the prompt tokens to compute with the plan's cache; `step_times`
    one for each pool. The decodes run as many at once as the per-token target allows: more would miss it, fewer
    would waste steps. Of a split it is that of the busier side, bypass left out. Raises ValueError for a plan
    without a choice, or with colocated instances beside a split, whose parts of the load are the router's.
    """
    choice = plan.choice
    if choice is None or not whole(choice.pools):
        raise ValueError("an infeasible plan has no load limit")
    traffic = Traffic(
        len(prompt_tokens) / window_s,
        float(prompt_tokens.mean()),
        float(uncached_tokens.mean()),
        float(np.maximum(output_tokens, 1).mean()),
    )
    gap_s = plan.target.slo.gap_s
    return max(
        _pool_load(pool, traffic.at(traffic.rate_rps / pool.count), gap_s, model)
        for pool, model in zip(choice.pools, step_times, strict=True)
    )


def whole(pools: Sequence[PoolConfig]) -> bool:
    """Whether every request passes through every pool: one colocated pool, or one of prefill and of decode."""
    return sorted(pool.role for pool in pools) in (["colocated"], ["decode", "prefill"])


def _pool_load(pool: PoolConfig, traffic: Traffic, gap_s: float | None, model: StepTimeModel) -> float:
    """Utilisation of one instance of a pool by its part of the requests."""
    if pool.role == "prefill":
        return traffic.rate_rps * prefill_seconds(model, traffic.uncached, traffic.prompt - traffic.uncached)
    most = min(pool.max_seqs, pool.token_budget - 1)
    rows = most if gap_s is None else running_rows(traffic, gap_s, most)
    if pool.role == "decode":
        return traffic.rate_rps * traffic.output / rows * decode_step_seconds(model, traffic, rows)
    return utilisation(model, traffic, pool.token_budget, rows)
