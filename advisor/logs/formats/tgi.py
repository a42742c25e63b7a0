"""Hugging Face TGI's log with `--json-output`: a line when a request ends, with durations and no token counts.

Durations are Rust's debug text (`412.5µs`, `1.38s`). The server divides the inference time by the generated
tokens to get `time_per_token`, in whole nanoseconds, so dividing back gives them. Source: router/src/server.rs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, Format, as_row, mostly
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, find_zone
from advisor.logs.trace import Unknown

_DURATION = re.compile(r"(\d{1,12})(?:\.(\d{1,9}))?(ns|µs|μs|us|ms|s)")
_NANOSECONDS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_MOST_OFF = 0.05  # of a token, between the quotient of two durations and a whole number
_HEADERS = "log the response headers x-prompt-tokens and x-generated-tokens at the gateway in front of TGI"
_RECORDER = "record with advisor.logs.recorder in front of TGI; docs/collecting-logs.md"


class TGI(Format):
    """`timestamp`, `target` text_generation_router, `span` with the durations."""

    name: ClassVar[str] = "tgi"
    fields: ClassVar[tuple[str, ...]] = ("timestamp", "level", "target", "span", "total_time", "time_per_token")
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown("lengths.prompt", "TGI does not log prompt tokens", _HEADERS),
        Unknown("sharing", "TGI does not log prompts", _RECORDER),
        Unknown("sharing.cached_share", "TGI does not log cached tokens", _RECORDER),
        Unknown("latency.ttft_s", "TGI logs no time to the first token", _RECORDER),
        Unknown("clients", "TGI does not log who asked", _RECORDER),
        Unknown("sessions", "TGI does not log sessions", _RECORDER),
        Unknown("log.models", "TGI serves one model and does not name it in its lines", "give --model"),
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        stamps = [row.get("timestamp") for row in sample]
        self._clock = Clock.of_sample(stamps, options.time_unit, find_zone(options.tz))

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: str(row.get("target")).startswith("text_generation_"))

    def parse(self, row: Row) -> Iterable[Record]:
        span = as_row(row.get("span"))
        total = _duration_ns(span.get("total_time"))
        if total is None:
            failed = row.get("level") == "ERROR" and "parameters" in span
            raise UnusableError("failed request" if failed else "not a request")
        output = _generated(span)
        self.counts["not whole"] += output < 0
        return (
            Record(
                arrival_ns=self._clock.ns(row.get("timestamp")) - total,
                output_tokens=output,
                e2e_s=total / 1e9,
                status="ok" if row.get("message") == "Success" else None,
            ),
        )

    def basis(self) -> Basis:
        notes = []
        if odd := self.counts["not whole"]:
            notes.append(f"requests whose durations give no whole number of output tokens: {odd}")
        return Basis(
            clock=self._clock,
            arrival=f"timestamp - total_time, {self._clock.words}",
            tokens="output: inference_time / time_per_token, which undoes the server's division; prompt: none",
            notes=tuple(notes),
        )


def _duration_ns(value: object) -> int | None:
    """Nanoseconds of a Rust duration; None for anything else."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    scale = _NANOSECONDS[match[3]]
    return int(match[1]) * scale + round(int((match[2] or "").ljust(9, "0")) * scale / 10**9)


def _generated(span: Row) -> int:
    """Output tokens; -1 where the durations do not give a whole number."""
    inference, each = _duration_ns(span.get("inference_time")), _duration_ns(span.get("time_per_token"))
    if not inference or not each:
        return -1
    tokens = round(inference / each)
    return tokens if tokens > 0 and abs(inference / each - tokens) <= _MOST_OFF else -1
