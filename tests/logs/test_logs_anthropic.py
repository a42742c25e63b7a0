"""Anthropic's messages and batches, and Claude Code sessions: what their counts hold, what is one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.gateways import cached, info
from helpers.logs import WordEncoder, read_lines, write_lines

from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.trace import Trace

NOW = 1_789_372_800


def trace_of(folder: Path, *rows: dict[str, Any], **keywords: Any) -> Trace:
    trace = read_lines(folder, rows, **keywords)
    info(trace)
    return trace


USAGE = {
    "input_tokens": 9,
    "cache_read_input_tokens": 32,
    "cache_creation_input_tokens": 4,
    "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 1},
    "output_tokens": 17,
}


def exchange(usage: object = None, **changes: Any) -> dict[str, Any]:
    request = {"model": "c", "system": "be kind", "messages": [{"role": "user", "content": "hello there"}]}
    response = {"type": "message", "model": "c", "usage": USAGE if usage is None else usage, "content": []}
    return {"ts": NOW, "request": request, "response": response} | changes


class TestAnthropicMessages:
    @pytest.mark.parametrize(
        ("usage", "total", "read"),
        [
            (USAGE, 45, 32),
            ({"input_tokens": 900, "cache_read_input_tokens": 32, "output_tokens": 1}, 932, 32),
            ({"input_tokens": 9, "cache_read_input_tokens": None, "output_tokens": 1}, 9, -1),
            ({"input_tokens": 0, "cache_read_input_tokens": 32, "output_tokens": 1}, 32, 32),
        ],
        ids=["all", "more new than cached", "no cache", "nothing new"],
    )
    def test_input_tokens_leave_the_cache_out(
        self, tmp_path: Path, usage: dict[str, Any], total: int, read: int
    ) -> None:
        trace = trace_of(tmp_path, exchange(usage))
        assert info(trace).format == "anthropic-messages"
        assert (trace.prompt_tokens.tolist(), cached(trace)) == ([total], [read])

    def test_how_long_the_cache_keeps_is_said(self, tmp_path: Path) -> None:
        """BerriAI/litellm#42663: the split may miss iterations, so it never makes the total."""
        split = {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 0}
        trace = trace_of(tmp_path, exchange(), exchange(USAGE | {"cache_creation": split}))
        assert trace.prompt_tokens.tolist() == [45, 45]
        note = "prompt tokens written to the provider's cache: 4 for 5 minutes, 1 for 1 hour"
        assert note in info(trace).notes

    def test_the_prompt_is_tools_system_messages(self, tmp_path: Path) -> None:
        """What differs in a tool shares nothing after it; what differs in the question shares all before."""
        rows = []
        for place, (tool, question) in enumerate((("x", "one"), ("x", "two"), ("y", "one"))):
            row = exchange(ts=NOW + place)
            row["request"] |= {"tools": [{"name": tool}], "messages": [{"role": "user", "content": question}]}
            rows.append(row)
        trace = trace_of(tmp_path, *rows, options=ReadOptions(block_size=1), tokenizer=WordEncoder())
        assert trace.blocks is not None
        first, second, third = (trace.blocks.row(row).tolist() for row in range(3))
        assert (first[:-1] == second[:-1], first[-1] == second[-1]) == (True, False)
        assert first[1] != third[1]  # the name of the tool, and so all that follows

    def test_tool_use_and_results_are_content(self, tmp_path: Path) -> None:
        blocks = [
            {
                "type": "tool_result",
                "tool_use_id": "t",
                "content": [{"type": "text", "text": "four words are here"}],
            },
            {"type": "text", "text": "and"},
            {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
        ]
        row = exchange()
        row["request"]["messages"] = [{"role": "user", "content": blocks}]
        row["response"]["usage"] = {"input_tokens": 7 + 1, "output_tokens": 1}
        trace = trace_of(tmp_path, row, tokenizer=WordEncoder())
        text = "<system> be kind <user> four words are here and <|media-0123|>"
        assert f"{len(text.split()) / 8:.1%}" in " ".join(info(trace).notes)
        assert any("pictures" in note for note in info(trace).notes)

    def test_a_response_alone(self, tmp_path: Path) -> None:
        row = {"ts": NOW} | exchange()["response"]
        trace = trace_of(tmp_path, row)
        assert (trace.prompt_tokens.tolist(), trace.blocks) == ([45], None)

    def test_a_stream_that_was_cut(self, tmp_path: Path) -> None:
        """BerriAI/litellm#37734: the first event has the prompt's counts, and a placeholder for the output."""
        start = {"type": "message_start", "message": {"model": "c", "usage": USAGE | {"output_tokens": 1}}}
        delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}}
        trace = trace_of(tmp_path, exchange(response=[start, delta]), exchange())
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([45, 45], [-1, 17])


