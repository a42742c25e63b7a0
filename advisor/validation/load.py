"""How much of the advised plan's capacity a window asks for, by the step times calibrated on this machine."""

from __future__ import annotations

import numpy as np

from advisor.advice.load import load_limit, whole
from advisor.advice.plan import Plan
from advisor.advice.profiles import model_shape
from advisor.advice.steps import Calibrations, choose_step_times
from advisor.logs.trace import IntColumn, Trace
from advisor.validation.refuse import Load
from advisor.validation.window import Window


def window_load(window: Window, plan: Plan, calibrations: Calibrations) -> Load | None:
    """The window's load on the plan; None where no calibration fits, since nothing else is a measured limit.

    Nor is there one where colocated instances stand beside a split: the router shares the load out.
    """
    choice = plan.choice
    if choice is None or window.length_s <= 0 or not whole(choice.pools):
        return None
    target, trace = plan.target, window.trace
    shape = model_shape(target.model, target.model_path)
    steps = [
        choose_step_times(target, shape, pool.tp, calibrations, pool.devices_per_instance)
        for pool in choice.pools
    ]
    if any(one.use.source != "calibrated" for one in steps):
        return None
    models = [one.model for one in steps]
    uncached = trace.prompt_tokens - _cached_tokens(trace) * choice.pools[0].prefix_cache
    used = load_limit(trace.prompt_tokens, trace.output_tokens, uncached, window.length_s, plan, *models)
    return Load(used, window.length_s, backlog_s=target.slo.ttft_s or 0.0)


def _cached_tokens(trace: Trace) -> IntColumn:
    """Prompt tokens that an earlier row of the trace brought into an unlimited cache, never the last one."""
    blocks = trace.blocks
    if blocks is None:
        return np.zeros(len(trace), dtype=np.int64)
    counts = np.diff(blocks.starts)
    row = np.repeat(np.arange(len(trace)), counts)
    _, first, inverse = np.unique(blocks.ids, return_index=True, return_inverse=True)
    seen = row[first][inverse] < row  # ids are chained: a seen block has only seen blocks before it
    hits = np.bincount(row[seen], minlength=len(trace)) * blocks.size
    return np.minimum(hits, trace.prompt_tokens - 1)
