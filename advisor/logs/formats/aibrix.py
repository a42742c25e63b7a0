"""AIBrix workload files: requests that are sent together, with their text and the lengths they should have.

Source: vllm-project/aibrix, benchmarks. Times are milliseconds from the start. Older files write
`Prompt Length` and `Output Length`, newer ones `prompt_length`, `output_length` and a `session_id`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from advisor.logs.formats.base import Basis, Format, Parsed, as_count, as_label, mostly
from advisor.logs.formats.published import not_told
from advisor.logs.options import ReadOptions
from advisor.logs.record import Prompt, Record, Row, UnusableError
from advisor.logs.times import Clock, find_zone
from advisor.logs.trace import Unknown

_LENGTHS = ("Prompt Length", "prompt_length")


class AIBrix(Format):
    """`timestamp`, `requests[{"Prompt Length", "Output Length", prompt}]`; several requests a line."""

    name: ClassVar[str] = "aibrix"
    fields: ClassVar[tuple[str, ...]] = ("timestamp", "requests")
    cannot_tell: ClassVar[tuple[Unknown, ...]] = not_told(
        "AIBrix's workloads",
        "sharing.cached_share", "latency.ttft_s", "latency.e2e_s", "log.models", "clients",
    )  # fmt: skip

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        stamps = [row.get("timestamp") for row in sample]
        self._clock = Clock.of_sample(stamps, options.time_unit or "ms", find_zone(options.tz))

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, _is_aibrix)

    def parse(self, row: Row) -> Iterator[Parsed]:
        arrival = self._clock.ns(row.get("timestamp"))
        requests = row.get("requests")
        if not isinstance(requests, list) or not requests:
            raise UnusableError("no request in the row")
        for request in requests:
            try:
                yield self._record(request, arrival)
            except UnusableError as error:
                yield error

    def basis(self) -> Basis:
        return Basis(
            clock=self._clock,
            arrival=f"timestamp, {self._clock.words}",
            tokens="declared lengths",
            prefix="text of the prompts",
            notes=("a workload for a benchmark: its times were chosen, not observed",),
            unknown=() if self.counts["sessions"] else not_told("Rows of this workload", "sessions"),
        )

    def _record(self, request: object, arrival: int) -> Record:
        if not isinstance(request, dict):
            raise UnusableError("not a request")
        text = request.get("prompt")
        session = as_label(request.get("session_id"))
        self.counts["sessions"] += session is not None
        record = Record(
            arrival_ns=arrival,
            prompt_tokens=as_count(_first(request, *_LENGTHS), "prompt length"),
            output_tokens=as_count(_first(request, "Output Length", "output_length"), "output length"),
            prompt=Prompt(text=text) if isinstance(text, str) and text else None,
            session=session,
        )
        if record.prompt is None and record.prompt_tokens < 0:
            raise UnusableError("no prompt length")
        return record


def _is_aibrix(row: Row) -> bool:
    requests = row.get("requests")
    return (
        "timestamp" in row
        and isinstance(requests, list)
        and all(isinstance(request, dict) for request in requests)
        and any(name in request for request in requests[:1] for name in _LENGTHS)
    )


def _first(request: Mapping[str, Any], *names: str) -> Any:
    return next((request[name] for name in names if request.get(name) is not None), None)
