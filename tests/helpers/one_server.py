"""A queue before one server on a virtual clock, and what theory says of it: Lindley's recursion, vectorised.

Poisson arrivals, a service time of 1 s, fixed (M/D/1) or exponential (M/M/1).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from advisor.validation.record import Record


def records_of_queue(
    rate: float, requests: int, seed: int, *, exponential: bool = False, warm_up: int = 200
) -> list[Record]:
    """What a client would have recorded of a queue that was `warm_up` requests old: TTFT is the wait."""
    rng = np.random.default_rng(seed)
    count = requests + warm_up
    due = np.cumsum(rng.exponential(1 / rate, count))
    service = rng.exponential(1.0, count) if exponential else np.ones(count)
    work = np.cumsum(service)
    start = np.maximum.accumulate(due - (work - service)) + work - service
    stamps = np.stack((due, start, start + service), axis=1)[warm_up:] - due[warm_up]
    return [
        Record(
            row,
            at,
            10,
            1,
            "ok",
            t_send=at,
            t_chunk=(first,),
            t_done=done,
            n_in=10,
            n_out=1,
            n_out_source="usage",
        )
        for row, (at, first, done) in enumerate(stamps.tolist())
    ]


def wait_within(rate: float, limit_s: float) -> float:
    """P(wait <= limit) of M/D/1 with a service time of 1 s (Erlang 1909; Tijms 2003, section 9.2.2)."""
    total = 0.0
    for k in range(math.floor(limit_s) + 1):
        x = rate * (k - limit_s)
        total += x**k / math.factorial(k) * math.exp(-x)
    return (1 - rate) * total


def knee(share_at: Callable[[float], float], share: float) -> float:
    """The rate, below 1, where the share falls to `share`."""
    return float(brentq(lambda rate: share_at(rate) - share, 0.01, 0.999))
