"""Public reports of trouble with logs (logs.md B19) that a log can show: each as the rows that its author had.

Reports that concern one format deeply stand in the tests of that format, with their numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import otlp
from helpers.gateways import cached, info, unknown
from helpers.logs import WordEncoder, read_lines, write_lines
from helpers.reading import blocks

from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.workload.measure import measure

NOW = 1_789_372_800
WORDS = WordEncoder()
LONG = [{"role": "user", "content": "word " * 400}]


def spend(**fields: Any) -> dict[str, Any]:
    """A row of LiteLLM's spend logs, of a stream that went well."""
    return {
        "request_id": "r", "call_type": "acompletion", "startTime": "2026-09-14T08:00:00Z", "status": "success",
        "endTime": "2026-09-14T08:00:09Z", "completionStartTime": "2026-09-14T08:00:01Z", "model": "m",
        "model_group": "m", "custom_llm_provider": "openai", "api_key": "k", "spend": 0.0, "cache_hit": "False",
        "prompt_tokens": 401, "completion_tokens": 7, "metadata": {}, "messages": {}, "response": {},
    } | fields  # fmt: skip


class TestLiteLLM:
    def test_15641_no_prompts_are_unknown_sharing_and_the_setting_is_named(self, tmp_path: Path) -> None:
        """BerriAI/litellm#15641: `messages` and `response` are `{}`."""
        trace = read_lines(tmp_path, [spend(), spend(request_id="s")], tokenizer=WORDS)
        assert (trace.prompt_tokens.tolist(), trace.blocks) == ([401, 401], None)
        assert "store_prompts_in_spend_logs" in unknown(trace)["sharing"]
        assert measure(trace).sharing.hit_rate_tokens is None

    def test_36943_a_dropped_usage_is_no_empty_answer(self, tmp_path: Path) -> None:
        """BerriAI/litellm#36943: prompts of 401 tokens as 50, answers as 0; the text shows both."""
        answer = {"choices": [{"message": {"role": "assistant", "content": "one two three"}}]}
        row = spend(prompt_tokens=50, completion_tokens=0, messages=LONG, response=answer)
        trace = read_lines(tmp_path, [row], tokenizer=WORDS)
        assert trace.output_tokens.tolist() == [3]
        assert any("802.0%" in note for note in info(trace).notes)  # 401 words of 50 tokens
        assert read_lines(tmp_path, [row], options=ReadOptions(text="bytes")).output_tokens.tolist() == [-1]

    def test_37734_a_cut_stream_has_a_prompt(self, tmp_path: Path) -> None:
        """BerriAI/litellm#37734: zero prompt tokens and no cache fields."""
        rows = [spend(prompt_tokens=0, completion_tokens=0, messages=LONG), spend(request_id="s")]
        trace = read_lines(tmp_path, rows, tokenizer=WORDS)
        assert trace.prompt_tokens.tolist() == [401, 401]
        assert trace.output_tokens.tolist() == [-1, 7]
        assert cached(trace) == [-1, -1]

    def test_16341_missing_cached_tokens_are_unknown_not_none(self, tmp_path: Path) -> None:
        """BerriAI/litellm#16341: what the provider cached by itself is not in the row."""
        trace = read_lines(tmp_path, [spend()])
        assert cached(trace) == [-1]
        sharing = measure(trace).sharing
        assert sharing.cached_share is None
        assert any(entry.path == "sharing.cached_share" for entry in measure(trace).unknown)

    def test_42663_the_split_of_cache_writes_is_not_their_sum(self, tmp_path: Path) -> None:
        """BerriAI/litellm#42663: the split by lifetime covers the first iteration only."""
        usage = {
            "input_tokens": 9, "cache_read_input_tokens": 32, "cache_creation_input_tokens": 300,
            "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 5,
        }  # fmt: skip
        row = {
            "ts": NOW,
            "request": {"model": "c", "system": "s", "messages": [{"role": "user", "content": "a"}]},
            "response": {"type": "message", "model": "c", "usage": usage},
        }
        assert read_lines(tmp_path, [row]).prompt_tokens.tolist() == [341]


class TestOpenTelemetry:
    @pytest.mark.parametrize(
        ("report", "name"),
        [
            ("open-telemetry/semantic-conventions#3163", "gen_ai.usage.cache_read.input_tokens"),
            ("pydantic/logfire#1812", "gen_ai.usage.cache_read_input_tokens"),
        ],
    )
    @pytest.mark.parametrize("tokens", [41, 9])
    def test_input_tokens_include_the_cache_or_do_not(
        self, tmp_path: Path, report: str, name: str, tokens: int
    ) -> None:
        """The definition changed: 32 of 41 tokens were cached either way."""
        trace = read_lines(tmp_path, [otlp.batch(otlp.chat("a", (tokens, 17), more={name: 32}))])
        assert (trace.prompt_tokens.tolist(), cached(trace)) == ([41], [32]), report

    @pytest.mark.parametrize("tokens", [41, 9])
    def test_1429_openinference_too(self, tmp_path: Path, tokens: int) -> None:
        """Arize-ai/openinference#1429."""
        items = {
            "openinference.span.kind": "LLM", "llm.model_name": "m", "llm.token_count.prompt": tokens,
            "llm.token_count.completion": 17, "llm.token_count.prompt_details.cache_read": 32,
        }  # fmt: skip
        span = otlp.span("ChatCompletion", NOW * 10**9, (NOW + 1) * 10**9, items)
        trace = read_lines(tmp_path, [otlp.batch(span)])
        assert (trace.prompt_tokens.tolist(), cached(trace)) == ([41], [32])


