"""Which requests of a Trace are replayed, and when each is due.

Owns the choice of the window, what is sent before it to fill caches (the warm-up), and the two ways of scaling
it to an endpoint (`--fit`). A window that was scaled says so: its verdict is about other traffic than the
log's. Everything here is a pure function of the trace and a seed: equal inputs give equal windows.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

import numpy as np

from advisor.logs.trace import BoolColumn, FloatColumn, IntColumn, Trace, rank_by_first
from advisor.units import parse_seconds
from advisor.workload.arrivals import spread_trace
from advisor.workload.sessions import find_turns
from engine.errors import InputError

DEFAULT_WINDOW = "busiest:10m"
WARM_SHARE = 0.25  # of the window's length that is replayed before it, where the log has as much (ours)
_HINT = "--window busiest:10m, random:10m, all, or 60..120"


@dataclass(frozen=True, slots=True)
class Window:
    """The requests of one replay, warm-up first. Columns: [requests].

    `due_s` counts from the window's start: negative in the warm-up. Only what is due from `judged_from_s` on is
    judged: 0, or later where a run goes on from an interrupted one.
    """

    spec: str
    trace: Trace  # the selected rows only, with lengths as replayed
    rows: IntColumn  # row of each in the whole trace
    due_s: FloatColumn
    length_s: float  # of the window, seconds; stretched with the arrivals
    session: IntColumn  # a number; a request without a session is one of its own
    parent: IntColumn  # place in these columns of the turn before, -1 for none
    copies: IntColumn  # which copy of its row each is, at a rate above the log's; 0: the request itself
    judged_from_s: float = 0.0
    from_s: float = 0.0  # where the window begins, seconds after the log's first arrival
    scaled: tuple[str, ...] = ()  # what `--fit` or `--rate` changed, one sentence each
    left_out: int = 0  # requests of the window whose output length the log does not know
    tick_s: float | None = None  # the log's clock tick, where arrivals had to be spread within it

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def judged(self) -> BoolColumn:
        """Which requests are of the window, not of the warm-up."""
        return np.asarray(self.due_s >= self.judged_from_s)

    @property
    def lead_s(self) -> float:
        """How long before the window's start the first request is sent, seconds; negative: after it."""
        return -float(self.due_s[0])

    def take(self, chosen: IntColumn) -> Window:
        """Some of its requests, ascending; turns whose parent is left out have none."""
        place = np.full(len(self) + 1, -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        return replace(
            self,
            trace=self.trace.take(chosen),
            rows=self.rows[chosen],
            due_s=self.due_s[chosen],
            session=self.session[chosen],
            parent=place[self.parent[chosen]],
            copies=self.copies[chosen],
        )

    def key(self, place: int) -> tuple[int, int]:
        """Which request is at this place: `Record.key` of its record."""
        return int(self.rows[place]), int(self.copies[place])

    def only_judged(self) -> Window:
        """Without the warm-up."""
        return self.take(np.flatnonzero(self.judged))

    def digest(self) -> str:
        """SHA-256 of what is judged: arrivals, lengths and blocks. Equal digests are equal traffic."""
        window = self.only_judged()
        columns = [window.due_s, window.trace.prompt_tokens, window.trace.output_tokens]
        if window.trace.blocks is not None:
            columns += [window.trace.blocks.starts, window.trace.blocks.ids]
        parts = hashlib.sha256()
        for column in columns:
            parts.update(np.ascontiguousarray(column).tobytes())
        return parts.hexdigest()


def select(trace: Trace, spec: str = DEFAULT_WINDOW, *, warm_up_s: float = 0.0, seed: int = 0) -> Window:
    """The rows of `trace` that `spec` names, and those that arrive up to `warm_up_s` seconds before.

    `busiest:L` is the window of length L, beginning at an arrival, with the most requests (then the most
    tokens, then the earliest); `random:L` begins anywhere, by the seed; `all` is the whole trace; `FROM..TO`
    are seconds after the first arrival, TO excluded. Requests whose output length is unknown cannot be forced
    to it and are left out, counted. Where the log's clock is coarse, arrivals are spread evenly at random
    within its tick. Raises InputError.
    """
    trace, tick_s = spread_trace(trace)
    if len(trace) == 0:
        raise InputError("the trace holds no requests", hint="advise analyze LOG")
    first, last, from_s, length_s = _range(trace, spec, seed)
    begin_s = float(trace.arrival_s[0]) + from_s
    before = int(np.searchsorted(trace.arrival_s, begin_s - warm_up_s)) if warm_up_s > 0 else first
    rows = np.arange(min(before, first), last, dtype=np.int64)
    known = rows[(trace.prompt_tokens[rows] >= 0) & (trace.output_tokens[rows] >= 0)]
    in_window = int(np.count_nonzero(known >= first))
    if in_window == 0:
        why = "no request arrives in it" if first == last else "none of its requests has both lengths"
        raise InputError(f"the window {spec} has nothing to replay", why=why, hint=_HINT)
    chosen = trace.take(known)
    # A request that asks for nothing cannot be sent: the least a server takes is one token each way.
    chosen = replace(
        chosen,
        prompt_tokens=np.maximum(chosen.prompt_tokens, 1),
        output_tokens=np.maximum(chosen.output_tokens, 1),
    )
    session, parent = _turns(trace, known)
    return Window(
        spec,
        chosen,
        known,
        chosen.arrival_s - begin_s,
        length_s,
        session,
        parent,
        np.zeros(len(known), dtype=np.int64),
        from_s=from_s,
        left_out=last - first - in_window,
        tick_s=tick_s,
    )


def _turns(trace: Trace, rows: IntColumn) -> tuple[IntColumn, IntColumn]:
    """Sessions, numbered, and the place of the turn before, of some rows of the trace. [rows]"""
    found = find_turns(trace).trace
    codes = np.full(len(rows), -1) if found.session is None else found.session.codes[rows].astype(np.int64)
    alone = codes.max(initial=-1) + 1 + np.arange(len(rows))
    _, session = rank_by_first(np.where(codes >= 0, codes, alone))
    place = np.full(len(trace) + 1, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    parent = np.full(len(rows), -1) if found.parent is None else place[found.parent[rows]]
    return session, parent.astype(np.int64)


def _range(trace: Trace, spec: str, seed: int) -> tuple[int, int, float, float]:
    """First row, row after the last, where the window begins after the first arrival, its length; seconds."""
    arrivals = trace.arrival_s
    span_s = float(arrivals[-1] - arrivals[0])
    kind, colon, length = spec.partition(":")
    if spec == "all":
        return 0, len(trace), 0.0, span_s
    if colon and kind in ("busiest", "random"):
        length_s = parse_seconds(length, "window")
        if length_s <= 0:
            raise InputError(f"the window {spec} is empty", hint=_HINT)
        if length_s >= span_s:
            return 0, len(trace), 0.0, span_s
        if kind == "busiest":
            first, last = _busiest(trace, length_s)
            return first, last, float(arrivals[first] - arrivals[0]), length_s
        from_s = float(np.random.default_rng(seed).uniform(0, span_s - length_s))
        return *_between(arrivals, from_s, from_s + length_s), from_s, length_s
    match = re.fullmatch(r"(.+)\.\.(.+)", spec)
    if match is None:
        raise InputError(f"window {spec!r} is not understood", hint=_HINT)
    start_s, end_s = (parse_seconds(part, "window") for part in match.groups())
    if end_s <= start_s:
        raise InputError(f"the window {spec} ends before it begins", hint=_HINT)
    return *_between(arrivals, start_s, end_s), start_s, end_s - start_s


def _between(arrivals: FloatColumn, start_s: float, end_s: float) -> tuple[int, int]:
    first, last = np.searchsorted(arrivals, arrivals[0] + np.array([start_s, end_s]))
    return int(first), int(last)


def _busiest(trace: Trace, length_s: float) -> tuple[int, int]:
    ends = np.searchsorted(trace.arrival_s, trace.arrival_s + length_s)
    starts = np.arange(len(trace))
    known = np.maximum(trace.prompt_tokens, 0) + np.maximum(trace.output_tokens, 0)
    tokens = np.concatenate(([0], np.cumsum(known)))
    counts, sums = ends - starts, tokens[ends] - tokens[starts]
    best = int(np.lexsort((starts, -sums, -counts))[0])
    return best, int(ends[best])


def fit_rate(window: Window, utilisation: float, limit: float) -> Window:
    """Stretch the arrivals in time so that a load of `utilisation` falls to `limit`; no change below it.

    Burst shape stays; think times and reuse distances grow by the same factor.
    """
    stretch = utilisation / limit
    if stretch <= 1:
        return window
    note = f"arrivals stretched {stretch:.2f} times"
    return replace(
        window,
        due_s=window.due_s * stretch,
        length_s=window.length_s * stretch,
        scaled=(*window.scaled, note),
    )


def fit_lengths(window: Window, max_len: int) -> Window:
    """Scale all lengths by one factor so that the longest request (prompt plus output) fits `max_len` tokens.

    The block size is scaled too and the factor taken from it, so that full blocks stay full blocks and the
    shared share of every prompt stays. Raises InputError where a block would fall under one token.
    """
    trace = window.trace
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    if longest <= max_len:
        return window
    # Two tokens of room: a prompt and an output are each at least one token after rounding.
    numerator, denominator = max(max_len - 2, 0), longest
    blocks = trace.blocks
    if blocks is not None:
        size = blocks.size * numerator // denominator
        if size < 1:
            raise InputError(
                f"requests of {longest} tokens cannot be scaled to a context of {max_len}",
                why=f"a block of {blocks.size} tokens would become shorter than one token",
                hint="--window FROM..TO with shorter requests",
            )
        numerator, denominator, blocks = size, blocks.size, replace(blocks, size=size)

    def scale(tokens: IntColumn) -> IntColumn:
        scaled: IntColumn = np.maximum(tokens * numerator // denominator, 1)
        return scaled

    trace = replace(
        trace,
        prompt_tokens=scale(trace.prompt_tokens),
        output_tokens=scale(trace.output_tokens),
        blocks=blocks,
    )
    note = f"lengths scaled to {numerator / denominator:.3f} of the log's"
    return replace(window, trace=trace, scaled=(*window.scaled, note))
