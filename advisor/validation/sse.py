"""Server-sent events of an OpenAI-style completion stream, read as they come.

Owns the bytes between two reads and the typed view of one event. Text is looked at for being there, never kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class _Choice(msgspec.Struct):
    text: str = ""
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def tokens(self) -> int:
        """Tokens of this chunk; where the server gives no ids, text counts as one."""
        return len(self.token_ids) if self.token_ids is not None else int(self.text != "")


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

    choices: list[_Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw | None = None

    @property
    def tokens(self) -> int:
        """Output tokens in this chunk."""
        return sum(choice.tokens for choice in self.choices)

    @property
    def has_token_ids(self) -> bool:
        """Whether `tokens` is a count of ids."""
        return any(choice.token_ids is not None for choice in self.choices)

    @property
    def finish_reason(self) -> str | None:
        """Why the generation ended, in its last chunk."""
        return next((choice.finish_reason for choice in self.choices if choice.finish_reason), None)


_decoder = msgspec.json.Decoder(Event)


class EventReader:
    """Splits a byte stream into events. `done` once the stream has said [DONE]."""

    def __init__(self) -> None:
        self.done = False
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events whose line ends in `data`. Raises msgspec.DecodeError on what is not JSON of this form."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # blank lines, comments that keep the connection alive, event names
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.done = True
            else:
                yield _decoder.decode(payload)
