"""Sessions: which requests are turns of one conversation, how they go on, and how long people think.

Takes the log's session labels; without them infers sessions from growing prefixes (`growing`). Fills the
`session`, `parent` and `think_s` of the Trace. Never looks at text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from advisor.logs.ordinals import by_first
from advisor.logs.trace import BoolColumn, FloatColumn, IntColumn, Labels, Trace
from advisor.workload.growing import find_continued
from advisor.workload.model import Sessions, Sharing, ThinkTime, TurnCounts, TurnTokens
from advisor.workload.runs import Runs, find_runs, previous_use
from advisor.workload.sharing import content_known, within_tokens

CACHE_LIFE_S = 300.0  # the usual 5-minute cache life of hosted APIs

Basis = Literal["session ids of the log", "inferred from growing prefixes"]
LOGGED: Basis = "session ids of the log"
INFERRED: Basis = "inferred from growing prefixes"


@dataclass(frozen=True, slots=True)
class TurnsFound:
    """A Trace with `session`, `parent` and `think_s` as far as they can be known, and where they come from."""

    trace: Trace
    basis: Basis | None  # None: no sessions are known
    think_basis: str | None


def find_turns(trace: Trace, runs: Runs | None = None) -> TurnsFound:
    """The turns of a Trace: by its session labels where it has any, else by growing prefixes.

    `runs` are those of its blocks, where they are at hand.
    """
    basis: Basis | None = LOGGED
    if _labelled(trace).any():
        parent = _turn_before(trace) if trace.parent is None else trace.parent
        labelled = replace(trace, parent=parent)
    else:
        labelled = _inferred(trace, runs)
        basis = INFERRED if labelled is not trace else None
    if basis is None:
        return TurnsFound(trace, None, None)
    if trace.think_s is not None:
        return TurnsFound(labelled, basis, "as logged")
    think_s, think_basis = _think_times(labelled)
    return TurnsFound(replace(labelled, think_s=think_s), basis, think_basis)


def _inferred(trace: Trace, runs: Runs | None) -> Trace:
    """The Trace with `session` and `parent` from growing prefixes.

    Every request with known content that continues no other starts a session of its own. The Trace is unchanged
    without blocks, or where no request continues another.
    """
    if trace.blocks is None or len(trace.blocks.ids) == 0:
        return trace
    parent = find_continued(trace, trace.blocks, runs)
    if not np.any(parent >= 0):
        return trace
    first = np.where(parent < 0, np.arange(len(trace)), parent)
    while np.any(first[first] != first):
        first = first[first]
    known = content_known(trace)
    codes = np.full(len(trace), -1, dtype=np.int64)
    codes[known] = by_first(first[known])
    names = tuple(str(code) for code in range(int(codes.max()) + 1))
    return replace(trace, session=Labels(names, codes), parent=parent)


def measure_sessions(found: TurnsFound, runs: Runs | None = None) -> Sessions | None:
    """Everything about sessions; None where none are known. `runs` as in `find_turns`."""
    trace, basis = found.trace, found.basis
    if basis is None or trace.session is None:
        return None
    labelled = _labelled(trace)
    turns = np.bincount(trace.session.codes[labelled])
    turns = turns[turns > 0]
    p50, p90 = np.percentile(turns, (50, 90))
    think_s = np.zeros(0)
    if trace.think_s is not None and trace.parent is not None:
        think_s = trace.think_s[(trace.parent >= 0) & np.isfinite(trace.think_s)]
    return Sessions(
        basis=basis,
        sessions=len(turns),
        request_share=float(labelled.mean()),
        turns=TurnCounts(mean=float(turns.mean()), p50=float(p50), p90=float(p90), max=int(turns.max())),
        multi_turn_share=float(turns[turns >= 2].sum() / turns.sum()),
        think_s=think_time(think_s, found.think_basis or ""),
        overlapping_share=float(np.mean(think_s < 0)) if len(think_s) else None,
        new_tokens=_new_tokens(trace, runs),
    )


def split_hits(found: TurnsFound, sharing: Sharing, runs: Runs | None) -> Sharing:
    """The sharing with its hits split by the inferred sessions, where these are; else as it was."""
    trace = found.trace
    if found.basis != INFERRED or runs is None or sharing.hit_rate_tokens is None:
        return sharing
    tokens = int(trace.prompt_tokens[content_known(trace) & (trace.prompt_tokens > 0)].sum())
    within = within_tokens(runs, trace.session) / tokens
    split = {"within_session": within, "across_session": sharing.hit_rate_tokens - within}
    return sharing.model_copy(update=split)


def think_time(think_s: FloatColumn, basis: str) -> ThinkTime | None:
    """Percentiles of think times, seconds; None without any. Negative ones are left out: turns that overlap."""
    waits = think_s[think_s >= 0]
    if len(waits) == 0:
        return None
    p50, p90, p99 = np.percentile(waits, (50, 90, 99))
    over = float(np.mean(waits > CACHE_LIFE_S))
    return ThinkTime(basis=basis, p50=float(p50), p90=float(p90), p99=float(p99), over_300_s=over)


def _labelled(trace: Trace) -> BoolColumn:
    """Rows with a session."""
    return np.zeros(len(trace), dtype=bool) if trace.session is None else trace.session.codes >= 0


def _turn_before(trace: Trace) -> IntColumn:
    """The row before each row in its session, -1 for none."""
    rows = np.flatnonzero(_labelled(trace))
    codes = np.zeros(0, dtype=np.int64) if trace.session is None else trace.session.codes[rows]
    before = previous_use(codes)
    parent = np.full(len(trace), -1, dtype=np.int64)
    parent[rows] = np.where(before >= 0, rows[before], -1)
    return parent


def _think_times(trace: Trace) -> tuple[FloatColumn, str | None]:
    """Seconds from the end of the turn before, or its arrival where no end is logged, and which of these."""
    think_s = np.full(len(trace), np.nan)
    if trace.parent is None or not np.any(trace.parent >= 0):
        return think_s, None
    rows = np.flatnonzero(trace.parent >= 0)
    before = trace.parent[rows]
    lasted = np.full(len(rows), np.nan) if trace.e2e_s is None else trace.e2e_s[before]
    ended = np.isfinite(lasted)
    think_s[rows] = trace.arrival_s[rows] - trace.arrival_s[before] - np.where(ended, lasted, 0.0)
    if ended.all():
        return think_s, "from the end of the turn before"
    if ended.any():
        return think_s, "from the end of the turn before, or its arrival where the end is not logged"
    return think_s, "from the arrival of the turn before: the log has no request durations"


def _new_tokens(trace: Trace, runs: Runs | None) -> TurnTokens | None:
    """Prompt tokens of each turn behind what it shares with the turn before; None where no turn tells."""
    if trace.blocks is None or trace.parent is None:
        return None
    known = content_known(trace) & (trace.prompt_tokens >= 0)
    rows = np.flatnonzero((trace.parent >= 0) & known & known[trace.parent])
    if len(rows) == 0:
        return None
    runs = find_runs(trace.blocks, trace.prompt_tokens) if runs is None else runs
    # Chained: two requests share a run only as the same-numbered run of each, and all runs before it.
    starts = np.searchsorted(runs.row, np.arange(len(trace) + 1))
    behind = np.where(trace.parent >= 0, starts[trace.parent + 1], 0)  # the last use of the turn before
    per_row = np.diff(starts)
    twin = np.arange(len(runs)) + np.repeat(starts[trace.parent] - starts[:-1], per_row)
    both = np.flatnonzero(twin < np.repeat(behind, per_row))
    shared = both[runs.node[twin[both]] == runs.node[both]]
    kept = np.bincount(runs.row[shared], weights=runs.tokens[shared], minlength=len(trace))
    p50, p99 = np.percentile(trace.prompt_tokens[rows] - kept[rows], (50, 99))
    return TurnTokens(p50=float(p50), p99=float(p99))
