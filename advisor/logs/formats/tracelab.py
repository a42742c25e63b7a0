"""TraceLab's `round_trace.jsonl`: rounds of coding agents, with tokens and cache as the provider counted them.

Source: uw-syfi/TraceLab. A round arrives with the last thing that went into it before the model wrote anything,
and ends with the last thing that the model wrote. Its events are logged when they are whole, so none of them is
the first token. Prompts are not part of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, Format, as_count, as_label, mostly
from advisor.logs.formats.published import not_told
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number, find_zone
from advisor.logs.trace import Unknown

_INPUTS = ("user_message", "tool_result")
_OUTPUTS = ("reasoning", "text", "tool_call")
_CLAUDE_PARTS = (
    "claude_uncached_input_tokens", "claude_cache_creation_input_tokens", "claude_cache_read_input_tokens",
)  # fmt: skip


class TraceLab(Format):
    """`session_id`, `round_index`, `input_tokens_total`, `prefix_tokens`, `output_tokens`, `timing_events`."""

    name: ClassVar[str] = "tracelab"
    fields: ClassVar[tuple[str, ...]] = (
        "session_id", "round_index", "input_tokens_total", "prefix_tokens", "output_tokens", "timing_events",
    )  # fmt: skip
    cannot_tell: ClassVar[tuple[Unknown, ...]] = not_told("TraceLab's rounds", "sharing", "latency.ttft_s")

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        stamps = [stamp for row in sample for _, stamp in _events(row)]
        self._clock = Clock.of_sample(stamps, options.time_unit, find_zone(options.tz))

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: {"session_id", "input_tokens_total", "timing_events"} <= row.keys())

    def parse(self, row: Row) -> Iterable[Record]:
        prompt = as_count(row.get("input_tokens_total"), "prompt length")
        if prompt < 0:
            raise UnusableError("no prompt length")
        if prompt == 0:
            raise UnusableError("failed request")
        arrival, e2e = self._times(row)
        parts = [part for name in _CLAUDE_PARTS if (part := as_number(row.get(name))) is not None]
        self.counts["apart"] += len(parts) == len(_CLAUDE_PARTS) and sum(parts) != prompt
        client = as_label(row.get("user"))
        self.counts["clients"] += client is not None
        return (
            Record(
                arrival_ns=arrival,
                prompt_tokens=prompt,
                output_tokens=as_count(row.get("output_tokens"), "output length"),
                cached_tokens=as_count(row.get("prefix_tokens"), "cached tokens"),
                e2e_s=e2e,
                model=as_label(row.get("model")),
                client=client,
                session=as_label(row.get("session_id")),
                key=as_label(row.get("trace_key")),
            ),
        )

    def basis(self) -> Basis:
        notes = ["input_tokens_total includes the cached prefix_tokens"]
        if late := self.counts["late"]:
            notes.append(f"rounds without an input event, placed at their first output: {late}")
        if apart := self.counts["apart"]:
            notes.append(f"rounds whose total is not the sum of uncached, written and read tokens: {apart}")
        return Basis(
            clock=self._clock,
            arrival="the last input event before the first output, wall-clock time",
            notes=tuple(notes),
            unknown=() if self.counts["clients"] else not_told("Rounds of this file", "clients"),
        )

    def _times(self, row: Row) -> tuple[int, float]:
        """Arrival in nanoseconds, and seconds until the last output."""
        events = [(kind, self._clock.ns(stamp)) for kind, stamp in _events(row)]
        outputs = [stamp for kind, stamp in events if kind in _OUTPUTS]
        inputs = [stamp for kind, stamp in events if kind in _INPUTS and (not outputs or stamp <= min(outputs))]
        if not inputs and not outputs:
            raise UnusableError("no arrival time")
        if not inputs:
            self.counts["late"] += 1
            return min(outputs), math.nan
        arrival = max(inputs)
        return arrival, (max(outputs) - arrival) / 1e9 if outputs else math.nan


def _events(row: Row) -> list[tuple[str, object]]:
    """Kind and time of the events of a round that have both."""
    events = row.get("timing_events")
    return [
        (kind, stamp)
        for event in (events if isinstance(events, list) else ())
        if isinstance(event, dict)
        and isinstance(kind := event.get("event_type"), str)
        and (stamp := event.get("timestamp")) not in (None, "")
    ]
