"""The raw record of one replayed request: times and counts, no text.

Every metric is computed from these records and can be recomputed from their file. Times are seconds after the
start of the run on one monotonic clock; in front of a dilated emulation that is a slower clock than the one
that latencies are of, see `undilated`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Status = Literal[
    "ok",
    "http_4xx",
    "http_429",
    "http_5xx",
    "timeout",
    "broken_stream",  # the connection failed, was cut, or the stream ended without its end
    "wrong_length",  # complete, but not the forced number of output tokens
    "unsent",  # the run ended before its turn came
    "interrupted",  # sent, but the run ended before it did
]
OPEN: tuple[Status, ...] = ("unsent", "interrupted")  # no outcome
COMPLETE: tuple[Status, ...] = ("ok", "wrong_length")
Source = Literal["usage", "token_ids", "chunks"]


@dataclass(frozen=True, slots=True)
class Record:
    """One scheduled request. What never happened is None."""

    row: int  # row of the request in the trace that was replayed
    t_sched: float  # scheduled arrival, seconds
    want_in: int  # prompt tokens
    want_out: int  # output tokens
    status: Status
    held_s: float = 0.0  # with causal turns: how long after t_sched the turn before ended; a wait, never lag
    t_send: float | None = None  # just before the request is written to an open connection
    t_conn: float = 0.0  # seconds spent on a new connection; 0 where one was reused
    t_hdr: float | None = None  # the response's status line was seen
    t_any: float | None = None  # first chunk with a choice, even without a token: where vLLM's TTFT ends
    t_chunk: tuple[float, ...] = ()  # arrival of every chunk that holds at least one token
    t_done: float | None = None  # end of the stream, or of the attempt
    n_in: int | None = None  # prompt tokens by the server's usage
    n_cached: int | None = None  # prompt tokens that the server took from its prefix cache
    n_out: int | None = None  # output tokens
    n_out_source: Source | None = None
    finish_reason: str | None = None
    session: int | None = None  # number of the session in the window; None: a request of its own
    turn: int | None = None  # 0 for the first of its session
    slo_class: str | None = None  # whose latency targets it has; None: the default ones
    copy: int = 0  # which copy of the row, at a rate above the log's; 0: the request itself
    time_scale: float = 1.0  # these times are so many times longer than those of what was emulated

    def undilated(self) -> Record:
        """The record with every time on the clock of what was emulated."""
        scale = self.time_scale
        if scale == 1.0:
            return self

        def shorter(time_s: float | None) -> float | None:
            return None if time_s is None else time_s / scale

        return replace(
            self,
            t_sched=self.t_sched / scale,
            held_s=self.held_s / scale,
            t_send=shorter(self.t_send),
            t_conn=self.t_conn / scale,
            t_hdr=shorter(self.t_hdr),
            t_any=shorter(self.t_any),
            t_chunk=tuple(stamp / scale for stamp in self.t_chunk),
            t_done=shorter(self.t_done),
            time_scale=1.0,
        )

    @property
    def key(self) -> tuple[int, int]:
        """Which request of the window it is, in every replay of it: a row of the log, and the copy."""
        return self.row, self.copy

    @property
    def t_due(self) -> float:
        """When the request may be sent: time zero of its latencies. Its scheduled arrival, or later, held."""
        return self.t_sched + self.held_s

    @property
    def t_first(self) -> float | None:
        """Arrival of the first chunk that holds a token, seconds."""
        return self.t_chunk[0] if self.t_chunk else None

    @property
    def t_last(self) -> float | None:
        """Arrival of the last chunk that holds a token, seconds."""
        return self.t_chunk[-1] if self.t_chunk else None
