"""`profile_export.json` of Triton's perf_analyzer and GenAI-Perf: requests of a benchmark with their responses.

Streamed chunks are not tokens: output tokens are those of the usage that the server sent, else counted in the
text. Source: triton-inference-server/perf_analyzer, genai_perf/profile_data_parser.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from advisor.logs.formats.base import Basis, Format, Parsed, as_count, as_label, as_row
from advisor.logs.options import ReadOptions
from advisor.logs.prompts import as_prompt, find_prompt, parsed
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number, find_zone
from advisor.logs.trace import Unknown

_SERVER_LOG = "analyze the log of the server that was measured; docs/collecting-logs.md"


class Triton(Format):
    """A whole document: `experiments[].requests[]`."""

    name: ClassVar[str] = "triton"
    fields: ClassVar[tuple[str, ...]] = ("service_kind", "endpoint", "experiments", "version")
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown("clients", "a benchmark has one client", "analyze a log of traffic"),
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        stamps = [request.get("timestamp") for row in sample for request in _requests(row) if _is_row(request)]
        self._clock = Clock.of_sample(stamps, options.time_unit or "ns", find_zone(options.tz))

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return any(
            "response_timestamps" in as_row(request) for row in sample[:3] for request in _requests(row)[:10]
        )

    def parse(self, row: Row) -> Iterator[Parsed]:
        requests = _requests(row)
        if not requests:
            raise UnusableError("not a request")
        self.counts["experiments"] += len(row["experiments"])
        for request in requests:
            try:
                yield self._request(as_row(request))
            except UnusableError as error:
                yield error

    def basis(self) -> Basis:
        notes = ["a benchmark, not traffic: its client chose the arrivals and the lengths"]
        if self.counts["experiments"] > 1:
            notes.append(f"experiments in one log, each at a load of its own: {self.counts['experiments']}")
        unknown = []
        if not self.counts["cached"]:
            why = "the server's usage had no cached tokens"
            unknown.append(Unknown("sharing.cached_share", why, _SERVER_LOG))
        if not self.counts["sessions"]:
            unknown.append(Unknown("sessions", "the benchmark had no sessions", "analyze a log of traffic"))
        return Basis(
            clock=self._clock,
            arrival=f"timestamp, {self._clock.words}",
            tokens="usage of the responses" if self.counts["usage"] else "none logged",
            prefix="text of the payloads" if self.counts["prompts"] else None,
            notes=tuple(notes),
            unknown=tuple(unknown),
        )

    def _request(self, request: Row) -> Record:
        arrival = self._clock.ns(request.get("timestamp"))
        times = [as_number(stamp) for stamp in _list(request.get("response_timestamps"))]
        stamps = [round(stamp) for stamp in times if stamp is not None]
        if not stamps:
            raise UnusableError("failed request")
        answer = _Answer.of_outputs(_list(request.get("response_outputs")))
        if answer.error:
            raise UnusableError("failed request")
        inputs = as_row(request.get("request_inputs"))
        payload = as_row(parsed(inputs.get("payload"))) or inputs
        prompt = find_prompt(payload) or as_prompt(payload.get("text_input") or payload.get("input_ids"))
        prompt_tokens, output_tokens, cached = _usage(answer.usage)
        if prompt is None and prompt_tokens < 0:
            raise UnusableError("no prompt length")
        session = as_label(inputs.get("session_id"))
        for name, seen in (
            ("prompts", prompt), ("usage", answer.usage), ("sessions", session), ("cached", cached >= 0),
        ):  # fmt: skip
            self.counts[name] += bool(seen)
        first, last = stamps[0] - arrival, stamps[-1] - arrival
        return Record(
            arrival_ns=arrival,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached,
            ttft_s=max(0, first) / 1e9,
            e2e_s=max(0, last) / 1e9,
            prompt=prompt,
            output_text="".join(answer.parts) or None,
            model=as_label(payload.get("model")),
            session=session,
            status="ok",
        )


@dataclass(slots=True, repr=False)
class _Answer:
    """What the responses of one request say together."""

    parts: list[str] = field(default_factory=list)
    usage: Row = field(default_factory=dict)
    error: bool = False

    @classmethod
    def of_outputs(cls, outputs: Sequence[object]) -> _Answer:
        """Events may be split over responses, and several may be in one."""
        texts = [text for output in outputs if isinstance(text := as_row(output).get("response"), str)]
        answer = cls()
        whole = "".join(texts)
        if "data: " in whole[: whole.find("{") + 1] or whole.startswith("data:"):
            texts = [line.removeprefix("data:").strip() for line in whole.split("\n")]
        for text in texts:
            answer._add(as_row(parsed(text)))
        for output in outputs:  # of Triton's own protocol
            answer._add(as_row(output))
        return answer

    def _add(self, body: Row) -> None:
        self.error = self.error or bool(body.get("error"))
        self.usage = as_row(body.get("usage")) or self.usage
        choices = _list(body.get("choices"))
        first = as_row(choices[0]) if choices else {}
        for text in (
            as_row(first.get("delta")).get("content"), as_row(first.get("message")).get("content"),
            first.get("text"), body.get("text_output"),
        ):  # fmt: skip
            if isinstance(text, str):
                self.parts.append(text)


def _usage(usage: Row) -> tuple[int, int, int]:
    """Prompt, output and cached tokens; -1 where unknown."""
    details = as_row(usage.get("prompt_tokens_details"))
    return (
        as_count(usage.get("prompt_tokens"), "prompt length"),
        as_count(usage.get("completion_tokens"), "output length"),
        as_count(details.get("cached_tokens"), "cached tokens"),
    )


def _requests(row: Row) -> list[Any]:
    return [
        request
        for experiment in _list(row.get("experiments"))
        for request in _list(as_row(experiment).get("requests"))
    ]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_row(value: object) -> bool:
    return isinstance(value, dict)
