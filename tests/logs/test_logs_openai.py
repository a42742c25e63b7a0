"""Requests and responses of OpenAI-compatible services: where the prompt is, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from helpers.logs import WordEncoder, accounted, read_lines

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
        {"params": {"messages": MESSAGES}},
        {"request": {"input": [{"type": "message", **message} for message in MESSAGES]}},
        {
            "request": {
                "instructions": "be kind",
                "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello there"}]}],
            }
        },
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
        {"output": [{"type": "message", "content": [{"type": "output_text", "text": "three words here"}]}]},
        {"type": "message", "content": [{"type": "text", "text": "three words here"}]},
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


@pytest.mark.parametrize(
    "row",
    [
        {"request": {"messages": MESSAGES, "tools": [{"name": "find"}]}},
        {"request": {"messages": MESSAGES}, "tools": [{"name": "find"}]},  # beside the request
        {"request": {"messages": MESSAGES, "tools": '[{"name": "find"}]'}},
        {"request": {"instructions": "be kind", "input": "hello there", "tools": [{"name": "find"}]}},
    ],
    ids=["in the body", "beside it", "as text", "Responses API"],
)
def test_tools_outside_the_messages_count(tmp_path: Path, row: dict[str, Any]) -> None:
    trace = read_lines(tmp_path, [{"ts": NOW} | row], tokenizer=WordEncoder())
    assert trace.prompt_tokens.tolist() == [TOKENS + len(json.dumps({"name": "find"}).split())]


def test_functions_are_tools_of_old(tmp_path: Path) -> None:
    row = {"ts": NOW, "messages": MESSAGES, "functions": [{"name": "find"}]}
    words = json.dumps({"type": "function", "function": {"name": "find"}}).split()
    assert read_lines(tmp_path, [row], tokenizer=WordEncoder()).prompt_tokens.tolist() == [TOKENS + len(words)]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call_output", "call_id": "c", "output": "three words here"},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "three words here"}]},
        {"role": "function", "name": "find", "content": "three words here"},
    ],
    ids=["Responses API", "chat", "of old"],
)
def test_results_of_tools_are_content(tmp_path: Path, item: dict[str, Any]) -> None:
    row = {"ts": NOW, "request": {"input": [*MESSAGES, item]}}
    assert read_lines(tmp_path, [row], tokenizer=WordEncoder()).prompt_tokens.tolist() == [TOKENS + 4]


@pytest.mark.parametrize(
    "body",
    [
        {"previous_response_id": "resp_1", "input": "hello there"},
        {"conversation": {"id": "conv_1"}, "input": "hello there"},
        {"input": [{"type": "item_reference", "id": "msg_1"}, MESSAGES[1]]},
    ],
)
def test_a_prompt_that_the_server_keeps_is_unknown(tmp_path: Path, body: dict[str, Any]) -> None:
    """What the request adds comes after a history that is not in the log."""
    usage = {"input_tokens": 900, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 800}}
    rows = [{"ts": NOW, "request": body, "response": {"usage": usage}}, {"ts": NOW, "messages": MESSAGES}]
    trace = read_lines(tmp_path, rows, tokenizer=WordEncoder())
    assert trace.blocks is not None
    assert trace.blocks.known is not None
    assert (trace.prompt_tokens.tolist(), trace.blocks.known.tolist()) == ([900, TOKENS], [False, True])


def test_a_text_that_is_json_is_a_prompt(tmp_path: Path) -> None:
    rows = [{"ts": NOW, "prompt": '{"extract": "this please"}'}]
    assert read_lines(tmp_path, rows, tokenizer=WordEncoder()).prompt_tokens.tolist() == [3]


@pytest.mark.parametrize(
    "prompt", ["redacted-by-litellm", [{"role": "user", "content": "[REDACTED]"}], {}, "{}"]
)
def test_a_prompt_that_was_taken_out_is_unknown(tmp_path: Path, prompt: object) -> None:
    row = {"ts": NOW, "messages": prompt, "usage": {"prompt_tokens": 41}}
    trace = read_lines(tmp_path, [row], tokenizer=WordEncoder())
    assert (trace.prompt_tokens.tolist(), trace.blocks) == ([41], None)


class TestStreams:
    """Pitfall 7: only the last chunk has the usage, and only where the client asked for it."""

    CHUNKS: ClassVar[list[dict[str, Any]]] = [
        {"id": "c1", "object": "chat.completion.chunk", "created": NOW, "model": "m", "usage": None,
         "choices": [{"index": 0, "delta": {"role": "assistant", "content": "three "}}]},
        {"id": "c1", "object": "chat.completion.chunk", "created": NOW, "model": "m", "usage": None,
         "choices": [{"index": 0, "delta": {"content": "words here"}, "finish_reason": "stop"}]},
        {"id": "c1", "object": "chat.completion.chunk", "created": NOW, "model": "m", "choices": [],
         "usage": {"prompt_tokens": 41, "completion_tokens": 17,
                   "prompt_tokens_details": {"cached_tokens": 32}}},
    ]  # fmt: skip
    TEXT = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CHUNKS) + "data: [DONE]\n\n"

    @pytest.mark.parametrize(
        "response", [CHUNKS, TEXT, [json.dumps(CHUNKS[0]), *TEXT.splitlines()]], ids=["list", "text", "lines"]
    )
    def test_a_response_of_chunks(self, tmp_path: Path, response: object) -> None:
        row = {"ts": NOW, "request": {"messages": MESSAGES}, "response": response}
        trace = read_lines(tmp_path, [row])
        assert trace.cached_tokens is not None
        counts = (trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), trace.cached_tokens.tolist())
        assert counts == ([41], [17], [32])

    def test_a_row_a_chunk(self, tmp_path: Path) -> None:
        rows = [*self.CHUNKS, *({**chunk, "id": "c2", "created": NOW + 5} for chunk in self.CHUNKS)]
        trace = read_lines(tmp_path, rows)
        assert trace.info is not None
        assert accounted(trace)
        assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist()) == ([0, 5], [41, 41])
        assert trace.output_tokens.tolist() == [17, 17]
        assert "rows that are chunks of streamed answers, joined by their id: 6" in trace.info.notes

    def test_chunks_without_usage(self, tmp_path: Path) -> None:
        trace = read_lines(tmp_path, self.CHUNKS[:2])
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([-1], [-1])
        ways = {entry.path: entry.how_to_get for entry in trace.unknown}
        assert all("include_usage" in ways[path] for path in ("lengths.prompt", "lengths.output"))

    def test_without_usage_a_whole_answer_is_counted(self, tmp_path: Path) -> None:
        row = {"ts": NOW, "request": {"messages": MESSAGES}, "response": self.CHUNKS[:2]}
        assert read_lines(tmp_path, [row], tokenizer=WordEncoder()).output_tokens.tolist() == [3]

    def test_a_copy_that_stops_has_no_length(self, tmp_path: Path) -> None:
        """open-webui/open-webui#30098: audit copies end after 2,048 bytes, before the usage."""
        row = {"ts": NOW, "request": {"messages": MESSAGES}, "response": self.TEXT[:150]}
        assert read_lines(tmp_path, [row], tokenizer=WordEncoder()).output_tokens.tolist() == [-1]

    def test_events_of_the_responses_api(self, tmp_path: Path) -> None:
        usage = {"input_tokens": 41, "output_tokens": 17, "input_tokens_details": {"cached_tokens": 32}}
        events = [
            {"type": "response.created", "response": {"model": "m", "usage": None}},
            {"type": "response.output_text.delta", "delta": "three words here"},
            {"type": "response.completed", "response": {"model": "m", "usage": usage}},
        ]
        row = {"ts": NOW, "request": {"input": MESSAGES}, "response": events}
        trace = read_lines(tmp_path, [row])
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41], [17])


