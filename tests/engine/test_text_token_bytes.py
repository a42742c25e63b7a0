"""The bytes of single tokens join to the text, whichever way a vocabulary words them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tokenizers
from helpers.embedded import embedded_folder
from tokenizers import decoders, models, normalizers

from engine.text import Tokenizer

TEXTS = ["Paris is a city.", "na\u00efve caf\u00e9 \u2014 \u4f60\u597d \U0001f600\n\tx = {}", " two  spaces"]


def byte_level() -> Tokenizer:
    return Tokenizer.load(embedded_folder())


def sentencepiece() -> Tokenizer:
    """A vocabulary of bytes and some letters as Llama 2's: spaces are U+2581, unknown characters are bytes."""
    words = ["?", *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581abcdefghisxyP", "is", "\u2581is"]
    merges = [("i", "s"), ("\u2581", "is")]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="?"))  # noqa: S106
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    return Tokenizer(backend, name="sp", chat_template=None, special_names={}, eos_token_ids=frozenset())


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_join_to_the_text(make: Callable[[], Tokenizer], text: str) -> None:
    tokenizer = make()
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode() == text


def test_special_tokens_have_their_names_and_unknown_ids_nothing() -> None:
    tokenizer = byte_level()
    (end,) = tokenizer.eos_token_ids
    assert tokenizer.token_bytes(end) == b"<|im_end|>"
    assert tokenizer.token_bytes(10**6) == b""
