"""Junk in any place of a row, however deep: unusable or read, never a crash."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.traffic import make_calls

from advisor.logs.formats import FORMATS
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, UnusableError

JUNK: list[object] = [
    None, True, -1, 1.5, 10**30, float("nan"), "", "x", "\ud800", [], [None], {}, {"a": [{}]}, "[{", "{",
    '[{"role": 1}]', {"type": "text", "content": {"type": "x", "content": ["y"]}}, [[[[[[[[["deep"]]]]]]]]],
]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "otlp", "otlp_vllm", "otlp_openinference", "otlp_log_events", "openai", "openai_batch", "openai_usage",
        "anthropic_messages", "anthropic_batch", "claude_code",
    ],
)  # fmt: skip
def test_junk_anywhere_is_unusable_or_read_never_a_crash(name: str, tmp_path: Path) -> None:
    writer, rng = importlib.import_module(f"logs.writers.{name}"), random.Random(name)
    writer.write(make_calls(12), tmp_path / "log")
    kind = next(kind for kind in FORMATS if kind.name == writer.FORMAT)
    rows = [json.loads(text) for text in (tmp_path / "log").read_text().splitlines()[:20]]
    for _ in range(1500):
        row = rng.choice(rows)
        damaged = json.loads(json.dumps(row))
        path = rng.choice([path for path in places(damaged) if path])
        holder = damaged
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = rng.choice(JUNK)
        for sample in ([row], [damaged]):
            kind.detect(sample)
            reader = kind(sample, ReadOptions())
            try:
                items = list(reader.parse(damaged))
            except UnusableError:
                continue
            reader.basis()
            for item in items:
                assert isinstance(item, UnusableError) or sound(item)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything in a row."""
    yield path
    steps: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for step in steps:
        yield from places(value[step], (*path, step))


def sound(record: Record) -> bool:
    """Whether a record holds only what the columns and a tokenizer can take."""
    labels = (record.model, record.route, record.client, record.session, record.status, record.key)
    messages = record.prompt.messages if record.prompt is not None else None
    return (
        min(record.prompt_tokens, record.output_tokens, record.cached_tokens) >= -1
        and all(label is None or isinstance(label, str) for label in labels)
        and all(isinstance(message["content"], str) for message in messages or ())
        and record.text_size >= 0
    )