@pytest.mark.parametrize(
    "row",
    [
        {"request": {"model": "text-embedding-3-small", "input": ["a", "b"]}},
        {"request": {"model": "m", "input": "a"}, "response": {"object": "list", "data": []}},
        {"request": {"model": "omni-moderation-latest", "input": "a"}, "response": {"results": []}},
        {"path": "/v1/tokenize", "request": {"prompt": "a"}},
        {"request": {"messages": MESSAGES}, "user_agent": "kube-probe/1.30"},
    ],
    ids=["embeddings by model", "by the response", "moderation", "tokenize", "probe"],
)
def test_other_operations_among_chats(tmp_path: Path, row: dict[str, Any]) -> None:
    """Pitfall 21."""
    usage = {"usage": {"prompt_tokens": 5, "total_tokens": 5}}
    trace = read_lines(tmp_path, [{"ts": NOW, "messages": MESSAGES}, {"ts": NOW} | row | usage])
    assert trace.info is not None
    assert trace.info.skipped == {"other operation than generating text": 1}


def test_warm_up_is_left_out(tmp_path: Path) -> None:
    rows = [{"ts": NOW, "messages": MESSAGES, "warmup": flag} for flag in (True, False, "true")]
    trace = read_lines(tmp_path, rows, tokenizer=WordEncoder())
    assert trace.info is not None
    assert (len(trace), trace.info.skipped) == (1, {"warm-up": 2})


def test_prompts_with_pictures_have_no_length_here_and_are_mentioned(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "hello there"},
        {"type": "image_url", "image_url": {"url": "data:" + "A" * 999}},
    ]
    row = {"ts": NOW, "messages": [MESSAGES[0], {"role": "user", "content": parts}]}
    trace = read_lines(tmp_path, [row], tokenizer=WordEncoder())
    assert trace.info is not None
    assert trace.prompt_tokens.tolist() == [-1]
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


def test_without_a_tokenizer_lengths_stay_as_logged(tmp_path: Path) -> None:
    rows = [
        {"ts": NOW, "messages": MESSAGES, "usage": {"prompt_tokens": 12}},
        {"ts": NOW, "messages": MESSAGES},
    ]
    trace = read_lines(tmp_path, rows)
    assert trace.info is not None
    assert trace.prompt_tokens.tolist() == [12, -1]
    assert [entry.path for entry in trace.unknown] == ["sharing.hit_rate_optimal", "lengths.prompt"]


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
