"""Logged requests and responses of an OpenAI-compatible service: messages or a prompt, usage, times.

Takes the common shapes: a body at the top or under `request` or `body` (as JSON text too), the answer under
`response`, whole, streamed or a row a chunk. Everything is found as in `generic`; this format only knows that
there are prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from advisor.logs.chunks import chunk_of
from advisor.logs.formats.base import mostly
from advisor.logs.formats.generic import Generic
from advisor.logs.prompts import find_prompt, history_elsewhere
from advisor.logs.record import Row, UnusableError


class OpenAI(Generic):
    """A request with its prompt, and mostly its response."""

    name: ClassVar[str] = "openai"
    fields: ClassVar[tuple[str, ...]] = ("timestamp", "request", "response", "messages", "usage")

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, _is_call)


def _is_call(row: Row) -> bool:
    try:
        return find_prompt(row) is not None or history_elsewhere(row) or chunk_of(row) is not None
    except UnusableError:
        return True
