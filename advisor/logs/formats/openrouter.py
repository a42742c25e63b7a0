"""OpenRouter's activity: the CSV of generations, and the activity API, which has only sums of a day.

Source: the export's header as its users publish it. `created_at` is taken as the arrival and read as UTC. The
counts are OpenRouter's own; `tokens_cached` is part of `tokens_prompt`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from advisor.logs.formats.base import Basis, Parsed, as_count, as_label, as_seconds, mostly
from advisor.logs.formats.calls import Calls, first_label, first_token, given, settle, utc_clock
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.trace import Totals, Unknown

_DAY_S = 86_400
_SUMS = {
    "prompt_tokens": "prompt length",
    "completion_tokens": "output length",
    "requests": "number of requests",
}


class OpenRouter(Calls):
    """`generation_id`, `created_at`, `tokens_prompt`, `tokens_completion`, `generation_time_ms`."""

    name: ClassVar[str] = "openrouter"
    fields: ClassVar[tuple[str, ...]] = (
        "generation_id", "created_at", "tokens_prompt", "tokens_completion", "model_permaslug",
    )  # fmt: skip
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown(
            "sharing",
            "OpenRouter's activity holds no prompts",
            "log prompts where you call it (LiteLLM, the recorder): docs/collecting-logs.md",
        ),
        Unknown("sessions", "OpenRouter's activity names no sessions", "log sessions where you call it"),
    )
    arrival: ClassVar[str] = "created_at"
    gaps: ClassVar[Mapping[str, Unknown]] = {
        "cached_tokens": Unknown(
            "sharing.cached_share",
            "no generation has tokens_cached",
            "export the activity CSV with its token columns",
        ),
        "ttft_s": Unknown(
            "latency.ttft_s", "no generation has time_to_first_token_ms", 'clients stream: {"stream": true}'
        ),
        "client": Unknown("clients", "no generation has a user or a key", "send `user` in the body"),
    }

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        super().__init__(sample, options)
        self._days = mostly(sample, _is_day)
        if self._days:
            self._clock = utc_clock([given(row.get("date")) for row in sample], options.time_unit)

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: {"generation_id", "tokens_prompt"} <= row.keys() or _is_day(row))

    def parse(self, row: Row) -> Iterable[Parsed]:
        if self._days != _is_day(row):
            raise UnusableError("another kind of row than the first")
        if not self._days:
            return super().parse(row)
        day = self._clock.ns(given(row.get("date"))) // 10**9 // _DAY_S
        sums = {name: as_count(given(row.get(name)), what) for name, what in _SUMS.items()}
        if min(sums.values()) < 0:
            raise UnusableError("no token counts")
        self.counts.update(sums)
        self.counts[f"day {day}"] += 1
        self.counts[f"model {first_label(row.get('model_permaslug'), row.get('model')) or ''}"] += 1
        return ()

    def _record(self, row: Row) -> Record:
        e2e = as_seconds(row.get("generation_time_ms"), 1e-3)
        return settle(
            Record(
                arrival_ns=self._start(row),
                prompt_tokens=as_count(given(row.get("tokens_prompt")), "prompt length"),
                output_tokens=as_count(given(row.get("tokens_completion")), "output length"),
                cached_tokens=as_count(given(row.get("tokens_cached")), "cached tokens"),
                ttft_s=first_token(as_seconds(row.get("time_to_first_token_ms"), 1e-3), e2e),
                e2e_s=e2e,
                model=first_label(row.get("model_permaslug")),
                client=first_label(row.get("user"), row.get("api_key_name")),
                status=_status(row),
                key=first_label(row.get("generation_id")),  # exports of two periods may overlap
            )
        )

    def basis(self) -> Basis:
        if not self._days:
            return replace(super().basis(), tokens="logged counts, as OpenRouter counts")
        return Basis(clock=None, arrival="none", tokens="sums of days", totals=self._totals())

    def _totals(self) -> Totals:
        days = [int(name[4:]) for name in self.counts if name.startswith("day ")]
        models = [name[6:] for name in self.counts if name.startswith("model ")]
        return Totals(
            source="OpenRouter's activity by day",
            requests=self.counts["requests"],
            prompt_tokens=self.counts["prompt_tokens"],
            output_tokens=self.counts["completion_tokens"],
            span_s=float((max(days) - min(days) + 1) * _DAY_S) if days else None,
            model=models[0] or None if len(models) == 1 else None,
        )


def _is_day(row: Row) -> bool:
    return {"date", "endpoint_id", "requests", "prompt_tokens"} <= row.keys()


def _status(row: Row) -> str:
    if str(row.get("cancelled")).lower() == "true":
        return "cancelled"
    reason = as_label(given(row.get("finish_reason_normalized")))
    return "error" if reason == "error" else "ok"
