"""Which way to compute is faster on this CPU, by the best of calls that take turns.

Neighbours on shared cores make some calls slower; none makes one faster than it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

_LEAST_TURNS = 3


def best_times(ways: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Seconds of the best call of each way, found in about so many seconds in all, and at least three turns."""
    for way in ways:
        way()  # what is made at a first use
    best = [float("inf")] * len(ways)
    end, turn = time.perf_counter() + seconds, 0
    while turn < _LEAST_TURNS or time.perf_counter() < end:
        for number, way in enumerate(ways):
            begun = time.perf_counter()
            way()
            best[number] = min(best[number], time.perf_counter() - begun)
        turn += 1
    return best
