"""One request and what has been seen of it so far, as it grows while its stream runs.

States: unsent -> interrupted (sent, no outcome yet) -> one of the outcomes in `record.Status`. Times are
nanoseconds of the run's clock; `record` brings them to seconds after its start. Knows nothing of sockets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from advisor.validation.record import Record, Status
from advisor.validation.sse import Event


@dataclass(slots=True)
class Exchange:
    """A request that is due, and what came of it."""

    row: int
    body: bytes = field(repr=False)
    due_ns: int  # its scheduled arrival
    want_in: int
    want_out: int
    session: int | None = None
    turn: int | None = None
    slo_class: str | None = None
    copy: int = 0
    held_ns: int = 0  # after `due_ns`, while the turn before went on
    status: Status = "unsent"
    send_ns: int | None = None
    conn_ns: int = 0
    hdr_ns: int | None = None
    any_ns: int | None = None
    done_ns: int | None = None
    chunk_ns: list[int] = field(default_factory=list)
    tokens: int = 0
    has_token_ids: bool = False
    n_in: int | None = None
    n_cached: int | None = None
    n_usage: int | None = None
    finish_reason: str | None = None

    def take(self, event: Event, at_ns: int) -> None:
        """Count one event that arrived at `at_ns`."""
        if event.choices:
            if self.any_ns is None:
                self.any_ns = at_ns
            tokens = event.tokens
            if tokens:
                self.chunk_ns.append(at_ns)
                self.tokens += tokens
                self.has_token_ids = self.has_token_ids or event.has_token_ids
            self.finish_reason = event.finish_reason or self.finish_reason
        if event.usage is not None:
            self.n_in = event.usage.prompt_tokens
            self.n_usage = event.usage.completion_tokens
            self.n_cached = event.usage.cached_tokens

    @property
    def n_out(self) -> tuple[int | None, Literal["usage", "token_ids", "chunks"] | None]:
        """Output tokens, and where the count comes from."""
        if self.n_usage is not None:
            return self.n_usage, "usage"
        if self.hdr_ns is None or self.status.startswith("http"):
            return None, None
        return self.tokens, "token_ids" if self.has_token_ids else "chunks"

    @property
    def has_wanted_length(self) -> bool:
        """Whether the usage, and the ids where there are any, both count `want_out` tokens."""
        return self.n_out[0] == self.want_out and (not self.has_token_ids or self.tokens == self.want_out)

    def record(self, start_ns: int) -> Record:
        """The record, in seconds after `start_ns`."""

        def seconds(stamp: int | None) -> float | None:
            return None if stamp is None else (stamp - start_ns) / 1e9

        n_out, source = self.n_out
        return Record(
            row=self.row,
            t_sched=(self.due_ns - start_ns) / 1e9,
            want_in=self.want_in,
            want_out=self.want_out,
            status=self.status,
            held_s=self.held_ns / 1e9,
            t_send=seconds(self.send_ns),
            t_conn=self.conn_ns / 1e9,
            t_hdr=seconds(self.hdr_ns),
            t_any=seconds(self.any_ns),
            t_chunk=tuple([(stamp - start_ns) / 1e9 for stamp in self.chunk_ns]),
            t_done=seconds(self.done_ns),
            n_in=self.n_in,
            n_cached=self.n_cached,
            n_out=n_out,
            n_out_source=source,
            finish_reason=self.finish_reason,
            session=self.session,
            turn=self.turn,
            slo_class=self.slo_class,
            copy=self.copy,
        )
