"""Logprobs as a client sees them, in the two shapes of OpenAI's API.

Natural logarithms of the model's own distribution: the log-softmax of the raw logits, before temperature,
top-k, top-p and `min_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from engine.server.codec import TextCodec
from engine.step import TokenLogprobs

# OpenAI's stand-in for a logprob too small to say; JSON has no infinity.
_LEAST = -9999.0


class Scored(NamedTuple):
    """An output token: its id, its logprobs, and where its text begins in the output, characters."""

    token: int
    logprobs: TokenLogprobs | None
    offset: int


class TextLogprobs(Struct):
    """`logprobs` of a completion. `text_offset` counts characters of the output; the prompt is not in it."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TopLogprob(Struct):
    """A token that could have come, in a chat answer."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    """A token that came, in a chat answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """`logprobs` of a chat choice."""

    content: list[TokenLogprob]


def text_logprobs(codec: TextCodec, scored: Sequence[Scored]) -> TextLogprobs:
    """The shape of /v1/completions: the token itself is always among its top ones, as vLLM has it."""
    answer = TextLogprobs([], [], [], [])
    for token, logprobs, offset in scored:
        own, top = _values(logprobs)
        word = _word(codec.token_bytes(token))
        words: dict[str, float] = {}
        for other, value in top:
            words.setdefault(_word(codec.token_bytes(other)), value)
        words.setdefault(word, own)
        answer.tokens.append(word)
        answer.token_logprobs.append(own)
        answer.top_logprobs.append(words)
        answer.text_offset.append(offset)
    return answer


def chat_logprobs(codec: TextCodec, scored: Sequence[Scored]) -> ChatLogprobs:
    """The shape of /v1/chat/completions."""
    content = []
    for token, logprobs, _ in scored:
        own, top = _values(logprobs)
        raw = codec.token_bytes(token)
        others = [TopLogprob(_word(raw), value, list(raw)) for raw, value in _with_bytes(codec, top)]
        content.append(TokenLogprob(_word(raw), own, list(raw), others))
    return ChatLogprobs(content)


def _values(logprobs: TokenLogprobs | None) -> tuple[float, list[tuple[int, float]]]:
    """Floats that JSON has. An executor without a model gives none at all."""
    if logprobs is None:
        return _LEAST, []
    # max keeps its first argument where the second is no number.
    return max(_LEAST, logprobs.logprob), [(token, max(_LEAST, value)) for token, value in logprobs.top]


def _with_bytes(codec: TextCodec, top: Sequence[tuple[int, float]]) -> list[tuple[bytes, float]]:
    return [(codec.token_bytes(token), value) for token, value in top]


def _word(raw: bytes) -> str:
    """A token's text; one that holds a part of a character is worded by its bytes, as OpenAI does."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
