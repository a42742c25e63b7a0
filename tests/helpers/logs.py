"""What the log tests share: small logs on disk, a tokenizer of words, and hit rates counted the slow way."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.logs.read import read
from advisor.logs.trace import Trace
from engine.errors import InputError


class WordEncoder:
    """One token a word; chats put each role in front of its words and refuse roles that they do not know."""

    name = "words"
    has_chat_template = True

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[zlib.crc32(word.encode()) for word in text.split()] for text in texts]

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        if any(message["role"] not in ("system", "user", "assistant", "tool") for message in messages):
            raise InputError("the chat template refuses these messages")
        words = [json.dumps(tool) for tool in tools or ()]
        words += [f"<{message['role']}> {message['content']}" for message in messages]
        return self.encode_batch([" ".join(words)])[0]

    def encode_chats(self, chats: Sequence[tuple[Any, Any]]) -> list[list[int] | None]:
        results: list[list[int] | None] = []
        for messages, tools in chats:
            try:
                results.append(self.encode_chat(messages, tools=tools))
            except InputError:
                results.append(None)
        return results


class PieceEncoder(WordEncoder):
    """Nearer to a real vocabulary: up to four letters a token, and every other character; no chats."""

    name = "pieces"
    has_chat_template = False

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[zlib.crc32(piece.encode()) for piece in re.findall(r"\w{1,4}|\W", text)] for text in texts]


def write_lines(path: Path, rows: Iterable[object]) -> Path:
    """JSON lines; a row that is text or bytes goes in as it is."""
    lines = [row if isinstance(row, str | bytes) else json.dumps(row) for row in rows]
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
    return path


def read_lines(folder: Path, rows: Iterable[object], **keywords: Any) -> Trace:
    """The Trace of a log of these rows."""
    return read([write_lines(folder / "log.jsonl", rows)], **keywords)


def accounted(trace: Trace) -> bool:
    """Whether every item of the lines became a request or was counted as skipped."""
    assert trace.info is not None
    return trace.info.items == len(trace) + sum(trace.info.skipped.values())


def token_hit_rate(trace: Trace) -> float:
    """Leading blocks seen in an earlier row, in tokens, over all prompt tokens."""
    assert trace.blocks is not None
    seen: set[int] = set()
    hits = 0
    for index, prompt in enumerate(trace.prompt_tokens.tolist()):
        ids = trace.blocks.row(index).tolist()
        leading = next((place for place, block in enumerate(ids) if block not in seen), len(ids))
        hits += min(leading * trace.blocks.size, prompt)
        seen.update(ids)
    return hits / int(trace.prompt_tokens.sum())