class TestAnthropicBatch:
    def test_requests_and_results(self, tmp_path: Path) -> None:
        rows = [
            {"custom_id": "a", "params": exchange()["request"]},
            {"custom_id": "b", "params": exchange()["request"]},
            {"custom_id": "b", "result": {"type": "expired"}},
            {"custom_id": "a", "result": {"type": "succeeded", "message": exchange()["response"]}},
        ]
        trace = trace_of(tmp_path, *rows, tokenizer=WordEncoder())
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([45], [17])
        assert info(trace).skipped == {"failed request": 1}
        assert trace.blocks is not None

    @pytest.mark.parametrize("kind", ["errored", "canceled", "expired"])
    def test_what_did_not_succeed(self, tmp_path: Path, kind: str) -> None:
        good = {"custom_id": "a", "result": {"type": "succeeded", "message": exchange()["response"]}}
        trace = trace_of(tmp_path, good, {"custom_id": "b", "result": {"type": kind}})
        assert info(trace).skipped == {"failed request": 1}


def line(
    uuid: str, parent: str | None, second: float, message: dict[str, Any], **changes: Any
) -> dict[str, Any]:
    kind = message.get("role", "system")
    stamp = f"2026-09-14T08:00:{second:06.3f}Z"
    row = {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "timestamp": stamp}
    return row | {"message": message} | changes


def block(id: str, output: int = 17, **changes: Any) -> dict[str, Any]:  # noqa: A002 (the API's name)
    usage = USAGE | {"output_tokens": output}
    return {"role": "assistant", "id": id, "model": "c", "content": [], "usage": usage} | changes


USER = {"role": "user", "content": "do it"}


class TestClaudeCode:
    def test_one_answer_of_several_lines(self, tmp_path: Path) -> None:
        """anthropics/claude-code#87303, #25941: the same usage on each line, a placeholder on the first."""
        rows = [
            line("u0", None, 0, USER),
            line("a1", "u0", 4, block("m1", 1), requestId="r1"),
            line("a2", "a1", 5, block("m1", 1), requestId="r1"),
            line("a3", "a2", 7.5, block("m1", 90), requestId="r1"),
        ]
        trace = trace_of(tmp_path, *rows)
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), cached(trace)) == ([45], [90], [32])
        assert trace.e2e_s is not None
        assert trace.e2e_s.tolist() == [7.5]
        assert info(trace).skipped == {"not a request": 1}
        note = "prompt tokens written to the provider's cache: 3 for 5 minutes, 1 for 1 hour"
        assert note in info(trace).notes  # once a call, not once a line

    @pytest.mark.parametrize(
        "ids",
        [(None, None), ("r1", "r1"), ("r1", None), (None, "r1")],
        ids=["never", "always", "first only", "last only"],
    )
    def test_request_ids_that_are_missing(self, tmp_path: Path, ids: tuple[str | None, str | None]) -> None:
        """ccusage/ccusage#985, junhoyeo/tokscale#80: some builds leave them out."""
        rows = [line("u0", None, 0, USER)]
        for place, request in enumerate(ids):
            row = line(f"a{place}", "u0", 4 + place, block("m1", 1 + 89 * place))
            rows.append(row if request is None else row | {"requestId": request})
        assert trace_of(tmp_path, *rows).output_tokens.tolist() == [90]

    def test_one_message_id_of_two_requests(self, tmp_path: Path) -> None:
        rows = [line(f"a{n}", None, n, block("m1", n + 1), requestId=f"r{n}") for n in range(2)]
        assert trace_of(tmp_path, *rows).output_tokens.tolist() == [1, 2]

    def test_a_call_starts_with_the_line_before(self, tmp_path: Path) -> None:
        """A tool's result starts the next call; where it is missing, there is only the answer's time."""
        tool = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]}
        rows = [
            line("u0", None, 1, USER),
            line("a1", "u0", 4, block("m1"), requestId="r1"),
            line("u2", "a1", 10, tool),
            line("a3", "u2", 12, block("m2"), requestId="r2"),
            line("a4", "gone", 20, block("m3"), requestId="r3"),
        ]
        trace = trace_of(tmp_path, *rows)
        assert trace.e2e_s is not None
        assert trace.arrival_s.tolist() == [0, 9, 19]
        assert [round(value, 3) for value in trace.e2e_s.tolist()[:2]] == [3, 2]
        note = "calls whose line before is not in the log, so placed at their first block: 1"
        assert note in info(trace).notes

    def test_lines_that_are_no_calls(self, tmp_path: Path) -> None:
        rows = [
            {"type": "summary", "summary": "a chat", "leafUuid": "x"},
            {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}},
            line("s0", None, 0, {"content": "compacted"}, type="system"),
            line("u0", None, 0, USER, isSidechain=True),
            line("a1", "u0", 4, block("m1"), isSidechain=True, requestId="r1"),
            line("a2", "u0", 5, block("m2", model="<synthetic>")),
            line("a3", "u0", 6, block("m3", model="<synthetic>"), isApiErrorMessage=True),
        ]
        trace = trace_of(tmp_path, *rows)
        assert len(trace) == 1
        assert info(trace).skipped == {"not a request": 5, "failed request": 1}
        assert "calls of sub-agents, counted in the session that started them: 1" in info(trace).notes

    def test_a_resumed_session_repeats_lines(self, tmp_path: Path) -> None:
        rows = [line("u0", None, 0, USER), line("a1", "u0", 4, block("m1"), requestId="r1")]
        files = [write_lines(tmp_path / name, rows) for name in ("one.jsonl", "two.jsonl")]
        trace = read(files)
        assert (len(trace), info(trace).files) == (1, 2)
