"""JSON lines or CSV whose columns are found by name: aliases, or what `--map` says.

Prompts are found too, where rows have them.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from advisor.logs.chunks import chunk_of, unstream
from advisor.logs.fields import ARRIVALS, E2ES, ENDS, TTFTS, Fields
from advisor.logs.formats.base import Basis, Format, as_count, as_label, mostly
from advisor.logs.operations import why_no_request
from advisor.logs.options import TIME_UNITS, ReadOptions
from advisor.logs.prompts import as_prompt, as_sent, find_output, find_prompt, history_elsewhere, parsed
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number, find_zone
from advisor.logs.trace import Unknown

_OK = frozenset((
    "ok", "success", "succeeded", "successful", "completed", "complete", "done", "true", "finished", "stop",
    "length", "eos",
))  # fmt: skip
_SHORT_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,40}")
_MILLISECONDS_FROM = 120.0  # a median latency above it, without a unit in the name, is in milliseconds
_TEXTS = frozenset(("prompt", "input", "text", "messages", "output", "completion", "answer", "content"))
_USAGE = 'send stream_options {"include_usage": true} and log the last chunk'
NO_STREAM_USAGE = (
    Unknown("lengths.prompt", "streamed answers were logged without their usage", _USAGE),
    Unknown("lengths.output", "streamed answers were logged without their usage", _USAGE),
)


class Generic(Format):
    """One request a row, under names that people commonly give."""

    name: ClassVar[str] = "generic"
    fields: ClassVar[tuple[str, ...]] = ("timestamp", "prompt_tokens", "completion_tokens", "latency", "model")
    cached_apart: ClassVar[bool] = False  # whether the format's prompt counts never include cached tokens

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        self._fields = Fields(options.field_map)
        self._zone = find_zone(options.tz)
        found = [self._fields.find(row) for row in sample]
        self._arrival = next((name for name in ("arrival", "end") if any(name in row for row in found)), None)
        paths = {name: self._fields.locate(sample, name) for name in ("arrival", "end", "ttft", "e2e")}
        self._arrival_path = None if self._arrival is None else paths[self._arrival]
        self._clocks = {
            name: Clock.of_sample(
                [row.get(name) for row in found],
                options.time_unit or self._fields.unit(paths[name], units),
                self._zone,
            )
            for name, units in (("arrival", ARRIVALS), ("end", ENDS))
        }
        self._seconds = {
            name: _duration_scale([row.get(name) for row in found], self._fields.unit(paths[name], units))
            for name, units in (("ttft", TTFTS), ("e2e", E2ES))
        }
        self._one_clock = self._clocks["arrival"].epoch == self._clocks["end"].epoch

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        fields = Fields()
        return mostly(sample, lambda row: "prompt_tokens" in fields.find(row))

    def parse(self, row: Row) -> Iterable[Record]:
        found = self._fields.find(row)
        if "prompt_tokens" not in found and (whole := _unwrapped(row)) is not row:
            row, found = whole, self._fields.find(whole)
        route, model = as_label(found.get("route")), as_label(found.get("model"))
        status = read_status(found.get("status"), found.get("error"))
        prompt_tokens = as_count(found.get("prompt_tokens"), "prompt length")
        output_tokens = as_count(found.get("output_tokens"), "output length")
        if (reason := why_no_request(found, route, model, output_tokens)) is not None:
            raise UnusableError(reason)
        output_text = _output_text(row, found) if output_tokens < 0 else None
        failed = status not in (None, "ok") or prompt_tokens == 0
        if failed and output_tokens <= 0 and not output_text:
            raise UnusableError("failed request")
        prompt = as_prompt(found["prompt"]) if "prompt" in found else find_prompt(row)
        key = None if prompt is not None else self._stream(row, prompt_tokens)
        self.counts["prompts"] += prompt is not None
        arrival, e2e = self._times(found)
        cached = as_count(found.get("cached_tokens"), "cached tokens")
        return (
            Record(
                arrival_ns=arrival,
                prompt_tokens=self._with_cache(found, prompt_tokens, output_tokens, cached),
                output_tokens=output_tokens,
                cached_tokens=cached,
                ttft_s=self._duration(found, "ttft"),
                e2e_s=e2e,
                prompt=prompt,
                output_text=output_text,
                model=model,
                route=route,
                client=as_label(found.get("client")),
                session=as_label(found.get("session")),
                status=status,
                key=key,
            ),
        )

    def basis(self) -> Basis:
        clock = self._clocks[self._arrival] if self._arrival else None
        return Basis(
            clock=clock,
            arrival=self._arrival_basis(clock),
            prefix="text of the prompts" if self.counts["prompts"] else None,
            notes=tuple(self._notes()),
            unknown=NO_STREAM_USAGE if self.counts["chunks"] and not self.counts["chunks with usage"] else (),
        )

    def _notes(self) -> Iterable[str]:
        if apart := self.counts["cached apart"]:
            yield f"rows that count cached tokens apart from the prompt, so they were added: {apart}"
        if chunks := self.counts["chunks"]:
            yield f"rows that are chunks of streamed answers, joined by their id: {chunks}"
        if elsewhere := self.counts["history elsewhere"]:
            yield f"requests that continue a conversation kept by the server, so of unknown prompt: {elsewhere}"

    def _stream(self, row: Row, prompt_tokens: int) -> str | None:
        """The key of a row that is a chunk of a streamed answer. Raises UnusableError for one of no length."""
        if (chunk := chunk_of(row)) is not None:
            self.counts["chunks"] += 1
            self.counts["chunks with usage"] += prompt_tokens >= 0
            return str(chunk["id"])
        if history_elsewhere(row):
            self.counts["history elsewhere"] += 1
        elif prompt_tokens < 0:
            raise UnusableError("no prompt length")
        return None

    def _times(self, found: Mapping[str, Any]) -> tuple[int | None, float]:
        """Arrival in nanoseconds and seconds until the end; each from the other two where need be."""
        e2e = self._duration(found, "e2e")
        if "arrival" in found:
            arrival = self._clocks["arrival"].ns(found["arrival"])
            if math.isnan(e2e) and "end" in found and self._one_clock:
                with contextlib.suppress(UnusableError):  # a damaged end costs the latency, not the row
                    e2e = max(0, self._clocks["end"].ns(found["end"]) - arrival) / 1e9
            return arrival, e2e
        if "end" in found and (self._arrival == "end" or not math.isnan(e2e)):
            end = self._clocks["end"].ns(found["end"])
            return end - (0 if math.isnan(e2e) else round(e2e * 1e9)), e2e
        if self._arrival is not None:
            raise UnusableError("no arrival time")
        return None, e2e

    def _arrival_basis(self, clock: Clock | None) -> str:
        if clock is None:
            return "none"
        if self._arrival == "end":
            return f"{self._arrival_path} less the latency where logged, {clock.words}"
        return f"{self._arrival_path}, {clock.words}"

    def _duration(self, found: Mapping[str, Any], name: str) -> float:
        number = as_number(found.get(name))
        return math.nan if number is None or number < 0 else number * self._seconds[name]

    def _with_cache(self, found: Mapping[str, Any], prompt: int, output: int, cached: int) -> int:
        """Prompt tokens with the cached ones, where the row's count leaves them out.

        It does where it is too small to hold them, where the total says so, or by the names: Anthropic's
        `input_tokens` excludes what `cache_read_input_tokens` counts, OpenAI's `prompt_tokens` does not.
        """
        written = as_count(found.get("cache_write"), "cached tokens")
        kept = max(0, cached) + max(0, written)
        if prompt < 0 or not kept:
            return prompt
        total = as_number(found.get("total_tokens"))
        apart = (
            self.cached_apart
            or prompt < kept
            or (output >= 0 and total == prompt + kept + output)
            or ("counts_all" not in found and ("cache_write" in found or "counts_rest" in found))
        )
        self.counts["cached apart"] += apart
        return prompt + kept if apart else prompt


def read_status(status: object, error: object) -> str | None:
    """What became of a request: "ok", a short name of what went wrong, None where nothing is said.

    An error's message may quote the prompt, so it is never taken.
    """
    if error and str(error).lower() not in ("false", "0", "{}", "[]"):
        return error if isinstance(error, str) and _SHORT_NAME.fullmatch(error) else "error"
    if status is None:
        return None
    if isinstance(status, bool):
        return "ok" if status else "error"
    number = as_number(status)
    if number is not None:
        return "ok" if 200 <= number < 300 else str(int(number))
    if not isinstance(status, str):
        return None
    return "ok" if status.lower() in _OK else status if _SHORT_NAME.fullmatch(status) else "error"


def _unwrapped(row: Row) -> Row:
    """The row with bodies that were logged as JSON text as objects, and a streamed answer as one response."""
    texts = [
        name for name, value in row.items() if type(value) is str and value[:1] == "{" and name not in _TEXTS
    ]
    return unstream({**row, **{name: parsed(row[name]) for name in texts}} if texts else row)


def _output_text(row: Row, found: Mapping[str, Any]) -> str | None:
    output = found.get("output")
    return output if isinstance(output, str) and not as_sent(output) else find_output(row)


def _duration_scale(values: Sequence[object], unit: str | None) -> float:
    """Seconds in one unit of a latency field; without a unit in its name, by the size of its median."""
    if unit is not None:
        return TIME_UNITS[unit] / 1e9
    numbers = [number for value in values if (number := as_number(value)) is not None]
    return 1e-3 if numbers and statistics.median(numbers) > _MILLISECONDS_FROM else 1.0
