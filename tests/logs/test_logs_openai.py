"""Requests and responses of OpenAI-compatible services: where the prompt is, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.logs import WordEncoder, read_lines

from advisor.logs.options import ReadOptions

NOW = 1_700_000_000
MESSAGES = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello there"}]
TOKENS = 6  # four words, and one for each role


@pytest.mark.parametrize(
    "row",
    [
        {"messages": MESSAGES},
        {"request": {"messages": MESSAGES}},
        {"body": {"messages": MESSAGES}},
        {"request": {"body": {"messages": MESSAGES}}},
        {"request_body": json.dumps({"messages": MESSAGES})},
        {"messages": json.dumps(MESSAGES)},
        {"request": {"input": MESSAGES}},  # the Responses API
        {"request": {"instructions": "be kind", "input": "hello there"}},
        {"request": {"system": [{"type": "text", "text": "be kind"}], "messages": MESSAGES[1:]}},  # Anthropic
        {"messages": [MESSAGES[0], {"role": "user", "content": [{"type": "text", "text": "hello there"}]}]},
        {"messages": [{"role": "developer", "content": "be kind"}, MESSAGES[1]]},
    ],
)
def test_chats(tmp_path: Path, row: dict[str, Any]) -> None:
    trace = read_lines(tmp_path, [{"ts": NOW} | row], tokenizer=WordEncoder())
    assert trace.info is not None
    assert trace.prompt_tokens.tolist() == [TOKENS]
    assert [trace.info.format, trace.info.token_basis] == ["openai", "tokenized with words"]


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("one two three", 3), ([5, 6, 7, 8], 4), (["one two"], 2)],
    ids=["text", "ids", "list"],
)
def test_completions(tmp_path: Path, prompt: object, count: int) -> None:
    trace = read_lines(tmp_path, [{"ts": NOW, "request": {"prompt": prompt}}], tokenizer=WordEncoder())
    assert trace.prompt_tokens.tolist() == [count]


def test_token_ids_need_no_tokenizer(tmp_path: Path) -> None:
    rows = [{"ts": NOW + i, "prompt": [1, 2, 3, 4 + i]} for i in range(2)]
    trace = read_lines(tmp_path, rows, options=ReadOptions(block_size=2))
    assert trace.blocks is not None
    assert trace.blocks.ids.tolist() == [0, 1, 0, 2]


def test_several_prompts_in_one_request_are_counted(tmp_path: Path) -> None:
    rows = [{"ts": NOW, "prompt": "a b"}, {"ts": NOW, "prompt": ["a", "b"]}]
    trace = read_lines(tmp_path, rows, tokenizer=WordEncoder())
    assert trace.info is not None
    assert trace.info.skipped == {"several prompts in one request": 1}


def test_logged_counts_win_and_the_difference_is_said(tmp_path: Path) -> None:
    rows = [{"ts": NOW, "messages": MESSAGES, "usage": {"prompt_tokens": 12, "completion_tokens": 2}}]
    trace = read_lines(tmp_path, rows, tokenizer=WordEncoder())
    assert trace.info is not None
    assert trace.prompt_tokens.tolist() == [12]
    assert trace.info.token_basis.startswith("logged")
    assert any("50.0%" in note for note in trace.info.notes)


def test_blocks_never_exceed_a_logged_count(tmp_path: Path) -> None:
    rows = [{"ts": NOW, "messages": MESSAGES, "usage": {"prompt_tokens": 3}}]
    trace = read_lines(tmp_path, rows, options=ReadOptions(block_size=1), tokenizer=WordEncoder())
    assert trace.blocks is not None
    assert trace.novel_tokens is not None
    assert (len(trace.blocks.ids), trace.novel_tokens.tolist()) == (3, [3])


@pytest.mark.parametrize(
    "response",
    [
        {"choices": [{"message": {"role": "assistant", "content": "three words here"}}]},
        {"choices": [{"text": "three words here"}]},
        {"body": {"choices": [{"text": "three words here"}]}},
        "three words here",
    ],
)
def test_answers_are_counted_where_usage_is_missing(tmp_path: Path, response: object) -> None:
    row = {"ts": NOW, "request": {"messages": MESSAGES}, "response": response}
    assert read_lines(tmp_path, [row], tokenizer=WordEncoder()).output_tokens.tolist() == [3]


def test_tools_are_part_of_the_prefix(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "ab"]
    rows = [{"ts": NOW + i, "messages": MESSAGES, "tools": [tools[i]]} for i in range(2)]
    trace = read_lines(tmp_path, rows, options=ReadOptions(block_size=1), tokenizer=WordEncoder())
    assert trace.blocks is not None
    shared = [a == b for a, b in zip(trace.blocks.row(0), trace.blocks.row(1), strict=True)]
    assert shared.index(False) == 4  # in the first tool, at its name: what follows differs too
    assert not any(shared[4:])


def test_pictures_have_no_tokens_and_are_mentioned(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "hello there"},
        {"type": "image_url", "image_url": {"url": "data:" + "A" * 999}},
    ]
    row = {"ts": NOW, "messages": [MESSAGES[0], {"role": "user", "content": parts}]}
    trace = read_lines(tmp_path, [row], tokenizer=WordEncoder())
    assert trace.info is not None
    assert trace.prompt_tokens.tolist() == [TOKENS]
    assert any("pictures" in note for note in trace.info.notes)


def test_messages_that_the_template_refuses_are_counted(tmp_path: Path) -> None:
    rows = [{"ts": NOW, "messages": MESSAGES}, {"ts": NOW, "messages": [{"role": "pirate", "content": "arr"}]}]
    trace = read_lines(tmp_path, rows, tokenizer=WordEncoder())
    assert trace.info is not None
    assert trace.prompt_tokens.tolist() == [TOKENS, -1]
    assert "prompts without block ids, because the chat template refuses them: 1" in trace.info.notes


def test_refused_messages_with_a_logged_length_keep_it(tmp_path: Path) -> None:
    refused = {"ts": NOW, "messages": [{"role": "pirate", "content": "arr"}], "usage": {"prompt_tokens": 9}}
    trace = read_lines(tmp_path, [{"ts": NOW, "messages": MESSAGES}, refused], tokenizer=WordEncoder())
    assert trace.novel_tokens is not None
    assert trace.prompt_tokens.tolist() == [TOKENS, 9]
    assert trace.novel_tokens.tolist() == [TOKENS, -1]


def test_without_a_tokenizer_only_sharing_is_unknown(tmp_path: Path) -> None:
    rows = [
        {"ts": NOW, "messages": MESSAGES, "usage": {"prompt_tokens": 12}},
        {"ts": NOW, "messages": MESSAGES},
    ]
    trace = read_lines(tmp_path, rows)
    assert trace.info is not None
    assert (trace.prompt_tokens.tolist(), trace.blocks) == ([12, -1], None)
    assert [entry.path for entry in trace.unknown] == ["sharing"]


def test_models_do_not_share(tmp_path: Path) -> None:
    rows = [{"ts": NOW + i, "model": model, "prompt": "a b c d"} for i, model in enumerate("xyx")]
    trace = read_lines(tmp_path, rows, options=ReadOptions(block_size=2), tokenizer=WordEncoder())
    assert trace.blocks is not None
    assert trace.novel_tokens is not None
    assert trace.blocks.ids.tolist() == [0, 1, 2, 3, 0, 1]
    assert trace.novel_tokens.tolist() == [4, 4, 0]


class Untouchable:
    """Stands for a tokenizer that is loaded on first use."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked of a tokenizer that nothing needed")


def test_a_log_without_text_does_not_touch_the_tokenizer(tmp_path: Path) -> None:
    rows = [{"ts": NOW, "prompt_tokens": 5}]
    tokenizer: Any = Untouchable()
    assert len(read_lines(tmp_path, rows, tokenizer=tokenizer)) == 1
