"""Prompt layout: what is shared behind the first difference, against constructions whose answer is known."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from helpers.embedded import embedded_folder

from advisor.logs.layout import Layout, Sample, cut, measure_layout
from engine.text import Tokenizer

RULES = " ".join(f"rule {i} says {i * 7919 % 1000}" for i in range(200))


def samples(texts: list[str], sessions: list[str] | None = None) -> list[Sample]:
    return [
        Sample(text, text.encode(), None if sessions is None else sessions[i], "log", i + 1)
        for i, text in enumerate(texts)
    ]


def words(rng: random.Random, count: int) -> str:
    return " ".join(f"w{rng.randrange(10**6)}" for _ in range(count))


def layout(texts: list[str], sessions: list[str] | None = None) -> Layout:
    found = measure_layout(samples(texts, sessions), "bytes")
    assert found is not None
    return found


def test_instructions_behind_the_question() -> None:
    rng = random.Random(0)
    questions = [words(rng, 40) for _ in range(50)]
    found = layout([f"Q: {question}\n{RULES}" for question in questions])
    total = sum(len(question) + 4 + len(RULES) for question in questions)
    assert (found.first_requests, found.leading) == (50, 4)  # "Q: w": all words start with a w
    assert found.trailing == pytest.approx(len(RULES), abs=3)
    # 49 of 50 requests would find the rules, less about a chunk at each of their ends.
    assert found.hit_rate == 0
    assert found.hit_rate_reordered == pytest.approx(49 * len(RULES) / total, abs=0.05)
    assert found.any_position_share == pytest.approx(49 * len(RULES) / total, abs=0.05)
    assert found.hit_rate_reordered <= found.any_position_share


def test_instructions_in_front_have_nothing_to_gain() -> None:
    rng = random.Random(1)
    found = layout([f"{RULES}\nQ: {words(rng, 40)}" for _ in range(50)])
    assert found.leading == pytest.approx(len(RULES) + 5, abs=1)
    assert found.trailing < 8
    assert found.shared_behind == 0
    assert found.hit_rate_reordered == pytest.approx(found.hit_rate, abs=1e-9)


def test_a_date_in_front_of_the_instructions_is_found() -> None:
    dates = [f"2026-09-{day:02}T08:{day}:00" for day in range(10, 30)]
    found = layout([f"Now: {date}. {RULES} {i}" for i, date in enumerate(dates)])
    assert found.leading in (len("Now: 2026-09-1"), len("Now: 2026-09-2"))
    assert found.shared_behind == pytest.approx(len(RULES), abs=150)
    assert found.hit_rate_reordered > 0.85
    place = found.examples[0]
    assert place.file == "log"
    assert place.char in (len("Now: 2026-09-1"), len("Now: 2026-09-2"), len("Now: 2026-09-"))
    assert "Now" not in repr(found)


def test_turns_of_a_session_are_one_first_request() -> None:
    rng = random.Random(2)
    texts, sessions = [], []
    for chat in range(6):
        history = f"{words(rng, 30)} {RULES}"
        for _ in range(4):
            texts.append(history)
            sessions.append(f"s{chat}")
            history += " " + words(rng, 30)
    labelled, inferred = layout(texts, sessions), layout(texts)
    assert labelled.first_requests == inferred.first_requests == 6
    assert labelled == inferred
    assert labelled.trailing == pytest.approx(len(RULES), abs=3)


def test_chunks_depend_on_their_own_content_only() -> None:
    rng = random.Random(3)
    texts = [words(rng, 4000).encode() for _ in range(6)] + [b"short", b"x" * 100]
    together = cut(texts, 32)
    for row, text in enumerate(texts):
        for units in (text, list(text)):
            alone = cut([units], 32)
            mine = together.row == row
            assert together.content[mine].tolist() == alone.content.tolist()
            assert together.length[mine].tolist() == alone.length.tolist()
            assert alone.length.sum() == len(text)
    # Behind other text most of them are the same ones: it takes a whole window to know where one ends.
    behind = cut([b"something else in front " + texts[0]], 32)
    same = np.isin(together.content[together.row == 0], behind.content)
    assert same.sum() >= len(same) - 2
    assert 24 < len(together.row[together.row < 6]) / 6 / (len(texts[0]) / 1024) < 40  # 32 units on average


def test_one_session_has_no_layout() -> None:
    assert measure_layout(samples([RULES]), "bytes") is None
    assert measure_layout([], "bytes") is None


def test_miniswe_instructions_come_after_the_task(shared: Path) -> None:
    """traces/README.md: 10 leading and 1,089 trailing tokens with another vocabulary (Tekken)."""
    rows = []
    for file in sorted((shared / "traces/lmcache-agent/miniswe").iterdir()):
        for line, row in enumerate(map(json.loads, gzip.decompress(file.read_bytes()).splitlines()), 1):
            rows.append((row["timestamp"], row["input"], row["session_id"], file.name, line))
    rows.sort()
    tokens = Tokenizer.load(embedded_folder()).encode_batch([row[1] for row in rows])
    found = measure_layout(
        [Sample(text, ids, *rest) for (_, text, *rest), ids in zip(rows, tokens, strict=True)], "tokens"
    )
    assert found is not None
    assert (found.requests, found.first_requests) == (402, 20)
    assert found.leading == pytest.approx(10, abs=4)
    assert found.trailing == pytest.approx(1089, rel=0.15)
    # In front they would be found by the 19 sessions after the first, in their first request.
    gain = 19 * found.trailing / sum(map(len, tokens))
    assert found.hit_rate_reordered - found.hit_rate == pytest.approx(gain, rel=0.15)
