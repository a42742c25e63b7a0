"""Published traces without block ids, and datasets: examples as a person reads them, and their known traps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.logs import WordEncoder, accounted, read_lines
from helpers.reading import blocks, names, notes, unknown

from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.trace import Trace


def example(shared: Path, name: str) -> Trace:
    trace = read([shared / "traces" / name], tokenizer=WordEncoder(), options=ReadOptions(block_size=2))
    assert accounted(trace)
    return trace


class TestBurstGPT:
    def test_example_1(self, shared: Path) -> None:
        trace = example(shared, "format-examples/burstgpt_1.csv")
        assert trace.info is not None
        assert trace.info.format == "burstgpt"
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41], [17])
        assert names(trace.model) == ["ChatGPT"]
        assert names(trace.route) == ["Conversation log"]
        assert trace.info.skipped == {"failed request": 2}  # no response tokens
        assert trace.info.arrival_basis == "Timestamp, seconds from midnight of an unknown day"
        assert trace.first_epoch_s is None
        assert unknown(trace) == {"sharing", "latency.ttft_s", "latency.e2e_s", "clients", "sessions"}

    def test_example_3(self, shared: Path) -> None:
        trace = example(shared, "format-examples/burstgpt_3.csv")
        assert trace.arrival_s.tolist() == [0.0, 51.0]
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41, 36], [17, 29])
        assert trace.e2e_s is not None
        assert trace.e2e_s.tolist() == [12.0, 2.0]
        assert trace.ttft_s is None  # Elapsed time is until the end
        assert names(trace.model) == ["GPT-4", "ChatGPT"]
        assert names(trace.session) == ["00000000-0000-4000-8000-000000000001", None]
        assert unknown(trace) == {"sharing", "latency.ttft_s", "clients"}


class TestShareGPT:
    def test_example(self, shared: Path) -> None:
        trace = example(shared, "format-examples/sharegpt.json")
        assert trace.info is not None
        assert trace.info.format == "sharegpt"
        assert trace.info.arrival_basis == "none"
        assert np.isnan(trace.arrival_s).all()
        # "<user> Where do I reset a badge?" and its answer, then all of that and "And a PIN?".
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([7, 14], [2, 2])
        assert blocks(trace) == [[0, 1, 2], [0, 1, 2, 3, 4, 5, 6]]
        assert names(trace.session) == ["x", "x"]
        assert trace.info.skipped == {"answer without a question": 1}
        assert "arrivals" in unknown(trace)

    def test_a_split_chat_goes_on(self, tmp_path: Path) -> None:
        rows = [self.chat("c_0", "a", "b"), self.chat("c_1", "d", "e"), self.chat("c_3", "f", "g")]
        trace = read_lines(tmp_path, rows, tokenizer=WordEncoder())
        assert trace.prompt_tokens.tolist() == [
            2,
            6,
            2,
        ]  # the third part is missing, so the fourth stands alone
        assert names(trace.session) == ["c", "c", "c"]

    def test_a_chat_is_unrolled(self, tmp_path: Path) -> None:
        """vllm-project/vllm#54783: a loader that keeps the first turn only measures no prefix reuse."""
        trace = read_lines(
            tmp_path, [self.chat("c", *"abcdef")], tokenizer=WordEncoder(), options=ReadOptions(block_size=2)
        )
        assert blocks(trace) == [[0], [0, 1, 2], [0, 1, 2, 3, 4]]

    def test_what_is_no_request_is_counted(self, tmp_path: Path) -> None:
        rows = [
            self.chat("c", "a", "b", "open"),
            {"id": "d", "conversations": [{"from": "human", "value": None}]},
            {"id": "e", "conversations": []},
            {"id": "f", "conversations": [{"from": "system", "value": "s"}, {"from": "gpt", "value": "hi"}]},
        ]
        trace = read_lines(tmp_path, rows, tokenizer=WordEncoder())
        assert trace.info is not None
        assert trace.info.skipped == {
            "question without an answer": 1,
            "turn without text": 1,
            "conversation without turns": 1,
            "answer without a question": 1,
        }
        assert accounted(trace)

    def test_role_and_content(self, tmp_path: Path) -> None:
        turns = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]
        trace = read_lines(tmp_path, [{"conversation_id": "x", "conversation": turns}], tokenizer=WordEncoder())
        assert trace.info is not None
        assert (trace.info.format, trace.prompt_tokens.tolist()) == ("sharegpt", [3])

    @staticmethod
    def chat(name: str, *texts: str) -> dict[str, Any]:
        who = ("human", "gpt")
        return {
            "id": name,
            "conversations": [{"from": who[n % 2], "value": text} for n, text in enumerate(texts)],
        }


