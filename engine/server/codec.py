"""What the router needs of a tokenizer. `engine.text.Tokenizer` is the one; tests bring a smaller one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from engine.config import EngineConfig
from engine.fetch import model_folder
from engine.server.token_ids import TokenIds
from engine.text import Tokenizer


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


def load_codec(config: EngineConfig, *, dummy: bool, emulated: bool) -> TextCodec:
    """The model's tokenizer; token ids in words where there is none. Raises MachineError without the files."""
    if emulated:
        return TokenIds()
    folder = config_folder(config.model.path, dummy=dummy)
    if dummy and not (folder / "tokenizer.json").is_file():
        return TokenIds()
    return Tokenizer.load(folder, name=config.model.name)


def config_folder(path: str | None, *, dummy: bool) -> Path:
    """The model's folder; random weights need a config.json and no more."""
    if dummy and path is not None and (Path(path) / "config.json").is_file():
        return Path(path)
    return model_folder(path, fetch=False, weights=not dummy)
