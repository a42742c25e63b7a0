"""Rising backlog: whether requests wait longer and longer, which no run of any length sustains.

A judgement, not a proof: it looks at the requests so far. Thresholds are those of load generators that stop an
oversaturated run (reference/validation.md, A5).
"""

from __future__ import annotations

import numpy as np

from advisor.logs.trace import FloatColumn

GROWTH = 1.2  # of the middle third's mean wait, which that of the last third must exceed
T_95 = 1.645  # one-sided; a third is a hundred requests at least
LEAST_SHARE = 0.5  # of the load that must have ended before it is judged (ours)
LEAST = 300  # requests (ours)
LOOKS = 20  # times that a whole load is looked at (ours)


def rising(wait_s: FloatColumn, limit_s: float) -> bool:
    """Whether waits, in order of ending, rise beyond a limit.

    The mean of the last third is more than `GROWTH` times that of the middle third, none of the last third is
    within the limit, and a line through both rises with 95 % confidence. Never for fewer than `LEAST`.
    """
    third = len(wait_s) // 3
    if len(wait_s) < LEAST or float(wait_s[-third:].min()) <= limit_s:
        return False
    recent = wait_s[-2 * third :]
    if recent[third:].mean() <= GROWTH * recent[:third].mean():
        return False
    x = np.arange(len(recent)) - (len(recent) - 1) / 2
    slope = float(x @ recent / (x @ x))
    rest = recent - recent.mean() - slope * x
    error = float(np.sqrt(rest @ rest / (len(recent) - 2) / (x @ x)))
    return slope > T_95 * error


class RisingTtft:
    """Stops a simulation once the TTFTs of the requests that ended so far rise beyond a limit."""

    __slots__ = ("_limit_s", "_next", "_step", "_ttft_s")

    def __init__(self, requests: int, limit_s: float) -> None:
        self._limit_s = limit_s
        self._next = max(LEAST, int(LEAST_SHARE * requests))
        self._step = max(1, requests // LOOKS)
        self._ttft_s: list[float] = []

    def ended(self, *, ttft_s: float, tpot_s: float, max_gap_s: float) -> bool:  # noqa: ARG002 - as a Watch is called
        """A request was served (seconds). True to stop here."""
        self._ttft_s.append(ttft_s)
        if len(self._ttft_s) < self._next:
            return False
        self._next += self._step
        return rising(np.array(self._ttft_s), self._limit_s)

    def dropped(self) -> bool:
        """A request was not served, which says nothing of waits."""
        return False
