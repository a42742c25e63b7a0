"""What the Anthropic formats share: the usage object.

`input_tokens` counts only what neither came from the cache nor went into it, so the prompt is the sum of three.
Source: the Messages API reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from advisor.logs.formats.base import as_count, as_row
from advisor.logs.record import Row
from advisor.logs.times import as_number

_LIVES = (("ephemeral_5m_input_tokens", "5 minutes"), ("ephemeral_1h_input_tokens", "1 hour"))


class Usage(NamedTuple):
    """Token counts of one call, -1 where unknown; `prompt` includes cached tokens."""

    prompt: int
    output: int
    cached: int


def read_usage(usage: Row) -> Usage:
    """The counts of a usage object. Raises UnusableError."""
    rest = as_count(usage.get("input_tokens"), "prompt length")
    cached = as_count(usage.get("cache_read_input_tokens"), "cached tokens")
    written = as_count(usage.get("cache_creation_input_tokens"), "cached tokens")
    if written < 0:
        written = sum(map(_whole, as_row(usage.get("cache_creation")).values()))
    prompt = rest if rest < 0 else rest + max(0, cached) + max(0, written)
    return Usage(prompt, as_count(usage.get("output_tokens"), "output length"), cached)


def count_lives(usage: Row, counts: Counter[str]) -> None:
    """Add up how long what was written to the cache is kept."""
    split = as_row(usage.get("cache_creation"))
    for name, life in _LIVES:
        counts[f"kept {life}"] += _whole(split.get(name))


def cache_notes(counts: Counter[str]) -> Iterator[str]:
    """The cache lives that the log's requests paid for."""
    lives = [f"{counts[f'kept {life}']} for {life}" for _, life in _LIVES if counts[f"kept {life}"]]
    if lives:
        yield f"prompt tokens written to the provider's cache: {', '.join(lives)}"


def _whole(value: object) -> int:
    number = as_number(value)
    return int(number) if number is not None and number > 0 else 0
