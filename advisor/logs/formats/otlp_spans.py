"""OTLP/JSON as plain spans and log events: attributes as values, times and ids as they stand.

Knows the export batches of the protocol (`resourceSpans`, `resourceLogs`) and two plainer forms: a document of
`spans` whose attributes are an object (kubernetes-sigs/inference-perf) and what OpenTelemetry's console
exporter prints, a span an object. Never interprets an attribute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advisor.logs.formats.base import as_label, as_row
from advisor.logs.record import Row

Attributes = Mapping[str, Any]

_SPANS = ("resourceSpans", ("scopeSpans", "instrumentationLibrarySpans"), "spans")  # the latter of old
_LOGS = ("resourceLogs", ("scopeLogs", "instrumentationLibraryLogs"), "logRecords")
_DEEPEST = 8  # values within values
_ERRORS = (2, "2", "STATUS_CODE_ERROR", "ERROR", "Error")


@dataclass(frozen=True, slots=True, repr=False)
class Event:
    """An event of a span, or a log record: what it is called, when it was, and what it says."""

    name: str
    time: object
    attributes: Attributes
    body: Any = None
    span: str | None = None  # key of the span it belongs to; None for one of its own


@dataclass(frozen=True, slots=True, repr=False)
class Span:
    """A span. `key` and `parent` name spans across traces."""

    key: str
    parent: str | None
    trace: str
    name: str
    start: object
    end: object
    attributes: Attributes
    events: Sequence[Event]
    failed: bool


def is_batch(row: Row) -> bool:
    """Whether a row is an export batch, a document of spans, or a span."""
    if isinstance(row.get("resourceSpans"), list) or isinstance(row.get("resourceLogs"), list):
        return True
    spans = row.get("spans")
    if isinstance(spans, list):
        return any(isinstance(span, dict) and _is_plain(span) for span in spans[:10])
    return _is_plain(row)


def read_spans(row: Row) -> Iterator[Span]:
    """The spans of a row."""
    for item in _leaves(row, *_SPANS):
        yield _span(item)
    plain = row.get("spans") if isinstance(row.get("spans"), list) else [row]
    for item in plain or ():
        if isinstance(item, dict) and _is_plain(item):
            yield _plain_span(item)


def read_events(row: Row) -> Iterator[Event]:
    """The log records of a row."""
    for item in _leaves(row, *_LOGS):
        attributes = _decoded(item.get("attributes"))
        name = as_label(item.get("eventName")) or as_label(attributes.get("event.name")) or ""
        time = item.get("timeUnixNano")
        yield Event(
            name,
            item.get("observedTimeUnixNano") if time in (None, "", "0", 0) else time,
            attributes,
            _value(item.get("body"), _DEEPEST),
            span_key(item.get("traceId"), item.get("spanId")),
        )


def span_key(trace: object, span: object) -> str | None:
    """What names a span; None where there is no id."""
    name = as_label(span)
    return None if name is None else f"{as_label(trace) or ''}.{name}"


def _leaves(row: Row, outer: str, inner: Sequence[str], leaf: str) -> Iterator[Row]:
    """The records of an export batch."""
    for group in _objects(row.get(outer)):
        for scope in (scope for name in inner for scope in _objects(group.get(name))):
            yield from _objects(scope.get(leaf))


def _span(item: Row) -> Span:
    trace = as_label(item.get("traceId")) or ""
    return Span(
        key=span_key(trace, item.get("spanId")) or "",
        parent=span_key(trace, item.get("parentSpanId")),
        trace=trace,
        name=_name(item),
        start=item.get("startTimeUnixNano"),
        end=item.get("endTimeUnixNano"),
        attributes=_decoded(item.get("attributes")),
        events=[
            Event(_name(event), event.get("timeUnixNano"), _decoded(event.get("attributes")))
            for event in _objects(item.get("events"))
        ],
        failed=as_row(item.get("status")).get("code") in _ERRORS,
    )


def _is_plain(row: Row) -> bool:
    attributes = row.get("attributes")
    has_id = "span_id" in row or isinstance(row.get("context"), dict)
    return isinstance(attributes, dict) and has_id and "start_time" in row


def _plain_span(item: Row) -> Span:
    context = as_row(item.get("context"))
    status = as_row(item.get("status"))
    trace = as_label(item.get("trace_id", context.get("trace_id"))) or ""
    return Span(
        key=span_key(trace, item.get("span_id", context.get("span_id"))) or "",
        parent=span_key(trace, item.get("parent_span_id", item.get("parent_id"))),
        trace=trace,
        name=_name(item),
        start=item.get("start_time"),
        end=item.get("end_time"),
        attributes=item["attributes"],
        events=[
            Event(_name(event), event.get("timestamp"), as_row(event.get("attributes")))
            for event in _objects(item.get("events"))
        ],
        failed=status.get("code", status.get("status_code")) in _ERRORS,
    )


def _name(item: Row) -> str:
    return as_label(item.get("name")) or ""


def _objects(value: object) -> Iterator[Row]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _decoded(pairs: object) -> dict[str, Any]:
    """An attribute list as an object."""
    decoded = {}
    for pair in _objects(pairs):
        key = pair.get("key")
        if isinstance(key, str):
            decoded[key] = _value(pair.get("value"), _DEEPEST)
    return decoded


def _value(value: object, depth: int) -> Any:
    """The value of an AnyValue: 64-bit integers are strings there, lists and objects are wrapped."""
    if not isinstance(value, dict) or not depth:
        return value if isinstance(value, str) else None
    for name, item in value.items():
        if name == "arrayValue":
            return [_value(entry, depth - 1) for entry in _objects(as_row(item).get("values"))]
        if name == "kvlistValue":
            pairs = list(_objects(as_row(item).get("values")))
            return {
                pair["key"]: _value(pair.get("value"), depth - 1)
                for pair in pairs
                if isinstance(pair.get("key"), str)
            }
        return item
    return None
