"""Server-sent events of an OpenAI-style stream, of completions or of chat, read as they come.

Owns the bytes between two reads and the typed view of one event. Text is looked at for being there, never kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

_MOST_LINE = 16 * 2**20  # bytes of one event; a stream without line ends would be kept for ever
_Text = str | list[Any] | None  # some servers send a list of parts


class StreamError(Exception):
    """The stream holds something that is no event."""


class _Delta(msgspec.Struct):
    content: _Text = None
    reasoning_content: _Text = None
    reasoning: _Text = None
    refusal: _Text = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None

    @property
    def says(self) -> bool:
        """Whether it holds anything that was generated; a role alone was not."""
        return bool(
            self.content
            or self.reasoning_content
            or self.reasoning
            or self.tool_calls
            or self.refusal
            or self.function_call
        )


class _Choice(msgspec.Struct):
    text: _Text = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def tokens(self) -> int:
        """Tokens of this chunk; where the server gives no ids, whatever it says counts as one."""
        if self.token_ids is not None:
            return len(self.token_ids)
        return int(bool(self.text) or (self.delta is not None and self.delta.says))


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Token counts by the server."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens taken from the prefix cache; None where the server does not say."""
        return None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class Event(msgspec.Struct):
    """One chunk of the stream."""

    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None

    @property
    def tokens(self) -> int:
        """Output tokens in this chunk."""
        return sum([choice.tokens for choice in self.choices]) if self.choices else 0

    @property
    def has_token_ids(self) -> bool:
        """Whether `tokens` is a count of ids."""
        return any(choice.token_ids is not None for choice in self.choices or ())

    @property
    def finish_reason(self) -> str | None:
        """Why the generation ended, in its last chunk."""
        return next((choice.finish_reason for choice in self.choices or () if choice.finish_reason), None)


_decoder = msgspec.json.Decoder(Event)


class EventReader:
    """Splits a byte stream into events. `done` once the stream has said [DONE]."""

    def __init__(self) -> None:
        self.done = False
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events whose line ends in `data`. Raises StreamError on what is not JSON of this form."""
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # blank lines, comments that keep the connection alive, event names
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.done = True
                continue
            try:
                event = _decoder.decode(payload)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise StreamError("an event that is no chunk of a completion") from None
            yield event
        if len(self._rest) > _MOST_LINE:
            raise StreamError("an event without an end")
