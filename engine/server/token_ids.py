"""What stands in for a tokenizer where a model folder has none: `--load dummy` of a bare config.json.

Prompts of token ids work; text is refused with a reason, and output is written as ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import InputError


class TokenIds:
    """`TextCodec` without text."""

    def encode(self, text: str) -> list[int]:
        """Raises InputError."""
        raise _no_tokenizer(text)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Raises InputError."""
        raise _no_tokenizer(messages)

    def decode(self, ids: Sequence[int]) -> str:
        """Each id and a space."""
        return "".join(f"{number} " for number in ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The id and a space."""
        return self.decode([token_id]).encode()

    def stream(self) -> TokenIdStream:
        """See `TextCodec.stream`."""
        return TokenIdStream()


class TokenIdStream:
    """`TextStream` of ids."""

    def push(self, token_id: int) -> str:
        """The id and a space."""
        return f"{token_id} "

    def flush(self) -> str:
        """Nothing is held back."""
        return ""


def _no_tokenizer(_text: object) -> InputError:
    hint = "send token ids, or copy tokenizer.json into the model's folder"
    return InputError("this model has no tokenizer", why="prompts have to be token ids", hint=hint)
