"""What became of each request, while a simulation runs: compact columns, and the Outcome made of them."""

from __future__ import annotations

from array import array

import numpy as np

from advisor.logs.trace import FloatColumn, IntColumn
from advisor.simulation.gaps import GapCounts
from advisor.simulation.load import Load
from advisor.simulation.outcome import Outcome


class Record:
    """Columns: [requests], of times on the simulation's clock, seconds; NaN for what has not happened."""

    __slots__ = ("cached", "end_s", "first_s", "gaps", "largest_s", "queued_s", "sent_s")

    def __init__(self, requests: int) -> None:
        nothing = array("d", [float("nan")]) * requests
        self.sent_s, self.first_s, self.end_s = nothing, nothing[:], nothing[:]
        self.queued_s, self.largest_s = nothing[:], nothing[:]
        self.cached = array("q", [0]) * requests
        self.gaps = GapCounts()

    def outcome(
        self, load: Load, *, preemptions: int, rerun: int, busy_s: float, stopped_early: bool
    ) -> Outcome:
        """The Outcome of a load."""
        sent_s, first_s, end_s = _floats(self.sent_s), _floats(self.first_s), _floats(self.end_s)
        gaps = load.output_tokens - 1
        gap_s, gap_count = self.gaps.columns()
        served = np.isfinite(end_s)
        return Outcome(
            arrival_s=sent_s,
            ttft_s=np.where(served, first_s - sent_s, np.nan),
            e2e_s=end_s - sent_s,
            tpot_s=np.where(gaps > 0, (end_s - first_s) / np.maximum(gaps, 1), np.nan),
            max_gap_s=np.where(gaps > 0, _floats(self.largest_s), np.nan),
            queued_s=np.where(served, _floats(self.queued_s), np.nan),
            cached_tokens=np.where(served, np.frombuffer(self.cached, dtype=np.int64), 0),
            prompt_tokens=load.prompt_tokens,
            output_tokens=load.output_tokens,
            served=served,
            gap_s=gap_s,
            gap_count=gap_count,
            preemptions=preemptions,
            rerun=rerun,
            busy_s=busy_s,
            end_s=float(np.nanmax(end_s, initial=0.0)),
            stopped_early=stopped_early,
            early_turns=_early(load.parent, sent_s, end_s),
        )


def _early(parent: IntColumn, sent_s: FloatColumn, end_s: FloatColumn) -> float:
    """Share of turns that were sent before the turn before them had ended; 0 without turns."""
    turns = np.flatnonzero(parent >= 0)
    return float((sent_s[turns] < end_s[parent[turns]]).mean()) if len(turns) else 0.0


def _floats(column: array[float]) -> FloatColumn:
    """Shares the memory of the column, which nobody writes any more."""
    return np.frombuffer(column, dtype=np.float64)
