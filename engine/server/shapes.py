"""The bodies of answers, in the exact shapes of OpenAI's API.

Owns the two dialects, text completions and chat, of one answer: its chunks as server-sent events and its whole
body. A chunk per token is sent while the model runs on the same cores, so encoding is one msgspec call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from engine.server.codec import TextCodec
from engine.server.logprobs import ChatLogprobs, Scored, TextLogprobs, chat_logprobs, text_logprobs
from engine.server.two_call import KvOffer

_encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


def event(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(body) + b"\n\n"


class CachedTokens(Struct):
    """Prompt tokens whose KV was in the prefix cache."""

    cached_tokens: int


class Usage(Struct):
    """Tokens of one answer; a prompt counts once, however many choices it has."""

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


class TextChoice(Struct):
    """One choice of a completion or a chunk of one."""

    index: int
    text: str
    token_ids: list[int] | UnsetType = UNSET
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None


class ChatChoice(Struct):
    """One choice of a chat answer, which has a `message`, or of a chunk of one, which has a `delta`."""

    index: int
    delta: Delta | UnsetType = UNSET
    message: Reply | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


C = TypeVar("C", TextChoice, ChatChoice)
Transfer = KvOffer | UnsetType | None


class Answer(Struct, Generic[C]):
    """An answer or a chunk of one."""

    id: str
    object: str
    created: int
    model: str
    choices: list[C]
    usage: Usage | UnsetType | None = UNSET
    kv_transfer_params: KvOffer | UnsetType | None = UNSET


class Finished(NamedTuple):
    """All of one choice. `scored` is empty where no logprobs are asked for."""

    text: str
    token_ids: list[int] | UnsetType
    scored: Sequence[Scored]
    reason: str


class Dialect(Protocol):
    """How one endpoint words an answer. Chunks come as encoded events; `index` is the choice's."""

    def opening(self, index: int) -> bytes:
        """What goes before the first token; may be empty."""
        ...

    def token(self, index: int, text: str, ids: list[int] | UnsetType, scored: Sequence[Scored]) -> bytes:
        """The chunk of one token."""
        ...

    def closing(self, index: int, reason: str) -> bytes:
        """The chunk that says why the choice ended."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """The chunk that holds the usage and no choice."""
        ...

    def whole(self, choices: Sequence[Finished], usage: Usage, transfer: Transfer = UNSET) -> bytes:
        """The body of an answer that is not streamed; `transfer` answers the first of two calls."""
        ...


class _Envelope(Generic[C]):
    """Fields that every chunk of one answer repeats. `created` is in Unix seconds."""

    id_prefix: str
    chunk_object: str
    object: str

    def __init__(
        self, answer_id: str, created: int, model: str, codec: TextCodec, *, include_usage: bool
    ) -> None:
        self._id, self._created, self._model, self._codec = answer_id, created, model, codec
        # OpenAI: with include_usage every other chunk carries a null usage.
        self._no_usage: UnsetType | None = None if include_usage else UNSET

    def _chunk(self, choice: C) -> bytes:
        return event(Answer(self._id, self.chunk_object, self._created, self._model, [choice], self._no_usage))

    def usage(self, usage: Usage) -> bytes:
        return event(Answer(self._id, self.chunk_object, self._created, self._model, [], usage))

    def _whole(self, choices: list[C], usage: Usage, transfer: Transfer) -> bytes:
        return _encode(Answer(self._id, self.object, self._created, self._model, choices, usage, transfer))


class TextDialect(_Envelope[TextChoice]):
    """/v1/completions."""

    id_prefix = "cmpl"
    chunk_object = object = "text_completion"

    def opening(self, index: int) -> bytes:  # noqa: ARG002 - as chat, which has one
        return b""

    def token(self, index: int, text: str, ids: list[int] | UnsetType, scored: Sequence[Scored]) -> bytes:
        logprobs = text_logprobs(self._codec, scored) if scored else None
        return self._chunk(TextChoice(index, text=text, token_ids=ids, logprobs=logprobs))

    def closing(self, index: int, reason: str) -> bytes:
        return self._chunk(TextChoice(index, text="", finish_reason=reason))

    def whole(self, choices: Sequence[Finished], usage: Usage, transfer: Transfer = UNSET) -> bytes:
        answers = [
            TextChoice(
                index,
                text=one.text,
                token_ids=one.token_ids,
                logprobs=text_logprobs(self._codec, one.scored) if one.scored else None,
                finish_reason=one.reason,
            )
            for index, one in enumerate(choices)
        ]
        return self._whole(answers, usage, transfer)


class ChatDialect(_Envelope[ChatChoice]):
    """/v1/chat/completions."""

    id_prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"
    object = "chat.completion"

    def opening(self, index: int) -> bytes:
        return self._chunk(ChatChoice(index, delta=Delta(role="assistant", content="")))

    def token(self, index: int, text: str, ids: list[int] | UnsetType, scored: Sequence[Scored]) -> bytes:
        logprobs = chat_logprobs(self._codec, scored) if scored else None
        return self._chunk(ChatChoice(index, delta=Delta(content=text), token_ids=ids, logprobs=logprobs))

    def closing(self, index: int, reason: str) -> bytes:
        return self._chunk(ChatChoice(index, delta=Delta(), finish_reason=reason))

    def whole(self, choices: Sequence[Finished], usage: Usage, transfer: Transfer = UNSET) -> bytes:
        answers = [
            ChatChoice(
                index,
                message=Reply(one.text),
                token_ids=one.token_ids,
                logprobs=chat_logprobs(self._codec, one.scored) if one.scored else None,
                finish_reason=one.reason,
            )
            for index, one in enumerate(choices)
        ]
        return self._whole(answers, usage, transfer)
