"""The bodies of answers, in the exact shapes of OpenAI's API.

Owns the two dialects, text completions and chat, of one generation: its chunks as server-sent events and its
whole body. A chunk per token is sent while the model runs on the same cores, so encoding is one msgspec call.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

_encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


def event(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(body) + b"\n\n"


class CachedTokens(Struct):
    """Prompt tokens whose KV was in the prefix cache."""

    cached_tokens: int


class Usage(Struct):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens

    @classmethod
    def of(cls, prompt: int, completion: int, cached: int) -> Usage:
        """Usage from the three counts, tokens."""
        return cls(prompt, completion, prompt + completion, CachedTokens(cached))


class Delta(Struct):
    """What a chat chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class Reply(Struct):
    """The whole message of a chat answer."""

    content: str
    role: str = "assistant"
    refusal: None = None


class Choice(Struct):
    """The one choice of an answer or chunk; the dialect sets `text`, `delta` or `message`."""

    index: int = 0
    text: str | UnsetType = UNSET
    delta: Delta | UnsetType = UNSET
    message: Reply | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    logprobs: None = None
    finish_reason: str | None = None


class Answer(Struct):
    """An answer or a chunk of one."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET


class Dialect(Protocol):
    """How one endpoint words a generation. Chunks come as encoded events."""

    def opening(self) -> bytes:
        """What goes before the first token; may be empty."""
        ...

    def token(self, text: str, token_ids: list[int] | UnsetType) -> bytes:
        """The chunk of one token."""
        ...

    def closing(self, finish_reason: str) -> bytes:
        """The chunk that says why the generation ended."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """The chunk that holds the usage and no choice."""
        ...

    def whole(self, text: str, token_ids: list[int] | UnsetType, finish_reason: str, usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        ...


class _Envelope:
    """Fields that every chunk of one generation repeats. `created` is in Unix seconds."""

    id_prefix: str
    chunk_object: str
    object: str

    def __init__(self, request_id: str, created: int, model: str, *, include_usage: bool) -> None:
        self._id, self._created, self._model = request_id, created, model
        # OpenAI: with include_usage every other chunk carries a null usage.
        self._no_usage: UnsetType | None = None if include_usage else UNSET

    def _chunk(self, choice: Choice) -> bytes:
        return event(Answer(self._id, self.chunk_object, self._created, self._model, [choice], self._no_usage))

    def usage(self, usage: Usage) -> bytes:
        return event(Answer(self._id, self.chunk_object, self._created, self._model, [], usage))

    def _whole(self, choice: Choice, usage: Usage) -> bytes:
        return _encode(Answer(self._id, self.object, self._created, self._model, [choice], usage))


class TextDialect(_Envelope):
    """/v1/completions."""

    id_prefix = "cmpl"
    chunk_object = object = "text_completion"

    def opening(self) -> bytes:
        return b""

    def token(self, text: str, token_ids: list[int] | UnsetType) -> bytes:
        return self._chunk(Choice(text=text, token_ids=token_ids))

    def closing(self, finish_reason: str) -> bytes:
        return self._chunk(Choice(text="", finish_reason=finish_reason))

    def whole(self, text: str, token_ids: list[int] | UnsetType, finish_reason: str, usage: Usage) -> bytes:
        return self._whole(Choice(text=text, token_ids=token_ids, finish_reason=finish_reason), usage)


class ChatDialect(_Envelope):
    """/v1/chat/completions."""

    id_prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"
    object = "chat.completion"

    def opening(self) -> bytes:
        return self._chunk(Choice(delta=Delta(role="assistant", content="")))

    def token(self, text: str, token_ids: list[int] | UnsetType) -> bytes:
        return self._chunk(Choice(delta=Delta(content=text), token_ids=token_ids))

    def closing(self, finish_reason: str) -> bytes:
        return self._chunk(Choice(delta=Delta(), finish_reason=finish_reason))

    def whole(self, text: str, token_ids: list[int] | UnsetType, finish_reason: str, usage: Usage) -> bytes:
        choice = Choice(message=Reply(text), token_ids=token_ids, finish_reason=finish_reason)
        return self._whole(choice, usage)
