"""OpenTelemetry traces and log events as OTLP/JSON, an export batch a line; also plain spans.

One reader for three families of names (see `otlp_names`). Only spans of calls count: agents and tools around
them, embeddings and transport do not, and several spans of one call are one request (see `otlp_kin`). Log
events with messages are joined to their span. Batches are in no order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from advisor.logs.formats import otlp_names as names
from advisor.logs.formats.base import Basis, Format, Parsed, as_label, as_seconds, mostly
from advisor.logs.formats.gaps import is_known, left_open, note_known
from advisor.logs.formats.generic import read_status
from advisor.logs.formats.otlp_gaps import TOLD, gaps_of
from advisor.logs.formats.otlp_kin import Call, Kin
from advisor.logs.formats.otlp_messages import (
    CHOICE,
    DETAILS,
    CutError,
    answer_of,
    check_whole,
    is_message,
    longest_texts,
    prompt_of,
)
from advisor.logs.formats.otlp_spans import Attributes, Event, Span, is_batch, read_events, read_spans
from advisor.logs.operations import OTHER
from advisor.logs.options import ReadOptions
from advisor.logs.record import Prompt, Record, Row, UnusableError
from advisor.logs.times import Clock, find_zone

NO_REQUEST = "not a request"
SUM = "span that sums up the calls below it"
_EMPTY = Record()


class OTLP(Format):
    """`resourceSpans` and `resourceLogs`, or `spans` with `attributes`."""

    name: ClassVar[str] = "otlp"
    fields: ClassVar[tuple[str, ...]] = ("resourceSpans", "resourceLogs", "scopeSpans", "spans", "attributes")
    ordered: ClassVar[bool] = True  # spans of one call come in several batches

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        spans = [span for row in sample for span in read_spans(row)]
        events = [event for row in sample for event in read_events(row)]
        stamps: list[object] = [span.start for span in spans]
        stamps = stamps or [event.time for event in events]
        self._clock = Clock.of_sample(stamps, options.time_unit, find_zone(options.tz))
        self._limit = longest_texts(span.attributes for span in spans)
        self._kin = Kin()

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, is_batch)

    def parse(self, row: Row) -> Iterable[Parsed]:
        items = [*self._spans(row), *self._events(row)]
        if not items:
            raise UnusableError(NO_REQUEST)
        for item in items:
            if isinstance(item, Record):
                note_known(item, TOLD, self.counts)
        return items

    def basis(self) -> Basis:
        field = "start of the span" if self.counts["spans"] else "time of the event, at the end of a call"
        return Basis(
            clock=self._clock,
            arrival=f"{field}, {self._clock.words}",
            tokens=self._families(),
            prefix="text of the prompts" if self.counts["told prompt"] else None,
            notes=tuple(self._notes()),
            unknown=left_open(gaps_of(self.counts), self.counts),
        )

    def _families(self) -> str:
        """Which names were read, and in how many spans where there are several."""
        counts = [(words, self.counts[f"names {family}"]) for family, words in names.FAMILIES.items()]
        seen = [(words, count) for words, count in counts if count]
        if len(seen) == 1:
            return seen[0][0]
        return ", ".join(f"{words}: {count}" for words, count in seen) or "none"

    def _notes(self) -> Iterator[str]:
        if apart := self.counts["cached apart"]:
            yield f"spans that count cached tokens apart from the prompt, so they were added: {apart}"
        if kin := self.counts["kin"]:
            yield f"further spans of a call that another span tells of, counted once: {kin}"
        if cut := self.counts["cut"]:
            yield f"prompts that an attribute limit cut, so of unknown content: {cut}"

    def _spans(self, row: Row) -> Iterator[Parsed]:
        calls: list[Span] = []
        for span in read_spans(row):
            kind = names.kind_of(span.name, span.attributes)
            if kind == "call":
                calls.append(span)
                continue
            if kind == "transport":
                self._kin.pass_by(span.key, span.parent)
            else:
                self._kin.part(span.key)
            yield UnusableError(OTHER if kind == "other" else NO_REQUEST)
        for span in calls:
            try:
                yield self._call(span)
            except UnusableError as error:
                yield error

    def _call(self, span: Span) -> Record:
        """The request of a span. Raises UnusableError."""
        attributes = span.attributes
        start, e2e = self._clock.ns(span.start), self._e2e(span)
        record = self._record(attributes, span.events, failed=span.failed)
        self.counts["spans"] += 1
        record.arrival_ns = start
        record.e2e_s = as_seconds(attributes.get("gen_ai.latency.e2e"))
        if math.isnan(record.e2e_s):
            record.e2e_s = e2e
        record.ttft_s = self._ttft(span, start)
        if span.key:
            self._settle(span, record, start, e2e)
        return record

    def _settle(self, span: Span, record: Record, start: int, e2e: float) -> None:
        """Give the record the key of its request. Raises UnusableError for a sum.

        What a span around this one said stands, so that times are all of the outermost.
        """
        end = start + (0 if math.isnan(e2e) else round(e2e * 1e9))
        told = frozenset(name for name in TOLD if is_known(getattr(record, name)))
        call = Call(span.key, (record.prompt_tokens, record.output_tokens), start, end, told)
        settled = self._kin.resolve(span.key, span.parent, _call_id(span.trace, span.attributes), call)
        if settled is None:
            raise UnusableError(SUM)
        record.key, outer = settled
        self.counts["kin"] += record.key != span.key
        for name in told & outer.told if outer is not None else ():
            setattr(record, name, getattr(_EMPTY, name))

    def _record(self, attributes: Attributes, events: Sequence[Event], *, failed: bool) -> Record:
        """What attributes and events say, without times. Raises UnusableError for a failed request."""
        prompt_tokens, output_tokens, cached, apart = names.tokens_of(attributes)
        status = read_status(None, attributes.get("error.type")) or ("error" if failed else "ok")
        if status != "ok" and output_tokens <= 0:
            raise UnusableError("failed request")
        self.counts["cached apart"] += apart
        self.counts[f"names {names.family_of(attributes)}"] += 1
        return Record(
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached,
            prompt=self._prompt(attributes, events),
            output_text=answer_of(attributes, events) if output_tokens < 0 else None,
            model=as_label(names.first(attributes, names.MODEL)),
            client=as_label(names.first(attributes, names.CLIENT)),
            session=as_label(names.session_of(attributes)),
            status=status,
        )

    def _prompt(self, attributes: Attributes, events: Sequence[Event]) -> Prompt | None:
        try:
            check_whole(attributes, self._limit)
            return prompt_of(attributes, events)
        except CutError:
            self.counts["cut"] += 1
        except UnusableError:
            self.counts["unclear"] += 1
        return None

    def _e2e(self, span: Span) -> float:
        try:
            return max(0, self._clock.ns(span.end) - self._clock.ns(span.start)) / 1e9
        except UnusableError:  # a damaged end costs the latency, not the request
            return math.nan

    def _ttft(self, span: Span, start: int) -> float:
        logged = as_seconds(names.first(span.attributes, names.TTFT))
        if not math.isnan(logged):
            return logged
        for event in span.events:
            if event.name in names.FIRST_TOKEN_EVENTS:
                try:
                    return max(0, self._clock.ns(event.time) - start) / 1e9
                except UnusableError:
                    return math.nan
        return math.nan

    def _events(self, row: Row) -> Iterator[Parsed]:
        """The log records of a batch: whole calls, or messages, those of a span together."""
        messages: dict[str, list[Event]] = {}
        for event in read_events(row):
            if event.name == DETAILS and event.span is not None:
                yield from self._event_record(event.attributes, (), event)
            elif event.span is not None and (is_message(event) or event.name == CHOICE):
                messages.setdefault(event.span, []).append(event)
            else:
                yield UnusableError(NO_REQUEST)
        for events in messages.values():
            yield from self._event_record({}, events, events[0])

    def _event_record(self, attributes: Attributes, events: Sequence[Event], event: Event) -> Iterator[Parsed]:
        """A record that is merged with that of its span; without one, the event's time is all there is."""
        try:
            record = self._record(attributes, events, failed=False)
            record.arrival_ns = self._clock.ns(event.time)
        except UnusableError as error:
            yield error
            return
        if event.span is not None:
            trace = event.span.partition(".")[0]
            record.key = self._kin.tell(event.span, _call_id(trace, attributes), record.arrival_ns)
        yield record


def _call_id(trace: str, attributes: Attributes) -> str | None:
    """The provider's id of a call, within its trace."""
    call_id = as_label(names.first(attributes, names.CALL_ID))
    return None if call_id is None else f"{trace} {call_id}"
