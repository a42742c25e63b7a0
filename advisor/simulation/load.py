"""The Load: the requests of a simulation, as an engine with a given block size would see them.

Plain columns. Made from a Trace by `from_trace`; scaled by `scaling`. Never holds text or tokens: what requests
share is in `runs`, stretches of KV pages under one key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from advisor.logs.trace import FloatColumn, IntColumn
from engine.request import Run


@dataclass(frozen=True, slots=True, repr=False)
class Load:
    """Requests in order of arrival. Columns: [requests].

    `runs[i]` are the leading pages of request i that others may share, in order, the pages it generates and its
    session's next prompt shows included; pages behind them are its own. `session` numbers the sessions densely,
    a request without one is a session of its own. `parent` is the row of the turn before, -1 for none;
    `think_s` the seconds between its end and this arrival, NaN where unknown.
    """

    arrival_s: FloatColumn
    prompt_tokens: IntColumn  # at least 1
    output_tokens: IntColumn  # at least 1
    runs: tuple[tuple[Run, ...], ...]
    block_size: int
    session: IntColumn
    parent: IntColumn
    think_s: FloatColumn

    def __repr__(self) -> str:
        return f"Load({len(self)} requests)"

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def waiting_turns(self) -> IntColumn:
        """Rows of turns that can wait for the turn before them: those with a known think time."""
        return np.flatnonzero((self.parent >= 0) & np.isfinite(self.think_s))

    def take(self, rows: IntColumn) -> Self:
        """The requests of some rows, ascending; turns whose parent is left out have none."""
        place = np.full(len(self) + 1, -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        _, session = np.unique(self.session[rows], return_inverse=True)
        return type(self)(
            arrival_s=self.arrival_s[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            runs=tuple(self.runs[row] for row in rows.tolist()),
            block_size=self.block_size,
            session=session.astype(np.int64),
            parent=place[self.parent[rows]],
            think_s=self.think_s[rows],
        )
