"""Text of a batch of records becomes token counts and block ids, and is dropped.

Owns the calls to the tokenizer and the account of who counted what. Logged counts win over counted ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from advisor.logs.identity import BlockIndex, Path
from advisor.logs.record import Prompt, Record, UnusableError
from engine.errors import InputError

_WORTH_SAYING = 0.02  # difference between logged and tokenized counts


class TextEncoder(Protocol):
    """What turns text into token ids; `engine.text.Tokenizer` is one."""

    name: str

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of plain prompts."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Token ids of a rendered chat. Raises InputError where the template refuses it."""
        ...


class TextReader:
    """Reads the text of one log. Without an encoder only prompts of token ids can be read."""

    def __init__(self, encoder: TextEncoder | None, block_size: int) -> None:
        self._encoder = encoder
        self._index = BlockIndex(block_size, key=os.urandom(32))  # the key never leaves, nor does a digest
        self._rows = 0  # that got block ids
        self._unread = 0  # whose text no tokenizer could read
        self._refused = 0  # whose messages the chat template refuses
        self._plain_chats = 0  # whose messages were joined for want of a template
        self._with_media = 0
        self._counted = 0  # whose prompt length was counted here
        self._logged_tokens = 0  # of rows with a logged length and text ...
        self._text_tokens = 0  # ... and what is counted there

    @property
    def index(self) -> BlockIndex | None:
        """Where the ids came from; None when no row had any."""
        return self._index if self._rows else None

    @property
    def unread(self) -> int:
        """Rows with text that could not be tokenized."""
        return self._unread

    def take(self, records: Sequence[Record]) -> list[Path | UnusableError | None]:
        """Each record's path through the blocks, or None without content; its missing counts are filled in."""
        prompts = [record.prompt for record in records]
        tokens = self._encode_prompts(prompts)
        self._count_outputs(records)
        paths: list[Path | UnusableError | None] = []
        for record, ids in zip(records, tokens, strict=True):
            paths.append(self._identify(record, ids))
            record.prompt = record.output_text = None
        return paths

    def token_basis(self, logged: str, requests: int) -> str:
        """Where prompt lengths came from, given the format's words for those in the log."""
        if not self._counted or self._encoder is None:
            return logged
        tokenized = f"tokenized with {self._encoder.name}"
        return tokenized if self._counted == requests else f"{logged}, else {tokenized}"

    def notes(self) -> list[str]:
        """Assumptions worth a sentence."""
        notes = []
        if self._logged_tokens and abs(self._text_tokens / self._logged_tokens - 1) > _WORTH_SAYING:
            share = self._text_tokens / self._logged_tokens
            notes.append(
                f"the text of prompts gives {share:.1%} of the logged prompt tokens with this tokenizer"
            )
        if self._with_media:
            notes.append(f"prompts with pictures or other media, which have no block ids: {self._with_media}")
        if self._refused:
            notes.append(f"prompts without block ids, because the chat template refuses them: {self._refused}")
        if self._plain_chats:
            notes.append("messages were joined as plain text: the tokenizer has no chat template")
        return notes

    def _identify(self, record: Record, tokens: Sequence[int] | None) -> Path | UnusableError | None:
        if tokens is None:
            return self._without_tokens(record)
        if record.prompt_tokens < 0:
            record.prompt_tokens = len(tokens)
            self._counted += 1
        else:
            self._logged_tokens += record.prompt_tokens
            self._text_tokens += len(tokens)
        if record.prompt_tokens == 0:
            return UnusableError("empty prompt")
        self._rows += 1
        self._with_media += record.prompt is not None and record.prompt.media
        return self._index.add(record.model or "", tokens)

    def _without_tokens(self, record: Record) -> UnusableError | None:
        """A record without token ids stands, its content and maybe its length unknown; empty ones do not."""
        if record.prompt is None:
            return UnusableError("empty prompt") if record.prompt_tokens == 0 else None
        if self._encoder is None:
            self._unread += 1
        else:
            self._refused += 1
        return None

    def _encode_prompts(self, prompts: Sequence[Prompt | None]) -> list[Sequence[int] | None]:
        """Token ids, plain texts in one batch; None without content, encoder or the template's consent."""
        results: list[Sequence[int] | None] = [None if prompt is None else prompt.tokens for prompt in prompts]
        encoder = self._encoder
        if encoder is None:
            return results
        plain: list[tuple[int, str]] = []
        for row, prompt in enumerate(prompts):
            if prompt is None or prompt.tokens is not None:
                continue
            if prompt.text is not None:
                plain.append((row, prompt.text))
            elif encoder.has_chat_template:
                results[row] = _encode_chat(encoder, prompt)
            else:
                plain.append((row, _joined(prompt)))
                self._plain_chats += 1
        for (row, _), tokens in zip(plain, self._encode([text for _, text in plain]), strict=True):
            results[row] = tokens
        return results

    def _count_outputs(self, records: Sequence[Record]) -> None:
        if self._encoder is None:
            return
        rows = [record for record in records if record.output_tokens < 0 and record.output_text is not None]
        tokens = self._encode([record.output_text or "" for record in rows])
        for record, ids in zip(rows, tokens, strict=True):
            record.output_tokens = len(ids)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids. Without texts the encoder, which may load only when used, is not touched."""
        if not texts or self._encoder is None:
            return []
        return self._encoder.encode_batch([_clean(text) for text in texts])


def _encode_chat(encoder: TextEncoder, prompt: Prompt) -> Sequence[int] | None:
    try:
        return encoder.encode_chat(prompt.messages or (), tools=prompt.tools)
    except InputError:
        return None


def _joined(prompt: Prompt) -> str:
    """Messages without a template: the tools first, then what each message says."""
    parts = [str(tool) for tool in prompt.tools or ()]
    return "\n".join(parts + [f"{message['role']}: {message['content']}" for message in prompt.messages or ()])


def _clean(text: str) -> str:
    """Text without lone surrogates, which no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
