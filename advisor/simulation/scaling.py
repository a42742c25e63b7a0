"""Other rates and windows of one Load: what the same traffic would be at another volume.

Sessions stay whole, so that turns still follow turns and hits stay hits. What is kept or added at a lower rate
is kept and added at every higher one: two rates differ in the sessions between them and in nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from advisor.logs.trace import BoolColumn, FloatColumn, IntColumn, rank_by_first
from advisor.simulation.load import Load
from engine.request import Run


class Window(NamedTuple):
    """A stretch of the virtual clock, seconds."""

    start_s: float
    end_s: float

    def holds(self, arrival_s: FloatColumn) -> BoolColumn:
        """Which arrivals are in it, the end left out."""
        return (arrival_s >= self.start_s) & (arrival_s < self.end_s)


ALWAYS = Window(-np.inf, np.inf)


class Drawn(NamedTuple):
    """A Load at another rate, and where each request is from: its row in the first Load, and of which copy."""

    load: Load
    rows: IntColumn  # [requests]
    copies: IntColumn  # [requests], 0: as it was


def scaled(load: Load, factor: float, seed: int, window: Window = ALWAYS) -> Load:
    """The Load at `factor` times its rate, as `draw` has it."""
    return draw(load, factor, seed, window).load


def draw(load: Load, factor: float, seed: int, window: Window = ALWAYS) -> Drawn:
    """The Load at `factor` times its rate, to within a session; of it the requests that come in the window.

    Below 1 whole sessions are left out at random. Above 1 whole sessions are copied: every copy of the traffic
    is shifted round its span by an offset of its own, so that bursts stay bursts and do not pile up. What only
    one session shows is fresh in each copy; what sessions share, copies share too.
    Raises ValueError for a factor that is not positive.
    """
    if not factor > 0:
        raise ValueError(f"cannot scale the rate by {factor}")
    rows = np.flatnonzero(window.holds(load.arrival_s))
    if factor < 1 and len(load):
        rows = np.intersect1d(rows, _part(load, factor, np.random.default_rng((seed, 0))))
    if factor <= 1 or len(load) == 0:
        some = load.take(rows) if len(rows) < len(load) else load
        return Drawn(some, rows, np.zeros(len(rows), dtype=np.int64))
    shared = _shared_keys(load)
    shift = _Shift(load)
    parts = [_Copy(0, rows, load.arrival_s[rows], tuple(load.runs[row] for row in rows.tolist()))]
    for copy in range(1, int(np.ceil(factor))):
        rng = np.random.default_rng((seed, copy))
        arrival_s = shift.by(rng.uniform(0, load.span_s))
        rows = np.flatnonzero(window.holds(arrival_s))
        if factor - copy < 1:
            rows = np.intersect1d(rows, _part(load, factor - copy, rng))
        if len(rows):
            parts.append(_Copy(copy, rows, arrival_s[rows], _fresh(load, rows, shared, copy)))
    return _together(load, parts)


def time_scaled(load: Load, factor: float) -> Load:
    """The same requests at `factor` times the rate: all times between them divided by it.

    Bursts get shorter, turns follow faster and reuse comes sooner: `scaled` keeps these.
    """
    first = load.arrival_s[:1]
    return replace(load, arrival_s=first + (load.arrival_s - first) / factor, think_s=load.think_s / factor)


def busiest(load: Load, window_s: float) -> Load:
    """The requests of the window of this length, from an arrival on, with the most; then the most tokens."""
    if len(load) == 0:
        return load
    first = np.arange(len(load))
    last = np.searchsorted(load.arrival_s, load.arrival_s + window_s)
    tokens = np.concatenate(([0], np.cumsum(load.prompt_tokens + load.output_tokens)))
    best = int(np.lexsort((first, tokens[first] - tokens[last], first - last))[0])
    return load.take(np.arange(best, max(int(last[best]), best + 1)))


@dataclass(frozen=True, slots=True)
class _Copy:
    """Some requests of a Load once more: their rows there, when they arrive now, what they share."""

    number: int
    rows: IntColumn
    arrival_s: FloatColumn
    runs: tuple[tuple[Run, ...], ...]


def _part(load: Load, share: float, rng: np.random.Generator) -> IntColumn:
    """Rows of the first sessions, in an order by `rng`, that hold this share of the requests; one at least.

    A share of the requests, to within half a session, not of the sessions: sessions differ in length.
    """
    turns = np.bincount(load.session)
    order = rng.permutation(len(turns))
    middle = np.cumsum(turns[order]) - turns[order] / 2
    chosen = np.zeros(len(turns), dtype=np.bool_)
    chosen[order[: max(1, int(np.searchsorted(middle, share * len(load), side="right")))]] = True
    return np.flatnonzero(chosen[load.session])


class _Shift:
    """Moves the sessions of a Load round its span, in which every session still ends."""

    def __init__(self, load: Load) -> None:
        sessions = int(load.session.max()) + 1
        start, end = np.full(sessions, np.inf), np.full(sessions, -np.inf)
        np.minimum.at(start, load.session, load.arrival_s)
        np.maximum.at(end, load.session, load.arrival_s)
        self._load = load
        self._from = start - load.arrival_s[0]
        self._room = load.span_s - (end - start)

    def by(self, offset_s: float) -> FloatColumn:
        """Arrivals after a shift. [requests]"""
        room = self._room
        moved = np.where(room > 0, np.mod(self._from + offset_s, np.where(room > 0, room, 1.0)), 0.0)
        shifted: FloatColumn = self._load.arrival_s + (moved - self._from)[self._load.session]
        return shifted


def _shared_keys(load: Load) -> frozenset[Hashable]:
    """Keys of runs that two sessions or more have."""
    owner: dict[Hashable, int] = {}
    shared: set[Hashable] = set()
    for session, runs in zip(load.session.tolist(), load.runs, strict=True):
        for run in runs:
            if owner.setdefault(run.key, session) != session:
                shared.add(run.key)
    return frozenset(shared)


def _fresh(load: Load, rows: IntColumn, shared: frozenset[Hashable], copy: int) -> tuple[tuple[Run, ...], ...]:
    """The runs of these rows, under keys of this copy where one session has them alone."""
    made: dict[Run, Run] = {}

    def fresh(run: Run) -> Run:
        if run.key in shared:
            return run
        if run not in made:
            made[run] = run._replace(key=(copy, run.key))
        return made[run]

    return tuple(tuple(map(fresh, load.runs[row])) for row in rows.tolist())


def _together(load: Load, parts: list[_Copy]) -> Drawn:
    """All parts in order of arrival, turns and sessions numbered anew."""
    sessions = int(load.session.max()) + 1
    parents, numbers, done = [], [], 0
    for part in parts:
        place = np.full(len(load) + 1, -1, dtype=np.int64)
        place[part.rows] = done + np.arange(len(part.rows))
        parents.append(place[load.parent[part.rows]])
        numbers.append(part.number * sessions + load.session[part.rows])
        done += len(part.rows)
    arrival_s = np.concatenate([part.arrival_s for part in parts])
    order = np.argsort(arrival_s, kind="stable")
    rank = np.full(done + 1, -1, dtype=np.int64)
    rank[order] = np.arange(done)
    rows = np.concatenate([part.rows for part in parts])[order]
    copies = np.concatenate([np.full(len(part.rows), part.number) for part in parts])[order]
    runs = [one for part in parts for one in part.runs]
    together = Load(
        arrival_s=arrival_s[order],
        prompt_tokens=load.prompt_tokens[rows],
        output_tokens=load.output_tokens[rows],
        runs=tuple(runs[index] for index in order.tolist()),
        block_size=load.block_size,
        session=rank_by_first(np.concatenate(numbers)[order])[1],
        parent=rank[np.concatenate(parents)[order]],
        think_s=load.think_s[rows],
    )
    return Drawn(together, rows, copies)
