"""SGLang's `--export-metrics-to-file`: one finished request a line, with its parameters as JSON in a string.

Times are there with `--enable-metrics` only; files are named by the hour of the write. Source:
srt/managers/request_metrics_exporter.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, Format, as_row, mostly
from advisor.logs.formats.sglang_meta import HEALTH_CHECK, is_embedding, read_meta, read_prompt
from advisor.logs.options import ReadOptions
from advisor.logs.prompts import parsed
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, find_zone
from advisor.logs.trace import Unknown

_GATEWAY = "analyze the log of the gateway in front of SGLang, or record with advisor.logs.recorder"


class SGLangMetrics(Format):
    """`request_parameters` beside the fields of meta_info."""

    name: ClassVar[str] = "sglang-metrics"
    fields: ClassVar[tuple[str, ...]] = (
        "request_parameters", "prompt_tokens", "completion_tokens", "cached_tokens", "e2e_latency",
    )  # fmt: skip
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown("clients", "SGLang does not log who asked", _GATEWAY),
        Unknown("sessions", "SGLang does not log sessions", _GATEWAY),
        Unknown("log.models", "SGLang serves one model and does not name it in this log", "give --model"),
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        stamps = [row.get("request_received_ts") for row in sample]
        timed = any(stamp is not None for stamp in stamps)
        zone = find_zone(options.tz)
        self._clock = Clock.of_sample(stamps, options.time_unit or "s", zone) if timed else None

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: "request_parameters" in row and "prompt_tokens" in row)

    def parse(self, row: Row) -> Iterable[Record]:
        parameters = as_row(parsed(row.get("request_parameters")))
        if is_embedding(parameters):
            raise UnusableError("other operation than generating text")
        if HEALTH_CHECK in str(parameters.get("rid")):
            raise UnusableError("health check")
        record = read_meta(row)
        if record.status not in (None, "ok") and record.output_tokens <= 0:
            raise UnusableError("failed request")
        record.prompt = read_prompt(parameters)
        if record.prompt is None and record.prompt_tokens < 0:
            raise UnusableError("no prompt length")
        if self._clock is not None:
            record.arrival_ns = self._clock.ns(row.get("request_received_ts"))
        self.counts["prompts"] += record.prompt is not None
        self.counts["cached"] += record.cached_tokens >= 0
        self.counts["first token"] += record.ttft_s >= 0
        return (record,)

    def basis(self) -> Basis:
        counts, unknown = self.counts, []
        metrics = (
            "start SGLang with --enable-metrics beside --export-metrics-to-file, in a version that logs times"
        )
        if self._clock is None:
            unknown.append(Unknown("arrivals", "rows have no request_received_ts", metrics))
        if not counts["first token"]:
            unknown.append(Unknown("latency.ttft_s", "rows have no prefill_finished_ts", metrics))
        if not counts["prompts"]:
            why = "request_parameters have neither text nor input_ids"
            how = "start SGLang with --log-requests-level 3; docs/collecting-logs.md"
            unknown.append(Unknown("sharing", why, how))
        if not counts["cached"]:
            unknown.append(Unknown("sharing.cached_share", "rows have no cached_tokens", "use a newer SGLang"))
        return Basis(
            clock=self._clock,
            arrival="none" if self._clock is None else f"request_received_ts, {self._clock.words}",
            prefix="prompts in request_parameters" if counts["prompts"] else None,
            unknown=tuple(unknown),
        )
