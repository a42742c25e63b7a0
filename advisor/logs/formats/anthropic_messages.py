"""Logged requests and responses of Anthropic's Messages API, with times under commonly given names.

Found as in `generic`, but for the token counts, which never include cached tokens. Prompts are tools, system,
messages in this order, as the API puts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from advisor.logs.chunks import folded
from advisor.logs.formats.anthropic import cache_notes, count_lives
from advisor.logs.formats.base import as_row, mostly
from advisor.logs.formats.generic import Generic
from advisor.logs.prompts import parsed
from advisor.logs.record import Record, Row

_ANSWERS = ("response", "response_body", "body", "output", "events")


class AnthropicMessages(Generic):
    """A `request` with its `response` of type `message`, or the response alone."""

    name: ClassVar[str] = "anthropic-messages"
    fields: ClassVar[tuple[str, ...]] = ("timestamp", "request", "response", "usage", "stop_reason")
    cached_apart: ClassVar[bool] = True

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: _usage(row) is not None)

    def parse(self, row: Row) -> Iterable[Record]:
        records = super().parse(row)
        count_lives(as_row(_usage(row)), self.counts)
        return records

    def _notes(self) -> Iterable[str]:
        yield from super()._notes()
        yield from cache_notes(self.counts)


def _usage(row: Row) -> Row | None:
    """The usage of an answer in Anthropic's shape; None where the row has none."""
    for answer in _answers(row):
        usage = answer.get("usage")
        if answer.get("type") == "message" and isinstance(usage, dict) and "input_tokens" in usage:
            return usage
    return None


def _answers(row: Row) -> Iterator[Row]:
    yield row
    for name in _ANSWERS:
        value: Any = parsed(row.get(name))
        if isinstance(value, dict):
            yield value
            yield from (inner for key in ("body", "message") if isinstance(inner := value.get(key), dict))
        elif isinstance(value, list | str) and _is_stream(value):
            yield {"type": "message"} | (folded(value) or {})


def _is_stream(answer: list[Any] | str) -> bool:
    """Whether an answer is events of the API, as objects or as text."""
    first = answer[:100] if isinstance(answer, str) else str(answer[:1])[:100]
    return "message_start" in first