class TestAIBrix:
    def test_several_requests_in_a_line(self, tmp_path: Path) -> None:
        rows: list[Mapping[str, Any]] = [
            {"timestamp": 6011, "requests": [
                {"Prompt Length": 4, "Output Length": 8, "prompt": "a b c d"},
                {"Prompt Length": 4, "Output Length": 0, "prompt": "a b x y"},
            ]},
            {"timestamp": 6917, "requests": []},
            {"timestamp": 7000, "requests": [{"prompt": "", "prompt_length": None}, 5]},
            {"timestamp": 8011, "requests": [{"prompt": "a b", "prompt_length": 2, "output_length": None}]},
        ]  # fmt: skip
        trace = read_lines(tmp_path, rows, tokenizer=WordEncoder(), options=ReadOptions(block_size=2))
        assert trace.info is not None
        assert trace.info.format == "aibrix"
        assert trace.arrival_s.tolist() == [0.0, 0.0, 2.0]
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([4, 4, 2], [8, 0, -1])
        assert blocks(trace) == [[0, 1], [0, 2], [0]]
        assert trace.info.token_basis.startswith("declared")
        assert trace.info.skipped == {"no request in the row": 1, "no prompt length": 1, "not a request": 1}
        assert accounted(trace)
        assert "sessions" in unknown(trace)


class TestTraceLab:
    @pytest.mark.parametrize("name", ["derived", "sanitized"])
    def test_example_sessions(self, shared: Path, name: str) -> None:
        trace = example(shared, f"tracelab-examples/{name}_round_trace.jsonl")
        assert trace.info is not None
        assert (trace.info.format, len(trace), trace.info.skipped) == ("tracelab", 19, {})
        assert trace.session is not None
        assert len(trace.session.names) == 2  # traces/README.md: 2 short sessions
        assert set(names(trace.model)) == {"claude-opus-4-8", "gpt-5.4"}
        claude = np.array(names(trace.model)) == "claude-opus-4-8"
        prompts, cached = trace.prompt_tokens[claude], trace.cached_tokens
        assert cached is not None
        # The first two rounds: 32,272 = 2,892 uncached + 2,163 written + 27,217 read; then 35,740.
        assert (prompts[:2].tolist(), cached[claude][:2].tolist()) == ([32272, 35740], [27217, 29380])
        assert trace.output_tokens[claude][:2].tolist() == [931, 1016]
        assert trace.e2e_s is not None
        # 05:40:20.151 to 05:40:31.647; then the later of two tool results, 05:40:50.938, to 05:41:04.862.
        assert trace.e2e_s[claude][:2] == pytest.approx([11.496, 13.924])
        assert np.diff(trace.arrival_s[claude])[0] == pytest.approx(30.787)
        assert unknown(trace) == {"sharing", "latency.ttft_s"} | ({"clients"} if name == "sanitized" else set())
        assert "not the sum" not in notes(trace)

    def test_rounds_with_odd_events(self, tmp_path: Path) -> None:
        trace = read_lines(tmp_path, [
            self.row("a", [("text", "00:01:00"), ("text", "00:01:09")]),
            self.row("b", [("user_message", "00:02:00"), ("tool_result", "00:02:30"), ("text", "00:02:20")]),
            self.row("c", []),
            self.row("d", [("user_message", "00:03:00")], input_tokens_total=0),
            self.row("b", [("user_message", "00:02:00"), ("text", "00:02:20")]),
        ])  # fmt: skip
        assert trace.info is not None
        assert trace.arrival_s.tolist() == [0.0, 60.0]
        assert trace.e2e_s is not None
        np.testing.assert_array_equal(trace.e2e_s, [np.nan, 20.0])  # the tool ran while the model still wrote
        assert trace.info.skipped == {"failed request": 1, "no arrival time": 1}
        assert "placed at their first output: 1" in notes(trace)
        assert accounted(trace)

    @staticmethod
    def row(key: str, events: Sequence[tuple[str, str]], **more: Any) -> dict[str, Any]:
        timing = [{"event_type": kind, "timestamp": f"2026-06-01T{at}.000Z"} for kind, at in events]
        row = {
            "session_id": "s",
            "input_tokens_total": 9,
            "prefix_tokens": 4,
            "output_tokens": 2,
            "trace_key": key,
        }
        return {**row, "timing_events": timing, **more}


