"""What the server needs of a tokenizer. `engine.text.Tokenizer` is the one; tests bring a smaller one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class TextStream(Protocol):
    """Turns the ids of one output into text as they come."""

    def push(self, token_id: int) -> str:
        """The text that this id completes; empty while a character is incomplete."""
        ...

    def flush(self) -> str:
        """What is left at the end."""
        ...


class TextCodec(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation in the model's own chat template. Raises InputError."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What one token says: the UTF-8 of its text, or of a part of a character."""
        ...

    def stream(self) -> TextStream:
        """A detokenizer for one output."""
        ...
