"""OTLP/JSON as the protocol has it: attribute lists, wrapped values, 64-bit integers as strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from helpers.traffic import START_NS


def value(item: object) -> dict[str, Any]:
    """An AnyValue."""
    if isinstance(item, bool):
        return {"boolValue": item}
    if isinstance(item, int):
        return {"intValue": str(item)}
    if isinstance(item, float):
        return {"doubleValue": item}
    if isinstance(item, Mapping):
        return {"kvlistValue": {"values": attributes(item)}}
    if isinstance(item, Sequence) and not isinstance(item, str):
        return {"arrayValue": {"values": [value(entry) for entry in item]}}
    return {"stringValue": item}


def attributes(items: Mapping[str, object]) -> list[dict[str, Any]]:
    """An attribute list; what is None is left out."""
    return [{"key": key, "value": value(item)} for key, item in items.items() if item is not None]


def span(
    name: str,
    start_ns: int,
    end_ns: int,
    items: Mapping[str, object],
    *,
    trace: str = "5b8efff798038103d269b633813fc60c",
    span_id: str = "eee19b7ec3c1b174",
    parent: str = "",
    failed: bool = False,
    events: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """A span; times are nanoseconds since 1970."""
    return {
        "traceId": trace,
        "spanId": span_id,
        "parentSpanId": parent,
        "name": name,
        "kind": 3,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "attributes": attributes(items),
        "events": list(events),
        "status": {"code": 2, "message": "it broke"} if failed else {},
    }


def chat(span_id: str, usage: tuple[int, int] | None = (41, 17), /, **changes: Any) -> dict[str, Any]:
    """A call from second `at` to second `until` after the start, with current names; `more` attributes."""
    at, until = changes.pop("at", 0.0), changes.pop("until", 2.0)
    items: dict[str, object] = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    if usage is not None:
        items |= {"gen_ai.usage.input_tokens": usage[0], "gen_ai.usage.output_tokens": usage[1]}
    items |= changes.pop("more", {})
    start, end = (START_NS + round(seconds * 1e9) for seconds in (at, until))
    return span("chat m", start, end, items, span_id=span_id, **changes)


def http(span_id: str, parent: str, **changes: Any) -> dict[str, Any]:
    """A span of transport."""
    return span(
        "POST",
        START_NS,
        START_NS + 10**9,
        {"http.request.method": "POST"},
        span_id=span_id,
        parent=parent,
        **changes,
    )


def batch(*spans: Mapping[str, Any]) -> dict[str, Any]:
    """An export batch of spans."""
    resource = {"attributes": attributes({"service.name": "chat-api"})}
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": {"name": "x"}, "spans": list(spans)}]}
        ]
    }


def event(name: str, time_ns: int, items: Mapping[str, object]) -> dict[str, Any]:
    """An event of a span."""
    return {"timeUnixNano": str(time_ns), "name": name, "attributes": attributes(items)}


def log(
    name: str, time_ns: int, items: Mapping[str, object], *, body: object = None, span_id: str, trace: str
) -> dict[str, Any]:
    """A log record of a span."""
    record = {
        "timeUnixNano": str(time_ns),
        "traceId": trace,
        "spanId": span_id,
        "eventName": name,
        "attributes": attributes(items),
    }
    return record if body is None else {**record, "body": value(body)}


def logs(*records: Mapping[str, Any]) -> dict[str, Any]:
    """An export batch of log records."""
    return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": list(records)}]}]}
