"""Which requests of a Trace are replayed, and when each is due.

Owns the choice of the window, the schedule, and the two ways of scaling it to an endpoint (`--fit`). A window
that was scaled says so: its verdict is about other traffic than the log's. Everything here is a pure function
of the trace: equal inputs give equal windows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from advisor.logs.trace import FloatColumn, IntColumn, Trace
from advisor.units import parse_seconds
from advisor.workload.arrivals import spread_trace
from engine.errors import InputError

DEFAULT_WINDOW = "busiest:10m"
_HINT = "--window busiest:10m, --window all, or --window 60..120"


@dataclass(frozen=True, slots=True)
class Window:
    """The requests of one replay. `due_s[i]` is when row i is sent, seconds after the start of the run."""

    spec: str
    trace: Trace  # the selected rows only, with lengths as replayed
    rows: IntColumn  # [requests] row of each in the whole trace
    due_s: FloatColumn  # [requests]
    length_s: float  # length of the window, seconds; stretched with the arrivals
    scaled: tuple[str, ...] = ()  # what `--fit` changed, one sentence each
    left_out: int = 0  # requests of the window whose output length the log does not know
    tick_s: float | None = None  # the log's clock tick, where arrivals had to be spread within it

    def __len__(self) -> int:
        return len(self.rows)


def select(trace: Trace, spec: str = DEFAULT_WINDOW) -> Window:
    """The rows of `trace` that `spec` names.

    `busiest:L` is the window of length L, beginning at an arrival, with the most requests (then the most
    tokens, then the earliest); `all` the whole trace; `FROM..TO` seconds after the first arrival, TO excluded.
    Requests whose output length is unknown cannot be forced to it and are left out, counted. Where the log's
    clock is coarse, arrivals are spread evenly at random within its tick. Raises InputError.
    """
    trace, tick_s = spread_trace(trace)
    if len(trace) == 0:
        raise InputError("the trace holds no requests", hint="advise analyze LOG")
    first, last, length_s = _range(trace, spec)
    rows = np.arange(first, last, dtype=np.int64)
    known = rows[(trace.prompt_tokens[rows] >= 0) & (trace.output_tokens[rows] >= 0)]
    if len(known) == 0:
        why = "no request arrives in it" if len(rows) == 0 else "none of its requests has both lengths"
        raise InputError(f"the window {spec} has nothing to replay", why=why, hint=_HINT)
    chosen = trace.take(known)
    # A request that asks for nothing cannot be sent: the least a server takes is one token each way.
    chosen = replace(
        chosen,
        prompt_tokens=np.maximum(chosen.prompt_tokens, 1),
        output_tokens=np.maximum(chosen.output_tokens, 1),
    )
    due_s = chosen.arrival_s - chosen.arrival_s[0]
    return Window(spec, chosen, known, due_s, length_s, left_out=len(rows) - len(known), tick_s=tick_s)


def _range(trace: Trace, spec: str) -> tuple[int, int, float]:
    """First row, row after the last, and length in seconds."""
    arrivals = trace.arrival_s
    span_s = float(arrivals[-1] - arrivals[0])
    if spec == "all":
        return 0, len(trace), span_s
    if spec.startswith("busiest:"):
        length_s = parse_seconds(spec.removeprefix("busiest:"), "window")
        if length_s <= 0:
            raise InputError(f"the window {spec} is empty", hint=_HINT)
        first, last = _busiest(trace, length_s)
        return first, last, min(length_s, span_s)
    match = re.fullmatch(r"(.+)\.\.(.+)", spec)
    if match is None:
        raise InputError(f"window {spec!r} is not understood", hint=_HINT)
    start_s, end_s = (parse_seconds(part, "window") for part in match.groups())
    if end_s <= start_s:
        raise InputError(f"the window {spec} ends before it begins", hint=_HINT)
    first, last = np.searchsorted(arrivals, arrivals[0] + np.array([start_s, end_s]))
    return int(first), int(last), end_s - start_s


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
