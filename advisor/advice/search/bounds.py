"""Bounds: what rate a layout can sustain at the very most, from means and step times, without simulating.

Used to leave out hopeless layouts and to start the search near its end. Never decides between good ones.
"""

from __future__ import annotations

from advisor.advice.load import Traffic, decode_step_seconds, prefill_seconds, utilisation
from advisor.advice.search.hardware import Hardware
from advisor.advice.search.layout import Layout
from advisor.simulation.slo import Slo
from engine.config import PoolConfig
from engine.step_time.model import StepTimeModel

SUSTAINED = 0.8  # utilisation at which queues stay short (ours, as for sizing)


def predicted_rps(layout: Layout, hardware: Hardware, traffic: Traffic, slo: Slo) -> float:
    """Requests/s over all GPUs that load the busiest pool to `SUSTAINED`; 0 where a target is out of reach.

    `traffic` gives the mean lengths; its rate does not matter.
    """
    return SUSTAINED * min(pool.count * _instance_rps(pool, hardware, traffic, slo) for pool in layout.pools)


def _instance_rps(pool: PoolConfig, hardware: Hardware, traffic: Traffic, slo: Slo) -> float:
    """The rate that would keep one instance busy all the time."""
    model = hardware.step_time(pool.tp)
    if pool.role == "prefill":
        prefill_s = prefill_seconds(model, traffic.uncached, traffic.prompt - traffic.uncached)
        late = slo.ttft_s is not None and prefill_s > slo.ttft_s
        return 0.0 if late else 1.0 / max(prefill_s, 1e-9)
    rows = _rows(pool, model, traffic, slo)
    if rows == 0:
        return 0.0
    if pool.role == "decode":
        return rows / (traffic.output * decode_step_seconds(model, traffic, rows))
    return 1.0 / max(utilisation(model, traffic.at(1.0), pool.token_budget, rows), 1e-9)


def _rows(pool: PoolConfig, model: StepTimeModel, traffic: Traffic, slo: Slo) -> int:
    """Decodes that memory, limits and the mean-gap target allow at once; 0 where one alone is too slow."""
    room = (pool.kv_tokens or 0) // max(1, round(traffic.prompt + traffic.output))
    most = max(1, min(pool.max_seqs, pool.token_budget - 1, room))
    if slo.gap_s is None:
        return most
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if decode_step_seconds(model, traffic, middle) <= slo.gap_s:
            low = middle
        else:
            high = middle - 1
    return low
