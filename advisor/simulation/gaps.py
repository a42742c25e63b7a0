"""Gaps between tokens: of all requests together, and the largest of each.

All decodes of a step get a token at once, so a step is one gap for many. Memory stays flat: the pooled gaps are
counted in bins of 0.1 %, and of past ticks only those are kept that may still be somebody's largest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from math import log

import numpy as np

from advisor.logs.trace import FloatColumn

BINS_PER_E = 1000  # bins as the gap grows by a factor of e: 0.1 % wide
_PARTS = 8  # most parts of a run of steps whose gaps grow by more than a bin


class GapCounts:
    """How often each gap occurred."""

    def __init__(self) -> None:
        self._counts: defaultdict[int, float] = defaultdict(float)

    def add(self, gap_s: float, count: float) -> None:
        """`count` gaps of `gap_s` seconds; none where it is 0."""
        if gap_s > 0 and count > 0:
            self._counts[round(log(gap_s) * BINS_PER_E)] += count

    def add_line(self, first_s: float, growth_s: float, steps: int, count: int) -> None:
        """`count` gaps in each of `steps` steps, of `first_s` + i x `growth_s` seconds."""
        parts = min(_PARTS, int(growth_s * steps * BINS_PER_E / first_s) + 1)
        for part in range(parts):
            self.add(first_s + growth_s * ((part + 0.5) * steps / parts - 0.5), count * steps / parts)

    def columns(self) -> tuple[FloatColumn, FloatColumn]:
        """Gaps in seconds, ascending, and their counts."""
        keys = sorted(self._counts)
        return np.exp(np.array(keys) / BINS_PER_E), np.array([self._counts[key] for key in keys])


class TickGaps:
    """The gaps of one group of decodes, by tick, as far as anybody may still ask for the largest."""

    def __init__(self) -> None:
        self.tick = 0
        self.ended_s = 0.0  # when the last tick ended
        self._ticks: list[int] = []  # ascending ...
        self._gaps: list[float] = []  # ... with ever smaller gaps

    def add(self, ticks: int, now: float, last_gap_s: float) -> None:
        """`ticks` more have ended by `now`; the last gap was the largest of them."""
        self.tick += ticks
        self.ended_s = now
        while self._gaps and self._gaps[-1] <= last_gap_s:
            self._gaps.pop()
            self._ticks.pop()
        self._gaps.append(last_gap_s)
        self._ticks.append(self.tick)

    def largest_since(self, tick: int) -> float:
        """Largest gap of the ticks behind `tick`, 0 for none."""
        place = bisect_right(self._ticks, tick)
        return self._gaps[place] if place < len(self._gaps) else 0.0

    def forget(self) -> None:
        """Nobody decodes, so nobody asks for earlier ticks."""
        self._ticks.clear()
        self._gaps.clear()
