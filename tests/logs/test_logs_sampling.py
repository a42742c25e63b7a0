"""The sample of prompts: bounded, of one model, read from the log again, and never from where it cannot be."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from helpers.logs import WordEncoder, write_lines

from advisor.logs import sampling
from advisor.logs.options import ReadOptions
from advisor.logs.sampling import excerpts, sample_layout

NOW = 1_700_000_000
RULES = " ".join(f"rule {i} says {i * 7919 % 1000}" for i in range(100))


def rows(count: int, model: str = "m", text: str = RULES) -> list[dict[str, Any]]:
    rng = random.Random(count)
    return [
        {"ts": NOW + i, "model": model, "prompt": f"{rng.randrange(10**9)} {text}", "user": f"u{i % 3}"}
        for i in range(count)
    ]


def test_units_are_tokens_with_an_encoder_and_bytes_without(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log", rows(20))
    words = sample_layout([log], ReadOptions(), WordEncoder())
    octets = sample_layout([log], ReadOptions(), None)
    assert words is not None
    assert octets is not None
    assert (words.unit, words.leading, words.trailing) == ("tokens", 0, len(RULES.split()))
    assert (octets.unit, octets.trailing >= len(RULES)) == ("bytes", True)


def test_the_largest_model_of_the_sample(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log", [*rows(5, "small", "x " * 300), *rows(20)])
    layout = sample_layout([log], ReadOptions(), WordEncoder())
    assert layout is not None
    assert (layout.requests, layout.trailing) == (20, len(RULES.split()))


def test_selection_holds_for_the_sample_too(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log", [*rows(5, "small"), *rows(20)])
    layout = sample_layout([log], ReadOptions(where=(("model", "small"),)), WordEncoder())
    assert layout is not None
    assert layout.requests == 5


def test_it_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "CHARACTERS", 10 * len(RULES))
    layout = sample_layout([write_lines(tmp_path / "log", rows(200))], ReadOptions(), None)
    assert layout is not None
    assert 8 <= layout.requests <= 11


def test_without_text_or_a_second_session_there_is_none(tmp_path: Path) -> None:
    counts = [{"ts": NOW + i, "prompt_tokens": 5} for i in range(2000)]
    assert sample_layout([write_lines(tmp_path / "counts", counts)], ReadOptions(), None) is None
    assert sample_layout([write_lines(tmp_path / "one", rows(1))], ReadOptions(), None) is None
    assert sample_layout(["-"], ReadOptions(), None) is None


def test_excerpts_are_the_prompts_around_the_places(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log", rows(20))
    layout = sample_layout([log], ReadOptions(), None)
    assert layout is not None
    shown = excerpts([log], ReadOptions(), layout.examples)
    assert len(shown) == 2
    prompts = [row["prompt"] for row in rows(20)]
    for place, text in zip(layout.examples, shown, strict=True):
        assert text.removesuffix("...") == prompts[place.line - 1][: place.char + 60]
