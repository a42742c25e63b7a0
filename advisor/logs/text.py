"""Text of a batch of records becomes token counts and numbers for blocks, and is dropped.

Reads prompts in one of two units, the same for a whole log: tokens, exact, which needs a tokenizer; or bytes,
which need none and are a hundred times faster. Owns that choice, the calls to the tokenizer and the account of
who counted what. Logged counts win over counted ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from advisor.logs.canonical import canonical_bytes, joined_text
from advisor.logs.content import WORDS_OF_BYTES, content_of_bytes, content_of_tokens
from advisor.logs.identity import PrefixHasher
from advisor.logs.part import Content
from advisor.logs.record import Prompt, Record, UnusableError
from advisor.logs.token_blocks import BLOCK_BYTES
from advisor.logs.trace import IntColumn, Unknown
from engine.errors import MachineError

LARGE_BYTES = 64 << 20  # of a log, not compressed: above it text is read as bytes unless a tokenizer was named
Unit = Literal["tokens", "bytes"]
_WORTH_SAYING = 0.02  # difference between logged and tokenized counts
_NAME_ONE = "--tokenizer NAME"


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

    def encode_chats(
        self, chats: Sequence[tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None]]
    ) -> Sequence[Sequence[int] | None]:
        """Token ids of many chats, each with its tools; None for those that the template refuses."""
        ...


class TextReader:
    """Reads the text of one log, or of some of its parts. `counts` are what it met, added up over parts."""

    def __init__(
        self,
        encoder: TextEncoder | None,
        block_size: int,
        key: bytes,
        *,
        wanted: str = "auto",
        large: bool = False,
    ) -> None:
        self._encoder = None if wanted == "bytes" or (wanted == "auto" and large) else encoder
        self._must = wanted == "tokens"
        self._block_size = block_size
        self._key = key
        self._unit: Unit | None = None
        self._hasher: PrefixHasher | None = None
        self._held: list[bytes | None] = []  # of the batch at hand
        self.counts: Counter[str] = Counter()
        self.why_bytes = "the log is large" if large and encoder is not None else "no tokenizer was given"

    @property
    def unit(self) -> Unit | None:
        """How prompts are read; None while none was met."""
        return self._unit

    @property
    def one_process(self) -> bool:
        """Whether a tokenizer may be needed, which has its own threads and lives in this process only."""
        return self._encoder is not None and self._unit != "bytes"

    def settle(self, sample: Sequence[Record]) -> None:
        """Choose the unit from the first records of a log: prompts of token ids need no tokenizer."""
        first = next((record.prompt for record in sample if record.prompt is not None), None)
        if first is not None:
            self.use("tokens" if first.tokens is not None or self._has_tokenizer() else "bytes")

    def use(self, unit: Unit) -> None:
        """Read all prompts in this unit."""
        self._unit = unit
        self._hasher = PrefixHasher(self._key, self._block_size if unit == "tokens" else WORDS_OF_BYTES)

    def hold(self, record: Record) -> int:
        """Accept the next record of a batch; about how many characters are held for it.

        As bytes its text is reduced at once, while it is in the processor's cache; for a tokenizer it waits.
        """
        prompt = record.prompt
        if prompt is None and record.output_text is None:
            self._held.append(None)
            return 0
        if self._unit is None:
            self.use("tokens" if self._has_tokenizer() else "bytes")
        if self._unit != "bytes":
            self._held.append(None)
            return record.text_size
        if record.output_text is not None:
            self.counts["answers unread"] += record.output_tokens < 0
            record.output_text = None
        if prompt is None:
            self._held.append(None)
            return 0
        data = canonical_bytes(prompt)
        if prompt.tokens is not None and record.prompt_tokens < 0:
            self.counts["counted"] += 1
            record.prompt_tokens = len(prompt.tokens)
        prompt.text = prompt.messages = prompt.tokens = prompt.tools = None
        self._held.append(data)
        return len(data)

    def take(self, records: Sequence[Record]) -> tuple[list[UnusableError | None], Content | None]:
        """Why each of the records that were held is unusable, and the content of the others.

        Missing counts are filled in, and texts are gone afterwards.
        """
        held, self._held = self._held, []
        units: Sequence[Sequence[int] | bytes | None] = held
        if self._unit != "bytes":
            units = self._tokenize([record.prompt for record in records])
            self._count_outputs(records)
        errors = [self._account(record, found) for record, found in zip(records, units, strict=True)]
        kept = [
            (record, found)
            for record, found, error in zip(records, units, errors, strict=True)
            if error is None
        ]
        content = self._content(kept)
        for record in records:
            record.prompt = record.output_text = None
        return errors, content

    def token_basis(self, logged: str, lengths: IntColumn) -> str:
        """Where prompt lengths came from, given the format's words for those in the log."""
        if self._unit == "bytes" and self._has_read() and not np.any(lengths >= 0):
            return f"none: prompt lengths need {_NAME_ONE}"
        if not self.counts["counted"]:
            return logged
        tokenized = "token ids of the prompts"
        if self._encoder is not None and self.counts["tokenized"]:  # else it is not touched
            tokenized = f"tokenized with {self._encoder.name}"
        return tokenized if self.counts["counted"] == len(lengths) else f"{logged}, else {tokenized}"

    def prefix_basis(self, logged: str | None) -> str | None:
        """How sharing was measured, given the format's words."""
        if self._unit != "bytes" or not self._has_read():
            return logged
        scale = "scaled with logged counts"
        if not self.counts["scaled"]:
            scale = "scaled by their words"
        elif self.counts["guessed"]:
            scale += ", else by their words"
        return f"bytes of the prompts, {BLOCK_BYTES} a block, {scale}"

    def unknown(self, lengths: IntColumn) -> list[Unknown]:
        """What only a tokenizer could tell."""
        if self._unit != "bytes" or not self._has_read():
            return []
        why = f"prompts were read as bytes: {self.why_bytes}"
        entries = [Unknown("sharing.hit_rate_optimal", why, _NAME_ONE)]
        if np.any(lengths < 0):
            entries.append(Unknown("lengths.prompt", f"the log has text and no token counts; {why}", _NAME_ONE))
        if self.counts["answers unread"]:
            entries.append(Unknown("lengths.output", f"the log has text and no token counts; {why}", _NAME_ONE))
        return entries

    def notes(self) -> list[str]:
        """Assumptions worth a sentence."""
        counts = self.counts
        notes = []
        if self._unit == "bytes" and self._has_read():
            notes.append(f"sharing is measured on bytes: {self.why_bytes}; {_NAME_ONE} makes it exact")
        elif (
            counts["logged tokens"] and abs(counts["text tokens"] / counts["logged tokens"] - 1) > _WORTH_SAYING
        ):
            share = counts["text tokens"] / counts["logged tokens"]
            notes.append(
                f"the text of prompts gives {share:.1%} of the logged prompt tokens with this tokenizer"
            )
        if counts["media"]:
            notes.append(f"prompts with pictures or other media, whose tokens are not seen: {counts['media']}")
        if counts["cut"]:
            notes.append(f"prompts that the log shortened, known up to there: {counts['cut']}")
        if counts["refused"]:
            notes.append(
                f"prompts without block ids, because the chat template refuses them: {counts['refused']}"
            )
        if counts["unread"]:
            notes.append(
                f"prompts of text beside prompts of token ids, which were not read: {counts['unread']}"
            )
        if counts["plain chats"]:
            notes.append("messages were joined as plain text: the tokenizer has no chat template")
        return notes

    def _has_read(self) -> bool:
        return bool(self.counts["scaled"] or self.counts["guessed"] or self.counts["answers unread"])

    def _has_tokenizer(self) -> bool:
        """Whether there is a tokenizer, which may load only now. Raises MachineError if one was asked for."""
        if self._encoder is None:
            return False
        try:
            _ = self._encoder.has_chat_template
        except MachineError as error:
            if self._must:
                raise
            self._encoder = None
            self.why_bytes = error.message + (f" ({error.why})" if error.why else "")
            return False
        return True

    def _tokenize(self, prompts: Sequence[Prompt | None]) -> list[Sequence[int] | None]:
        """Prompts as token ids; None where there is nothing to read or no one to read it."""
        results: list[Sequence[int] | None] = [None if p is None else p.tokens for p in prompts]
        encoder = self._encoder
        if encoder is None or self._unit is None:
            return results
        plain: list[tuple[int, str]] = []
        chats: list[tuple[int, Prompt]] = []
        for row, prompt in enumerate(prompts):
            if prompt is None or prompt.tokens is not None:
                continue
            if prompt.text is not None:
                plain.append((row, prompt.text))
            elif encoder.has_chat_template:
                chats.append((row, prompt))
            else:
                plain.append((row, joined_text(prompt)))
                self.counts["plain chats"] += 1
        self.counts["tokenized"] += len(plain) + len(chats)
        for (row, _), tokens in zip(plain, self._encode([text for _, text in plain]), strict=True):
            results[row] = tokens
        if chats:
            asked = [(prompt.messages or (), prompt.tools) for _, prompt in chats]
            for (row, _), chat in zip(chats, encoder.encode_chats(asked), strict=True):
                results[row] = chat
        return results

    def _account(self, record: Record, found: Sequence[int] | bytes | None) -> UnusableError | None:
        """Count what was found, fill in a missing length; why a record without a prompt is left out."""
        prompt = record.prompt
        if found is None or prompt is None:
            if prompt is not None:
                self.counts["unread" if self._encoder is None else "refused"] += 1
            return UnusableError("empty prompt") if prompt is None and record.prompt_tokens == 0 else None
        if self._unit == "tokens" and not prompt.cut:
            if record.prompt_tokens >= 0:
                self.counts["logged tokens"] += record.prompt_tokens
                self.counts["text tokens"] += len(found)
            elif not prompt.media:
                self.counts["counted"] += 1
                record.counted_prompt = len(found)
        if record.prompt_tokens == 0 or (record.prompt_tokens < 0 and len(found) == 0):
            return UnusableError("empty prompt")
        self.counts["media"] += prompt.media
        self.counts["cut"] += prompt.cut
        length = max(record.prompt_tokens, record.counted_prompt)
        self.counts["scaled" if length > 0 else "guessed"] += 1
        return None

    def _count_outputs(self, records: Sequence[Record]) -> None:
        rows = [record for record in records if record.output_tokens < 0 and record.output_text is not None]
        if self._encoder is None:
            self.counts["answers unread"] += len(rows)
            return
        tokens = self._encode([record.output_text or "" for record in rows])
        for record, ids in zip(rows, tokens, strict=True):
            record.counted_output = len(ids)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids. Without texts the encoder, which may load only when used, is not touched."""
        if not texts or self._encoder is None:
            return []
        return self._encoder.encode_batch([_clean(text) for text in texts])

    def _content(self, prompts: Sequence[tuple[Record, Sequence[int] | bytes | None]]) -> Content | None:
        """The numbers of all blocks; None where no prompt is known."""
        if self._hasher is None or all(found is None for _, found in prompts):
            return None
        whole = [r.prompt is not None and not (r.prompt.cut or r.prompt.media) for r, _ in prompts]
        if self._unit == "tokens":
            ids = [None if isinstance(found, bytes) else found for _, found in prompts]
            return content_of_tokens(self._hasher, ids, whole, self._block_size)
        data = [found if isinstance(found, bytes) else None for _, found in prompts]
        counted = [record.prompt_tokens > 0 for record, _ in prompts]
        return content_of_bytes(self._hasher, data, whole, counted)


def _clean(text: str) -> str:
    """Text without lone surrogates, which no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