def test_lmcache_takes_no_log_that_says_more(tmp_path: Path) -> None:
    """Rows with other fields besides are of a logger, whose fields must not be lost."""
    row = {"timestamp": 1_784_000_000, "input": "a b", "output": "c", "session_id": "s", "model": "m"}
    trace = read_lines(tmp_path, [row], tokenizer=WordEncoder())
    assert trace.info is not None
    assert trace.info.format != "lmcache"
    assert names(trace.model) == ["m"]


class TestSaved:
    ROW: Mapping[str, Any] = {"timestamp": 0, "input_length": 40, "block_size": 16, "scope": "global"}

    def test_what_was_unknown_stays_unknown(self, tmp_path: Path) -> None:
        rows = [
            {**self.ROW, "hash_ids": [0, 1], "rounding": "floor"},
            {**self.ROW, "timestamp": 5, "input_length": None, "rounding": "floor"},
        ]
        trace = read_lines(tmp_path, rows)
        assert trace.prompt_tokens.tolist() == [40, -1]
        assert trace.output_tokens.tolist() == [-1, -1]
        assert trace.blocks is not None
        assert trace.blocks.known is not None
        assert trace.blocks.known.tolist() == [True, False]
        assert unknown(trace) == set()

    def test_totals_without_requests(self, tmp_path: Path) -> None:
        totals = {"source": "buckets", "requests": 7, "prompt_tokens": 100, "cached_share": 0.25, "span_s": 60}
        trace = read_lines(tmp_path, [{"totals": totals}])
        assert len(trace) == 0
        assert trace.totals is not None
        assert (trace.totals.source, trace.totals.requests, trace.totals.cached_share) == ("buckets", 7, 0.25)
        assert (trace.totals.output_tokens, trace.totals.model) == (None, None)

    def test_sharing_is_unknown_only_without_blocks(self, tmp_path: Path) -> None:
        trace = read_lines(tmp_path, [{**self.ROW, "block_size": None, "scope": None}])
        assert unknown(trace) == {"sharing"}

    def test_rows_of_the_recorder(self, tmp_path: Path) -> None:
        """Times since 1970, and a scope for every run of the service, whose numbers start again at 0."""
        at = 1_784_000_000_000
        rows = [
            {**self.ROW, "timestamp": at + 1500, "hash_ids": [0], "scope": "r2", "token_basis": "usage"},
            {
                **self.ROW,
                "timestamp": at,
                "hash_ids": [0],
                "scope": "r1",
                "token_basis": "bytes, about 4 a token",
            },
        ]
        trace = read_lines(tmp_path, rows)
        assert trace.arrival_s.tolist() == [0.0, 1.5]
        assert trace.first_epoch_s == at / 1000
        assert blocks(trace) == [[0], [1]]
        assert notes(trace) == (
            "prompt lengths as the server counted them: 1; prompt lengths estimated from bytes: 1"
        )
