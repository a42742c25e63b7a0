"""Text to token ids and back: the tokenizer, the chat template, and streaming detokenisation.

Owns the reading of tokenizer.json, tokenizer_config.json and the end-of-sequence ids of a model folder.
Torch-free: log analysis uses it too. It never keeps, logs or prints the text that passes through.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.chat_template import ChatTemplate
from engine.errors import InputError, MachineError
from engine.gguf_file import TOKENIZE_EXTRA

if TYPE_CHECKING:
    import tokenizers

Message = Mapping[str, Any]

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level BPE (GPT-2) writes bytes with: themselves if printable, else from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_letters()


class Tokenizer:
    """A model folder's tokenizer and chat template. Immutable and safe to share between threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        name: str,
        chat_template: str | None,
        special_names: Mapping[str, str],
        eos_token_ids: frozenset[int],
    ) -> None:
        self._backend = backend
        self._template = None if chat_template is None else ChatTemplate(chat_template, special_names, name)
        self.name = name
        self.eos_token_ids = eos_token_ids
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(number for number, token in added.items() if token.special)
        self._added_ids = frozenset(added)
        self._byte_level = "ByteLevel" in str(json.loads(backend.to_str())["decoder"])

    @classmethod
    def load(cls, folder: Path, *, name: str | None = None) -> Tokenizer:
        """Read a Hugging-Face-style folder; `name` defaults to the folder's."""
        try:
            import tokenizers
        except ImportError as error:
            raise MachineError("cannot tokenize text", why=str(error), hint=TOKENIZE_EXTRA) from None
        path = folder / "tokenizer.json"
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise InputError(
                "cannot read the tokenizer",
                where=str(path),
                why=str(error),
                hint="copy the model's folder again, whole",
            ) from None
        backend.no_padding()
        backend.no_truncation()
        config = _json(folder / "tokenizer_config.json")
        names = {key: _content(config[key]) for key in _SPECIAL_NAMES if config.get(key) is not None}
        eos = eos_token_ids(folder)
        if not eos and "eos_token" in names:
            eos = frozenset(_ids(backend.token_to_id(names["eos_token"])))
        return cls(
            backend,
            name=name or folder.resolve().name,
            chat_template=_chat_template(folder, config),
            special_names=names,
            eos_token_ids=eos,
        )

    @property
    def vocab_size(self) -> int:
        """Number of token ids that have a text, special tokens included."""
        return self._backend.get_vocab_size()

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works."""
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with the beginning-of-sequence token where the model wants one."""
        return list(self._backend.encode(text).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts at once, on all cores."""
        return [list(encoding.ids) for encoding in self._backend.encode_batch_fast(list(texts))]

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt text that the model's chat template makes of `messages`.

        A template that asks for today's date takes its own fixed one: no clock is offered, so that the same
        messages give the same tokens, and the same prefix hits, every day. Raises InputError.
        """
        if self._template is None:
            hint = "/v1/completions takes plain prompts"
            raise InputError("this model has no chat template", where=self.name, hint=hint)
        return self._template.render(messages, tools, add_generation_prompt=add_generation_prompt)

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Token ids of the rendered chat; the template brings its own special tokens, none is added."""
        text = self.render_chat(messages, add_generation_prompt=add_generation_prompt, tools=tools)
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_chats(
        self, chats: Sequence[tuple[Sequence[Message], Sequence[Mapping[str, Any]] | None]]
    ) -> list[list[int] | None]:
        """`encode_chat` of many messages with their tools at once, on all cores; None where it refuses them."""
        texts: list[str | None] = []
        for messages, tools in chats:
            try:
                texts.append(self.render_chat(messages, tools=tools))
            except InputError:
                texts.append(None)
        rendered = [_clean(text) for text in texts if text is not None]
        encoded = iter(self._backend.encode_batch_fast(rendered, add_special_tokens=False))
        return [None if text is None else list(next(encoded).ids) for text in texts]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids; bytes that are not UTF-8 become U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token says: the UTF-8 of its text, or of a part of a character. Special tokens by name.

        Vocabularies word bytes in one of two ways: byte-level BPE as a letter a byte, SentencePiece as
        `<0xNN>`, with U+2581 for a space. An id without a token says nothing.
        """
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._added_ids:
            return token.encode()
        if self._byte_level:
            return b"".join(
                [bytes([_BYTE_OF[letter]]) if letter in _BYTE_OF else letter.encode() for letter in token]
            )
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()

    def stream(self) -> TextStream:
        """A detokenizer for one output, token by token."""
        return TextStream(self)


def eos_token_ids(folder: Path) -> frozenset[int]:
    """Ids that end an output, from the folder's generation_config.json and config.json."""
    return frozenset(
        number
        for file in ("generation_config.json", "config.json")
        for number in _ids(_json(folder / file).get("eos_token_id"))
    )


class TextStream:
    """Turns the ids of one output into text as they come; the pieces join to `decode` of all of them.

    Ids before `_emitted` are out. Those from `_context` on are decoded together, because some tokenizers treat
    the first token of a text differently. A tail that ends inside a character waits for its other bytes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context = 0
        self._emitted = 0

    def push(self, token_id: int) -> str:
        """The text that this id completes; empty while a character is incomplete."""
        self._ids.append(token_id)
        return self._take(final=False)

    def flush(self) -> str:
        """What is left at the end of the output: U+FFFD for an incomplete character, or nothing."""
        return self._take(final=True)

    def _take(self, *, final: bool) -> str:
        before = self._tokenizer.decode(self._ids[self._context : self._emitted])
        text = self._tokenizer.decode(self._ids[self._context :])
        if len(text) <= len(before) or (text.endswith("\ufffd") and not final):
            return ""
        self._context, self._emitted = self._emitted, len(self._ids)
        return text[len(before) :]


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            "not valid JSON", where=str(path), why=str(error), hint="copy the model's folder again, whole"
        ) from None
    return content if isinstance(content, dict) else {}


def _content(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _clean(text: str) -> str:
    """Text without lone surrogates, which the backend does not take."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