class TestClaudeCode:
    def line(self, output: int, **fields: Any) -> dict[str, Any]:
        usage = {"input_tokens": 2, "cache_read_input_tokens": 90, "output_tokens": output}
        message = {"id": "msg_1", "role": "assistant", "model": "c", "usage": usage, "content": []}
        start = {"type": "assistant", "uuid": "a", "sessionId": "s", "timestamp": "2026-09-14T08:00:06Z"}
        return start | {"requestId": "req_1", "message": message} | fields

    def test_87303_one_response_on_several_lines_counts_once(self, tmp_path: Path) -> None:
        """anthropics/claude-code#87303 and #25941: the usage is on every line, first as a placeholder."""
        lines = [self.line(1), self.line(1), self.line(250)]
        trace = read_lines(tmp_path, lines)
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([92], [250])

    def test_985_also_without_the_id_of_the_request(self, tmp_path: Path) -> None:
        """ccusage/ccusage#985, junhoyeo/tokscale#80, getagentseal/codeburn#201."""
        lines = [self.line(1, requestId=None), self.line(250, requestId=None)]
        assert read_lines(tmp_path, lines).output_tokens.tolist() == [250]

    def test_201_a_session_that_was_resumed_repeats_its_lines(self, tmp_path: Path) -> None:
        """A second file begins with the lines of the first."""
        write_lines(tmp_path / "a.jsonl", [self.line(250)])
        write_lines(tmp_path / "b.jsonl", [self.line(250), self.line(30, timestamp="2026-09-14T08:01:00Z")])
        other = json.loads((tmp_path / "b.jsonl").read_text().splitlines()[1])
        other["message"]["id"], other["requestId"] = "msg_2", "req_2"
        write_lines(tmp_path / "b.jsonl", [self.line(250), other])
        assert sorted(read([tmp_path]).output_tokens.tolist()) == [30, 250]


def test_5652_sglang_without_text_names_the_level(tmp_path: Path) -> None:
    """sgl-project/sglang#5652: request content is not visible in the log."""
    counts = {"prompt_tokens": 41, "completion_tokens": 7, "e2e_latency": 1.5}
    row = {
        "timestamp": "2026-09-14T08:00:01.5", "event": "request.finished", "rid": "d1",
        "obj": {"rid": "d1", "sampling_params": {}}, "out": {"meta_info": counts},
    }  # fmt: skip
    trace = read_lines(tmp_path, [row], tokenizer=WORDS)
    assert (trace.prompt_tokens.tolist(), trace.blocks) == ([41], None)
    assert "--log-requests-level" in unknown(trace)["sharing"]


@pytest.mark.parametrize("cut", [60, 200])
def test_30098_an_audit_copy_that_stops_early_has_no_answer_to_count(tmp_path: Path, cut: int) -> None:
    """open-webui/open-webui#30098: the copy stops at 2,048 bytes, so the usage chunk is never in it."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "choices": [{"delta": {"content": "Open the"}}]}
    stream = f"data: {json.dumps(chunk)}\n\n" * 3
    row = {"ts": NOW, "request_body": {"model": "m", "messages": LONG}, "response_body": stream[:cut]}
    trace = read_lines(tmp_path, [row], tokenizer=WORDS)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([401], [-1])


def test_992_weka_with_more_columns(tmp_path: Path) -> None:
    """vllm-project/guidellm#992: a strict reader rejects every trace that follows the specification."""
    request = {
        "t": 0.0, "type": "n", "model": "m", "in": 130, "out": 2, "hash_ids": [1, 2], "api_time": 1.0,
        "stop": "end_turn", "ttft": 0.5, "input_types": ["text"], "output_types": ["text"], "new": {"a": 1},
    }  # fmt: skip
    document = {"id": "c", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [request]}
    trace = read_lines(tmp_path, [document | {"also_new": [1], "tool_tokens": 1}])
    assert (trace.prompt_tokens.tolist(), blocks(trace)) == ([130], [[0, 1]])


def test_1219_an_id_that_is_partial_here_and_full_there(tmp_path: Path) -> None:
    """ai-dynamo/aiperf#1219: replay aborts. Reading does not, and never finds more than the prompts have."""
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 5]},
        {"timestamp": 1000, "input_length": 1100, "output_length": 1, "hash_ids": [1, 5, 7]},
        {"timestamp": 2000, "input_length": 600, "output_length": 1, "hash_ids": [1, 5]},
    ]
    sharing = measure(read_lines(tmp_path, rows)).sharing
    assert sharing.hit_rate_tokens is not None
    # At least the full first block of both later prompts; at most all of the last and two blocks of the second.
    assert 2 * 512 / 2300 <= sharing.hit_rate_tokens <= (600 + 1024) / 2300


@pytest.mark.parametrize("mark", [{}, {"status": None}, {"error": ""}])
def test_205_a_failed_request_without_a_mark(tmp_path: Path, mark: dict[str, Any]) -> None:
    """burncloud/burncloud#205, deltawi/deltallm#51: rows of zero tokens that say nothing else."""
    rows = [
        {"ts": NOW, "prompt_tokens": 41, "completion_tokens": 7},
        {"ts": NOW + 1, "prompt_tokens": 0, "completion_tokens": 0} | mark,
    ]
    trace = read_lines(tmp_path, rows)
    assert (len(trace), info(trace).skipped) == (1, {"failed request": 1})
