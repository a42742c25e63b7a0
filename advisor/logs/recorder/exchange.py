"""One request and its answer, as a middleware or callback saw them, on the way to the thread that writes.

Holds text, in memory only, until its row is made; never prints it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

TOKEN_BEARING = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|arguments|delta|thinking)"\s*:\s*"[^"]'
)
_decode = msgspec.json.Decoder().decode


class Counts(NamedTuple):
    """Tokens as the answer counts them, cached ones part of the prompt; None where it does not say."""

    prompt: int | None = None
    output: int | None = None
    cached: int | None = None


@dataclass(slots=True, repr=False)
class Exchange:
    """What is known when the answer has ended. Client and session are keyed digests, not names."""

    route: str
    arrival_ns: int  # since 1970 UTC
    body: bytes | None  # the request as JSON; None where it was too large to keep
    status: str = "ok"  # or: aborted, error, or the HTTP status
    answer: bytes = b""  # JSON, or the beginning and the end of a stream
    streamed: bool = False
    counts: Counts | None = None  # where the answer needs no reading
    ttft_s: float | None = None
    e2e_s: float | None = None
    client: int | None = None
    session: int | None = None

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self.body or b"") + len(self.answer)

    def __repr__(self) -> str:
        return f"Exchange({self.route}, {self.status})"


def read_counts(exchange: Exchange) -> Counts:
    """The token counts of an answer: one JSON object, or server-sent events with usage in one of them."""
    if exchange.counts is not None:
        return exchange.counts
    documents = _events(exchange.answer) if exchange.streamed else _whole(exchange.answer)
    counts = Counts()
    for document in documents:
        found = count_usage(_usage(document))
        counts = Counts(*(old if old is not None else new for old, new in zip(counts, found, strict=True)))
        if None not in counts[:2]:
            break
    return counts


def count_usage(usage: Mapping[str, Any]) -> Counts:
    """Counts of a usage object of OpenAI's chat, completions and responses, or of Anthropic's messages."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    cached = _count(details.get("cached_tokens") if isinstance(details, Mapping) else None)
    prompt = _count(usage.get("prompt_tokens"))
    if prompt is None:
        prompt = _count(usage.get("input_tokens"))
        read = _count(usage.get("cache_read_input_tokens"))
        if prompt is not None and read is not None:  # Anthropic counts what no cache held
            prompt += read + (_count(usage.get("cache_creation_input_tokens")) or 0)
            cached = read
    output = _count(usage.get("completion_tokens"))
    if output is None:
        output = _count(usage.get("output_tokens"))
    return Counts(prompt or None, output, cached)  # a prompt of 0 tokens is a count that was lost


def _whole(answer: bytes) -> Iterator[Any]:
    try:
        yield _decode(answer)
    except (msgspec.DecodeError, RecursionError):
        return


def _events(answer: bytes) -> Iterator[Any]:
    """The events that speak of usage, the last first."""
    for line in reversed(answer.split(b"\n")):
        if line.startswith(b"data:") and b'"usage"' in line:
            yield from _whole(line[5:].strip())


def _usage(document: Any) -> Mapping[str, Any]:
    """The usage of an answer or an event; empty where it has none."""
    if not isinstance(document, Mapping):
        return {}
    for holder in (document, document.get("response"), document.get("message")):
        if isinstance(holder, Mapping) and isinstance(usage := holder.get("usage"), Mapping):
            return usage
    return {}


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
