"""No word of a prompt leaves the reader: not in files, errors, notes or reprs."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest
from helpers.logs import WordEncoder, read_lines, write_lines

from advisor.logs.options import ReadOptions
from advisor.logs.prompts import find_prompt
from advisor.logs.read import read
from advisor.logs.record import Record
from advisor.logs.save import save
from engine.errors import AdviseError

NOW = 1_700_000_000
CANARY = "canary-7f3a"


def rows_with_canaries() -> list[dict[str, Any]]:
    def word(kind: str, row: int) -> str:
        return f"{CANARY}-{kind}-{row}"

    return [
        {
            "ts": NOW + i,
            "request": {
                "model": "m",
                "messages": [{"role": "user", "content": word("prompt", i)}],
                "tools": [{"name": word("tool", i)}],
                "headers": {"authorization": word("key", i)},
            },
            "response": {"choices": [{"message": {"content": word("answer", i)}}]},
            "user": word("user", i),
            "session_id": word("session", i),
            "path": word("route", i),
            "error": word("error message", i) if i % 3 == 0 else None,
        }
        for i in range(300)
    ]


def test_a_saved_trace_holds_no_word(tmp_path: Path) -> None:
    trace = read_lines(
        tmp_path, rows_with_canaries(), options=ReadOptions(block_size=1), tokenizer=WordEncoder()
    )
    assert trace.blocks is not None
    assert len(trace) == 300
    assert trace.blocks.ids.max() > 300  # the words were really seen
    save(trace, tmp_path / "trace.jsonl")
    assert CANARY not in (tmp_path / "trace.jsonl").read_text()
    assert CANARY not in repr(trace.info) + repr(trace.unknown) + repr(trace.blocks) + repr(trace.status)


def test_reprs_hold_no_word() -> None:
    row = rows_with_canaries()[0]
    prompt = find_prompt(row)
    assert prompt is not None
    assert CANARY in str(prompt.messages)
    assert CANARY not in repr(prompt)
    assert CANARY not in repr(Record(prompt=prompt, output_text=CANARY, client=CANARY))


@pytest.mark.parametrize(
    "content",
    [
        f'{{"ts": "{CANARY}", "prompt": "{CANARY}"}}',
        f'{{"ts": {NOW}, "prompt": "{CANARY}", "prompt_tokens": "{CANARY}"}}',
        f'{{"ts": {NOW}, "prompt": "{CANARY}", ',
        f'{{"ts": {NOW}, "status": "{CANARY}", "error": "{CANARY}", "prompt_tokens": 0}}',
        f"[{CANARY}",
        f"{CANARY}, {CANARY}\n{CANARY}, {CANARY}",
        f"{CANARY}\n{CANARY}",
        json.dumps({CANARY + " with spaces": 1, "x": CANARY}),
    ],
)
def test_errors_hold_no_word(tmp_path: Path, content: str) -> None:
    path = write_lines(tmp_path / "log", [content])
    with pytest.raises(AdviseError) as caught:
        read([path], tokenizer=WordEncoder())
    error = caught.value
    shown = f"{error.message} {error.where} {error.why} {error.hint}"
    assert CANARY not in shown
    assert CANARY not in "".join(traceback.format_exception_only(error))


def test_ids_cannot_be_found_by_hashing_guesses(tmp_path: Path) -> None:
    """Ids are ordinals of first appearance, so that they depend on order only, not on content."""
    one = read_lines(
        tmp_path, [{"ts": NOW, "prompt": "a b c"}], options=ReadOptions(block_size=1), tokenizer=WordEncoder()
    )
    other = read_lines(
        tmp_path, [{"ts": NOW, "prompt": "x y z"}], options=ReadOptions(block_size=1), tokenizer=WordEncoder()
    )
    assert one.blocks is not None
    assert other.blocks is not None
    assert one.blocks.ids.tolist() == other.blocks.ids.tolist() == [0, 1, 2]
