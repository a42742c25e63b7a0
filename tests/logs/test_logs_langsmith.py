"""LangSmith's runs: counts in odd places, threads, chains, LangChain's messages."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from helpers.gateways import cached, info, said
from helpers.logs import WordEncoder, read_lines

WORDS = WordEncoder()
USER = [{"role": "user", "content": "a b c"}]  # four tokens: one for the role


def run(name: str, **fields: Any) -> dict[str, Any]:
    """A LangSmith run of a model."""
    return {
        "id": name, "run_type": "llm", "start_time": "2026-09-14T08:00:00", "end_time": "2026-09-14T08:00:02",
        "first_token_time": None, "status": "success", "inputs": {"messages": [USER]}, "prompt_tokens": 0,
        "completion_tokens": 0, "outputs": {}, "extra": {}, "session_id": "project",
    } | fields  # fmt: skip


class TestLangSmith:
    def test_litellm_7638_counts_at_the_top_are_zero_and_those_in_the_outputs_right(
        self, tmp_path: Path
    ) -> None:
        usage = {"input_tokens": 41, "output_tokens": 17}
        places: list[dict[str, Any]] = [
            {"usage_metadata": usage | {"input_token_details": {"cache_read": 32}}},
            {"generations": [[{"message": {"kwargs": {"usage_metadata": usage}}}]]},
            {"llm_output": {"token_usage": {"prompt_tokens": 41, "completion_tokens": 17}}},
        ]
        rows = [run(f"{index}", outputs=outputs) for index, outputs in enumerate(places)]
        top = {"prompt_tokens": 41, "completion_tokens": 17}
        rows.append(run("top", prompt_token_details={"cache_read": 1}, **top))
        rows.append(run("zero", outputs={"usage_metadata": {"input_tokens": 0, "output_tokens": 0}}, **top))
        trace = read_lines(tmp_path, rows)
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41] * 5, [17] * 5)
        assert cached(trace) == [32, -1, -1, 1, -1]
        assert trace.ttft_s is None

    def test_sdk_225_and_218_runs_without_counts_are_counted_from_their_text(self, tmp_path: Path) -> None:
        answered = {"generations": [[{"text": "one two"}]]}
        trace = read_lines(tmp_path, [run("a", outputs=answered)], tokenizer=WORDS)
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([4], [2])
        trace = read_lines(tmp_path, [run("a", outputs=answered)])
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([-1], [-1])

    def test_langchain_29435_the_first_token_is_an_event(self, tmp_path: Path) -> None:
        events = [{"name": "start", "time": "2026-09-14T08:00:00"}]
        events += [{"name": "new_token", "time": f"2026-09-14T08:00:0{second}"} for second in (1, 2)]
        rows = [run("a", events=events), run("b", events=json.dumps(events)), run("c", events=[])]
        trace = read_lines(tmp_path, rows, tokenizer=WORDS)
        assert trace.ttft_s is not None
        assert trace.ttft_s[:2].tolist() == [1.0, 1.0]
        assert math.isnan(trace.ttft_s[2])

    def test_the_thread_is_the_session_and_the_project_is_not(self, tmp_path: Path) -> None:
        rows = [
            run("a", extra={"metadata": {"thread_id": "t"}}),
            run("b", extra='{"metadata": {"conversation_id": "c"}}'),
            run("c"),
        ]
        trace = read_lines(tmp_path, rows, tokenizer=WORDS)
        assert [said(trace.session, row) for row in range(3)] == ["t", "c", None]

    def test_chains_repeat_the_tokens_of_their_calls(self, tmp_path: Path) -> None:
        kinds = ("chain", "tool", "retriever", "parser", "prompt", "embedding")
        rows = [run("a"), *(run(kind, run_type=kind, prompt_tokens=41) for kind in kinds)]
        trace = read_lines(tmp_path, rows, tokenizer=WORDS)
        assert len(trace) == 1
        assert info(trace).skipped == {"not a request": 5, "other operation than generating text": 1}

    def test_batches_and_unfinished_runs_are_counted(self, tmp_path: Path) -> None:
        rows = [run("a"), run("b", inputs={"messages": [USER, USER]}), run("c", status="pending")]
        trace = read_lines(tmp_path, rows, tokenizer=WORDS)
        assert info(trace).skipped == {"several prompts in one request": 1, "unfinished request": 1}

    def test_arguments_of_tool_calls_are_content(self, tmp_path: Path) -> None:
        def inputs(city: str) -> dict[str, Any]:
            call = {"name": "weather", "args": {"city": city}, "id": "1", "type": "tool_call"}
            said_before = {"id": ["m", "AIMessage"], "kwargs": {"content": "w " * 20, "tool_calls": [call]}}
            return {
                "messages": [[said_before, {"id": ["m", "HumanMessage"], "kwargs": {"content": "x " * 40}}]]
            }

        class WithCalls(WordEncoder):
            def encode_chat(self, messages: Any, **_: Any) -> list[int]:
                words = [
                    f"{message['role']} {message['content']} {message.get('tool_calls')}"
                    for message in messages
                ]
                return self.encode_batch([" ".join(words)])[0]

        rows = [run(city, inputs=inputs(city), prompt_tokens=70) for city in ("Rome", "Oslo")]
        trace = read_lines(tmp_path, rows, tokenizer=WithCalls())
        assert trace.blocks is not None
        first, second = trace.blocks.row(0).tolist(), trace.blocks.row(1).tolist()
        assert (first[0], first[1]) == (second[0], 1)
        assert not set(first[1:]) & set(second[1:])
