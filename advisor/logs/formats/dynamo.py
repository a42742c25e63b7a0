"""NVIDIA Dynamo's request trace: lengths, latencies and the chained hashes of prompt blocks, one event a line.

Events are written when they end. Hashes are unsigned 64-bit and cover all tokens, those of a partial last block
too; deployments differ in block size. Source: ai-dynamo/dynamo, lib/llm/src/request_trace/{types,replay}.rs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, Format, as_count, as_label, as_row, as_seconds, mostly
from advisor.logs.formats.mooncake import check_ids
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number, find_zone
from advisor.logs.trace import Unknown

_SCHEMA = "dynamo.request.trace."
_NO_REQUEST = {
    "tool_start": "tool event",
    "tool_end": "tool event",
    "tool_error": "tool event",
    "request_payload": "duplicate of another row",  # what was said, of a request that has its own event
}
_FINE = ("stop", "length", "tool_calls", "content_filter", "function_call", "eos")


class Dynamo(Format):
    """`schema` dynamo.request.trace.v1, with or without the envelope of a sink."""

    name: ClassVar[str] = "dynamo"
    fields: ClassVar[tuple[str, ...]] = (
        "schema",
        "event_type",
        "event_time_unix_ms",
        "agent_context",
        "request",
    )
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown("clients", "Dynamo does not log who asked", "analyze the log of the gateway in front of it"),
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = Clock(
            options.time_unit or "ms", True, find_zone(options.tz), words="milliseconds since 1970"
        )
        sizes = Counter(
            size
            for row in sample
            if type(size := _replay(_unwrap(row)).get("trace_block_size")) is int and 0 < size <= 1 << 20
        )
        self._size = sizes.most_common(1)[0][0] if sizes else None

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: str(_unwrap(row).get("schema")).startswith(_SCHEMA))

    def parse(self, row: Row) -> Iterable[Record]:
        event = _unwrap(row)
        kind = event.get("event_type")
        if isinstance(kind, str) and kind in _NO_REQUEST:
            raise UnusableError(_NO_REQUEST[kind])
        request, replay = as_row(event.get("request")), _replay(event)
        if kind != "request_end" or not request:
            raise UnusableError("not a request")
        output = as_count(request.get("output_tokens"), "output length")
        status = _status(request)
        if output <= 0 and status not in (None, "ok"):
            raise UnusableError("failed request")
        prompt = as_count(request.get("input_tokens"), "prompt length")
        if prompt < 0:
            prompt = as_count(replay.get("input_length"), "prompt length")
        if prompt < 0:
            raise UnusableError("no prompt length")
        arrival, e2e = self._times(event, request)
        cached = as_count(request.get("cached_tokens"), "cached tokens")
        self.counts["cached"] += cached >= 0
        session = as_label(as_row(event.get("agent_context")).get("session_id"))
        self.counts["sessions"] += session is not None
        return (
            Record(
                arrival_ns=arrival,
                prompt_tokens=prompt,
                output_tokens=output,
                cached_tokens=cached,
                ttft_s=as_seconds(request.get("ttft_ms"), 1e-3),
                e2e_s=e2e,
                hash_ids=self._hashes(replay, prompt),
                model=as_label(request.get("model")),
                session=session,
                status=status,
            ),
        )

    def basis(self) -> Basis:
        counts, notes, unknown = self.counts, [], []
        if counts["other size"]:
            notes.append(
                f"requests with blocks of another size than {self._size}, whose content stays unknown: "
                f"{counts['other size']}"
            )
        if counts["unfit"]:
            notes.append(
                f"requests with more hashes than their prompt has blocks, their content left unknown: "
                f"{counts['unfit']}"
            )
        if counts["end"]:
            notes.append(f"requests without a time of arrival, placed at end - latency: {counts['end']}")
        if not counts["hashes"]:
            why = "no request has block hashes"
            how = "DYN_REQUEST_TRACE=1 with replay metadata, which is on as a rule; docs/collecting-logs.md"
            unknown.append(Unknown("sharing", why, how))
        if not counts["cached"]:
            why = "events without agent context have no cached tokens"
            unknown.append(Unknown("sharing.cached_share", why, "send the x-dynamo-session-id header"))
        return Basis(
            clock=self._clock,
            arrival="request_received_ms, milliseconds since 1970",
            prefix=f"input_sequence_hashes of {self._size} tokens" if counts["hashes"] else None,
            block_size=self._size,
            notes=tuple(notes),
            unknown=tuple(unknown),
        )

    def _times(self, event: Row, request: Row) -> tuple[int, float]:
        """Arrival in nanoseconds and seconds until the end, each from the other where it is not logged."""
        e2e = as_seconds(request.get("total_time_ms"), 1e-3)
        received = request.get("request_received_ms")
        if received is not None:
            arrival = self._clock.ns(received)
            if math.isnan(e2e) and as_number(event.get("event_time_unix_ms")) is not None:
                e2e = max(0, self._clock.ns(event["event_time_unix_ms"]) - arrival) / 1e9
            return arrival, e2e
        if math.isnan(e2e):
            raise UnusableError("no arrival time")
        self.counts["end"] += 1
        return self._clock.ns(event.get("event_time_unix_ms")) - round(e2e * 1e9), e2e

    def _hashes(self, replay: Row, prompt: int) -> Sequence[int] | None:
        """Block ids; None, and counted, where they are not of this log's size or not of such a prompt."""
        hashes, size = check_ids(replay.get("input_sequence_hashes")), replay.get("trace_block_size")
        if hashes is None or self._size is None:
            return None
        if size != self._size:
            self.counts["other size"] += 1
            return None
        if len(hashes) > -(-prompt // self._size):
            self.counts["unfit"] += 1
            return None
        self.counts["hashes"] += 1
        return hashes


def _unwrap(row: Row) -> Row:
    """The event inside the envelope `{timestamp, event}` that file sinks put around it."""
    return as_row(row.get("event")) if isinstance(row.get("event"), dict) else row


def _replay(event: Row) -> Row:
    return as_row(as_row(event.get("request")).get("replay"))


def _status(request: Row) -> str | None:
    about = as_row(request.get("finish_reason_metadata"))
    reason = as_label(about.get("finish_reason") or about.get("backend_finish_reason"))
    return "ok" if reason in _FINE else reason
