"""The raw record of one replayed request: times and counts, no text.

Every metric is computed from these records and can be recomputed from their file. Times are seconds after the
start of the run on one monotonic clock; in front of a dilated emulation that is a slower clock than the one
that latencies are of, see `undilated`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
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


@dataclass(frozen=True, slots=True)
class Record:
    """One scheduled request. What never happened is None."""

    row: int  # row of the request in the trace that was replayed
    t_sched: float  # scheduled arrival, seconds
    want_in: int  # prompt tokens
    want_out: int  # output tokens
    status: Status
    t_send: float | None = None  # just before the request is written to an open connection
    t_conn: float = 0.0  # seconds spent on a new connection; 0 where one was reused
    t_hdr: float | None = None  # the response's status line was seen
    t_chunk: tuple[float, ...] = ()  # arrival of every chunk that holds at least one token
    t_done: float | None = None  # end of the stream, or of the attempt
    n_in: int | None = None  # prompt tokens by the server's usage
    n_cached: int | None = None  # prompt tokens that the server took from its prefix cache
    n_out: int | None = None  # output tokens
    n_out_source: Literal["usage", "token_ids", "chunks"] | None = None
    finish_reason: str | None = None
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
            t_send=shorter(self.t_send),
            t_conn=self.t_conn / scale,
            t_hdr=shorter(self.t_hdr),
            t_chunk=tuple(stamp / scale for stamp in self.t_chunk),
            t_done=shorter(self.t_done),
            time_scale=1.0,
        )

    @property
    def t_first(self) -> float | None:
        """Arrival of the first chunk that holds a token, seconds."""
        return self.t_chunk[0] if self.t_chunk else None

    @property
    def t_last(self) -> float | None:
        """Arrival of the last chunk that holds a token, seconds."""
        return self.t_chunk[-1] if self.t_chunk else None


def write_records(records: Iterable[Record], path: Path) -> None:
    """Write one JSON object a line, with t_first and t_last beside the raw fields."""
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            row = asdict(record) | {"t_first": record.t_first, "t_last": record.t_last}
            file.write(json.dumps(row) + "\n")
