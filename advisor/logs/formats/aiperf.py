"""AIPerf's `profile_export.jsonl`: one request of a benchmark a line, with the unit of every number.

Warm-up is left out. Source: ai-dynamo/aiperf, src/aiperf/common/models/record_export_models.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, Format, as_count, as_label, as_row, as_seconds, mostly
from advisor.logs.formats.generic import read_status
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number, find_zone
from advisor.logs.trace import Unknown

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "min": 60.0, "m": 60.0}
_PROMPT = ("input_sequence_length", "usage_prompt_tokens")
_OUTPUT = ("output_sequence_length", "output_token_count", "usage_completion_tokens")
_SERVER_LOG = "analyze the log of the server that was measured; docs/collecting-logs.md"


class AIPerf(Format):
    """`metadata`, `metrics` of `{value, unit}`, `error`."""

    name: ClassVar[str] = "aiperf"
    fields: ClassVar[tuple[str, ...]] = ("metadata", "metrics", "error", "request_start_ns", "benchmark_phase")
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown("sharing", "profile_export.jsonl has no prompts", _SERVER_LOG),
        Unknown("clients", "a benchmark has one client", "analyze a log of traffic"),
        Unknown(
            "log.models", "profile_export.jsonl does not name the model", "it is in AIPerf's own arguments"
        ),
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        starts = [as_row(row.get("metadata")).get("request_start_ns") for row in sample]
        self._clock = Clock.of_sample(starts, options.time_unit or "ns", find_zone(options.tz))

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(
            sample, lambda row: "metrics" in row and "request_start_ns" in as_row(row.get("metadata"))
        )

    def parse(self, row: Row) -> Iterable[Record]:
        about, metrics = as_row(row.get("metadata")), as_row(row.get("metrics"))
        if about.get("benchmark_phase", "profiling") != "profiling":
            raise UnusableError("warm-up")
        error = as_row(row.get("error"))
        status = read_status(error.get("code"), error.get("type") or bool(error))
        if about.get("was_cancelled") is True:
            status = "cancelled"
        output = _first(metrics, _OUTPUT, "output length")
        if status is not None and output <= 0:
            raise UnusableError("failed request")
        prompt, cached = _first(metrics, _PROMPT, "prompt length"), _cached(metrics)
        self.counts["cached"] += cached >= 0
        arrival = self._clock.ns(about.get("request_start_ns"))
        return (
            Record(
                arrival_ns=arrival,
                prompt_tokens=prompt,
                output_tokens=output,
                cached_tokens=cached,
                ttft_s=_seconds(metrics.get("time_to_first_token")),
                e2e_s=self._latency(about, metrics, arrival),
                session=as_label(about.get("x_correlation_id") or about.get("conversation_id")),
                status=status or "ok",
            ),
        )

    def basis(self) -> Basis:
        unknown = []
        if not self.counts["cached"]:
            why = "the server's usage had no cached tokens"
            unknown.append(
                Unknown(
                    "sharing.cached_share", why, "vllm serve --enable-prompt-tokens-details, and measure again"
                )
            )
        return Basis(
            clock=self._clock,
            arrival=f"request_start_ns, {self._clock.words}",
            tokens="counted by AIPerf",
            notes=("a benchmark, not traffic: its client chose the arrivals and the lengths",),
            unknown=tuple(unknown),
        )

    def _latency(self, about: Row, metrics: Row, arrival_ns: int) -> float:
        latency = _seconds(metrics.get("request_latency"))
        end = about.get("request_end_ns")
        if math.isnan(latency) and end is not None:
            return max(0, self._clock.ns(end) - arrival_ns) / 1e9
        return latency


def _seconds(metric: object) -> float:
    """A duration with its unit; NaN where there is none, or a unit that is not known."""
    entry = as_row(metric)
    scale = _SECONDS.get(str(entry.get("unit")))
    return math.nan if scale is None else as_seconds(entry.get("value"), scale)


def _first(metrics: Row, names: Iterable[str], what: str) -> int:
    """The first count that is there; -1 where none is."""
    for name in names:
        value = as_row(metrics.get(name)).get("value")
        if as_number(value) is not None:
            return as_count(value, what)
    return -1


def _cached(metrics: Row) -> int:
    return _first(metrics, ("usage_prompt_cache_read_tokens",), "cached tokens")
