"""Bounds: what rate a layout can sustain at the very most, from means and step times, without simulating.

Used to leave out hopeless layouts and to start the search near its end. Never decides between good ones.
"""

from __future__ import annotations

import math

from advisor.advice.load import (
    Traffic,
    decode_step_seconds,
    mixed_step_seconds,
    prefill_seconds,
    utilisation,
)
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.layout import Layout
from advisor.simulation.slo import Slo
from engine.config import PoolConfig
from engine.step_time.model import StepTimeModel

SUSTAINED = 0.8  # utilisation at which queues stay short (ours, as for sizing)
DENSER = 1.25  # from one batch size to the next that is looked at (ours)


def predicted_rps(layout: Layout, hardware: Hardware, traffic: Traffic, slo: Slo) -> float:
    """Requests/s over all GPUs that load the busiest pool to `SUSTAINED`; 0 where a target is out of reach.

    `traffic` gives the mean lengths; its rate does not matter. A target that the mean request misses is out
    of reach, though shorter ones may keep it.
    """
    return SUSTAINED * min(pool.count * _instance_rps(pool, hardware, traffic, slo) for pool in layout.pools)


def _instance_rps(pool: PoolConfig, hardware: Hardware, traffic: Traffic, slo: Slo) -> float:
    """The rate that would keep one instance busy all the time."""
    model = hardware.step_time(hardware.size(pool), pool.pp)
    if pool.role != "decode":
        prefill_s = prefill_seconds(model, traffic.uncached, traffic.prompt - traffic.uncached)
        if slo.ttft_s is not None and prefill_s * _through(pool, traffic) > slo.ttft_s:
            return 0.0
        if pool.role == "prefill":
            return pool.pp / max(prefill_s, 1e-9)
    rates = (
        pool.pp / max(_busy_s(pool, model, traffic, rows), 1e-9)
        for rows in _batches(pool, traffic)
        if _in_time(pool, model, traffic, slo, rows)
    )
    return max(rates, default=0.0)


def _through(pool: PoolConfig, traffic: Traffic) -> float:
    """Share of a prompt's seconds until it is through all stages, which work at its chunks at once."""
    chunks = max(1, math.ceil(traffic.uncached / pool.token_budget))
    return (chunks + pool.pp - 1) / (chunks * pool.pp)


def _batches(pool: PoolConfig, traffic: Traffic) -> list[int]:
    """Numbers of decodes in a step to look at, up to what memory and limits allow: each stage has its own."""
    room = (pool.kv_tokens or 0) // max(1, round(traffic.uncached + traffic.output / 2))
    most = max(1, min(pool.max_seqs, pool.token_budget - 1, room) // pool.pp)
    rows = [1]
    while rows[-1] < most:
        rows.append(min(most, max(rows[-1] + 1, math.floor(rows[-1] * DENSER))))
    return rows


def _busy_s(pool: PoolConfig, model: StepTimeModel, traffic: Traffic, rows: int) -> float:
    """Seconds that one request takes of steps with `rows` decodes, each through all stages."""
    if pool.role == "decode":
        return traffic.output / rows * decode_step_seconds(model, traffic, rows)
    return utilisation(model, traffic.at(1.0), pool.token_budget, rows)


def _in_time(pool: PoolConfig, model: StepTimeModel, traffic: Traffic, slo: Slo, rows: int) -> bool:
    """Whether mean and, for a TBT target, largest gap between tokens keep the targets at `rows` decodes."""
    steps = traffic.output / rows  # that decode, per request
    mean_s = longest_s = decode_step_seconds(model, traffic, rows)
    if pool.role == "colocated" and traffic.uncached >= 1:
        room = pool.token_budget - rows
        chunk = min(room, round(traffic.uncached))
        longest_s = mixed_step_seconds(model, traffic, rows + chunk, rows)
        mixed = traffic.uncached / room
        mean_s = longest_s if mixed >= steps else _busy_s(pool, model, traffic, rows) / steps
    return (slo.tpot_s is None or mean_s <= slo.tpot_s) and (slo.tbt_s is None or longest_s <= slo.tbt_s)
