"""One request as a format yields it, on its way into the columns of a Trace.

The only place, with `prompts`, where prompt text is held; a record lives until its batch is tokenized and never
prints its content.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Row = Mapping[str, Any]  # a JSON object or a CSV row, as read
LINE = "\n"  # the one key of a row that is a line of a text log; no field has that name


class UnusableError(Exception):
    """A line that cannot become a request. `reason` is one of a small set of phrases, never a value."""

    def __init__(self, reason: str, lines: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lines = lines  # physical lines lost


class Line(NamedTuple):
    """One line, CSV row or list item: its number in the file or piece, from 1, what it holds, and a place.

    `at` tells it from all other lines of the file: the byte where it starts, where that is known.
    """

    number: int
    content: Row | UnusableError
    at: int = 0


@dataclass(slots=True, repr=False)
class Prompt:
    """What a request asked, in exactly one of three forms, with the tools that go before messages."""

    text: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    tokens: Sequence[int] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    media: bool = False  # pictures or sound, which have no tokens here
    cut: bool = False  # the log shortened it: what is left says nothing about its end

    @property
    def size(self) -> int:
        """Characters (or token ids) held, about."""
        if self.messages is not None:
            return sum(len(message["content"]) for message in self.messages)
        return len(self.text or self.tokens or ())

    def __repr__(self) -> str:
        return "Prompt(hidden)"


@dataclass(slots=True, repr=False)
class Record:
    """A canonical request. Integers are -1 and floats NaN where the line does not say.

    Records with the same `key` are of one request: it takes the earliest arrival and, of everything else, the
    last value that is known.
    """

    arrival_ns: int | None = None  # since 1970 UTC, or since the log's own zero
    prompt_tokens: int = -1  # cached ones included
    output_tokens: int = -1
    cached_tokens: int = -1
    novel_tokens: int = -1
    ttft_s: float = math.nan
    e2e_s: float = math.nan
    think_s: float = math.nan  # after the turn before of the same session
    hash_ids: Sequence[int] | None = None
    prompt: Prompt | None = None
    output_text: str | None = None  # counted when output_tokens is unknown
    counted_prompt: int = -1  # tokens of the text; a count that any line of the request logs wins
    counted_output: int = -1
    model: str | None = None
    route: str | None = None
    client: str | None = None
    session: str | None = None
    status: str | None = None  # "ok", or what went wrong
    key: str | None = None  # of the request, where several lines tell of it
    scope: str | None = None  # namespace of hash_ids, where equal ids elsewhere mean something else

    @property
    def text_size(self) -> int:
        """Characters held, about."""
        return (0 if self.prompt is None else self.prompt.size) + len(self.output_text or "")

    def __repr__(self) -> str:
        return f"Record(prompt_tokens={self.prompt_tokens}, output_tokens={self.output_tokens})"
