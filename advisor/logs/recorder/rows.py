"""Exchanges become rows of a saved Trace; their text is forgotten here.

Owns the canonical prompt (tools, then each message's role and content), what becomes of it (tokens where a
tokenizer or token ids are given, else bytes) and the lengths that the answer does not count. Every row says in
`token_basis` where its prompt length is from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from advisor.logs.prompts import find_prompt
from advisor.logs.record import Prompt, UnusableError
from advisor.logs.recorder.exchange import Counts, Exchange, read_counts
from advisor.logs.recorder.prefix import BLOCK_TOKENS, PrefixIds
from advisor.logs.text import TextEncoder
from engine.errors import InputError
from engine.recent import RecentMap

ASSUMED_BYTES = 4.0  # per token, until an answer has counted a prompt
_TOKEN_BYTES = 4
_MOST_LABELS = 100_000
_MOST_MODELS = 1000
_NAME = 200  # characters of a model's name
_SEPARATOR = b"\x1e"  # between messages: not in text that people write
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(enc_hook=str).encode

Row = dict[str, object]


class Rows:
    """Makes rows, in the thread that writes. `secret` is a random number, `name` the scope of the ids."""

    def __init__(self, encoder: TextEncoder | None, *, most_units: int, secret: int, name: str) -> None:
        self._encoder = encoder
        self._ids = PrefixIds(most_units, secret)
        self._labels = {kind: RecentMap[int](_MOST_LABELS) for kind in ("client", "session")}
        self._labelled: Counter[str] = Counter()
        self._name = name
        self._models: set[str] = set()
        self._counted_bytes = self._counted_tokens = 0  # of prompts with both

    def make(self, exchange: Exchange) -> Row:
        """The row of an exchange. Raises UnusableError where there is none to be."""
        counts = read_counts(exchange)
        if exchange.status != "ok" and not counts.output and exchange.ttft_s is None:
            raise UnusableError("failed before the first token")
        body = None if exchange.body is None else _object(exchange.body)
        model = self._model(body, exchange.status)
        row = self._row(exchange, counts, model)
        prompt = None if body is None else find_prompt(body)
        if prompt is not None and not prompt.media:
            row |= self._content(prompt, model, counts.prompt)
        return {name: value for name, value in row.items() if value is not None or name == "input_length"}

    def _content(self, prompt: Prompt, model: str, counted: int | None) -> Row:
        """Blocks, and the length where it was not counted."""
        tokens = prompt.tokens if prompt.tokens is not None else self._encode(prompt)
        if tokens is not None:
            data = np.asarray(tokens, dtype="<u4").tobytes()
            ids, _ = self._ids.of(f"tokens {model}", data, len(tokens), _TOKEN_BYTES)
            length, basis = len(tokens), "tokens of the prompt"
        else:
            data = canonical(prompt)
            ratio = self._counted_bytes / self._counted_tokens if self._counted_tokens else ASSUMED_BYTES
            ids, length = self._ids.of(f"bytes {model}", data, counted, ratio)
            basis = f"bytes, about {ratio:.2f} a token"
            if counted is not None:
                self._counted_bytes += len(data)
                self._counted_tokens += counted
        if counted is None:
            return {"hash_ids": ids, "input_length": length, "token_basis": basis}
        return {"hash_ids": ids[: counted // BLOCK_TOKENS]}

    def _row(self, exchange: Exchange, counts: Counts, model: str) -> Row:
        row: Row = {
            "timestamp": round(exchange.arrival_ns / 1e6, 3),
            "input_length": counts.prompt,
            "output_length": counts.output,
            "hash_ids": None,
            "rounding": "floor",
            "block_size": BLOCK_TOKENS,
            "scope": self._name,
            "model": model or None,
            "route": exchange.route,
            "client": self._label("client", exchange.client),
            "session": self._label("session", exchange.session),
            "status": exchange.status,
            "cached_tokens": counts.cached,
            "ttft_s": exchange.ttft_s,
            "e2e_s": exchange.e2e_s,
            "token_basis": "usage" if counts.prompt is not None else None,
        }
        return row

    def _encode(self, prompt: Prompt) -> list[int] | None:
        """Token ids; None without a tokenizer, or where its chat template refuses."""
        if self._encoder is None:
            return None
        if prompt.messages is None:
            return self._encoder.encode_batch([prompt.text or ""])[0]
        try:
            return self._encoder.encode_chat(prompt.messages, tools=prompt.tools)
        except InputError:
            return None

    def _model(self, body: Mapping[str, Any] | None, status: str) -> str:
        """The model that was asked for; a name counts once an answer under it went well."""
        name = body.get("model") if body is not None else None
        if not isinstance(name, str):
            return ""
        name = name[:_NAME].encode("utf-8", "replace").decode()
        if status == "ok" and len(self._models) < _MOST_MODELS:
            self._models.add(name)
        return name if name in self._models else ""

    def _label(self, kind: str, key: int | None) -> str | None:
        """An ordinal in this run, for a keyed digest."""
        if key is None:
            return None
        ordinals = self._labels[kind].leading((key,))
        if not ordinals:
            ordinals = [self._labelled[kind]]
            self._labelled[kind] += 1
            self._labels[kind].put((key,), ordinals)
        return f"{self._name}-{ordinals[0]}"


def canonical(prompt: Prompt) -> bytes:
    """A prompt as bytes that grow only at their end when a conversation goes on."""
    if prompt.messages is None:
        return (prompt.text or "").encode("utf-8", "replace")
    parts = [_encode(prompt.tools)] if prompt.tools else []
    for message in prompt.messages:
        parts.append(f"{message['role']}\n{message['content']}".encode("utf-8", "replace"))
        if more := {name: value for name, value in message.items() if name not in ("role", "content")}:
            parts.append(_encode(more))
    return _SEPARATOR.join(parts) + _SEPARATOR


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        decoded = _decode(body)
    except (msgspec.DecodeError, RecursionError):
        decoded = None
    if not isinstance(decoded, Mapping):
        raise UnusableError("request is not a JSON object")
    return decoded
