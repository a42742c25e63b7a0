"""Streamed answers as logs keep them: server-sent events in one text, lists of chunks, or a row a chunk.

Only the last chunk of OpenAI's streams has the usage, and only where the request asked for it; Anthropic's
first event has the prompt's and a later one the output's. Never keeps what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from advisor.logs.record import Row

_HOLDERS = ("response", "response_body", "chunks", "chunk", "events", "stream", "body", "data")
_CHUNK = "chat.completion.chunk"
_OBJECTS = (_CHUNK, "text_completion")
_TYPES = ("message_", "content_block_", "response.", "ping", "error")  # of Anthropic's and the Responses API's
_LAST = ("message_stop", "response.completed", "response.incomplete")


def folded(value: object) -> dict[str, Any] | None:
    """A response with the usage of a streamed one, and its text where whole; None where it is no stream."""
    usage: dict[str, Any] = {}
    texts: list[str] = []
    model: object = None
    seen = whole = False
    for event in _events(value):
        if event.get("object") not in _OBJECTS and not str(event.get("type")).startswith(_TYPES):
            return None
        seen = True
        for holder in (event.get("message"), event.get("response"), event):
            if isinstance(holder, dict):
                model = holder.get("model") or model
                if isinstance(counts := holder.get("usage"), dict):
                    usage |= {name: count for name, count in counts.items() if count is not None}
        if event.get("type") == "message_start":
            usage.pop("output_tokens", None)  # a placeholder
        text, last = _delta(event)
        texts.append(text)
        whole = whole or last
    if not seen and not _is_text_stream(value):
        return None
    answer: dict[str, Any] = {"usage": usage}
    if whole:
        answer["choices"] = [{"text": "".join(texts)}]
    return answer | {"model": model} if model else answer


def unstream(row: Row) -> Row:
    """The row with its streamed answer as one response; the same row where it has none."""
    for name in _HOLDERS:
        value = row.get(name)
        if isinstance(value, list | str) and (answer := folded(value)) is not None:
            return {**row, "response": answer}
    return row


def chunk_of(row: Row) -> Mapping[str, Any] | None:
    """The chunk that a row is, or wraps; None where it is none."""
    for holder in (row, *(row[name] for name in _HOLDERS if name in row)):
        if isinstance(holder, dict) and _is_chunk(holder) and isinstance(holder.get("id"), str):
            return holder
    return None


def _is_chunk(event: Mapping[str, Any]) -> bool:
    return event.get("object") == _CHUNK


def _is_text_stream(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("data:", "event:"))


def _events(value: object) -> Iterator[Mapping[str, Any]]:
    """The events of a stream, of a text as far as they can be read."""
    if isinstance(value, str):
        for line in value.split("\n") if _is_text_stream(value) else ():
            if line.startswith("data:") and (data := line[5:].strip()).startswith("{"):
                try:
                    event = msgspec.json.decode(data)
                except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
                    continue  # the log cut the stream short
                yield event
    elif isinstance(value, Sequence):
        for item in value:
            if isinstance(item, dict):
                yield item
            elif isinstance(item, str):
                yield from _events(item)


def _delta(event: Mapping[str, Any]) -> tuple[str, bool]:
    """The text that a chunk adds, and whether it ends the answer."""
    choices = event.get("choices")
    holder: Any = choices[0] if isinstance(choices, list) and choices else event
    if not isinstance(holder, dict):
        return "", False
    delta = holder.get("delta", holder.get("text"))
    text = (delta.get("content") or delta.get("text")) if isinstance(delta, dict) else delta
    last = bool(holder.get("finish_reason")) or event.get("type") in _LAST
    return text if isinstance(text, str) else "", last
