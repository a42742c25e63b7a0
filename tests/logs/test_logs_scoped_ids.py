"""Qwen-Bailian's and Weka's traces: examples as a person reads them, what ids mean, and whose clock it is."""

from __future__ import annotations

from collections.abc import Sequence
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


class TestQwenBailian:
    def test_example(self, shared: Path) -> None:
        trace = example(shared, "format-examples/qwen_bailian.jsonl")
        assert trace.info is not None
        assert trace.info.format == "qwen-bailian"
        assert trace.info.arrival_basis == "timestamp, seconds from the start"
        assert trace.arrival_s.tolist() == [0.0, 61.114]
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([40, 70], [17, 9])
        assert blocks(trace) == [[0, 1, 2], [0, 1, 3, 4, 5]]
        assert trace.blocks is not None
        assert (trace.blocks.size, trace.blocks.rounding) == (16, "ceil")
        assert names(trace.session) == ["0", "0"]  # the second answers the first
        assert names(trace.route) == ["text", "text"]
        assert unknown(trace) == {
            "sharing.cached_share", "latency.ttft_s", "latency.e2e_s", "log.models", "clients",
        }  # fmt: skip

    def test_a_chain_of_turns_is_one_session(self, tmp_path: Path) -> None:
        chain = [(5, -1), (6, 5), (9, 6), (7, -1), (8, 6), (20, 19), (21, 19)]
        trace = read_lines(tmp_path, [self.row(at, *pair) for at, pair in enumerate(chain)])
        assert names(trace.session) == ["5", "5", "5", "7", "5", "19", "19"]  # 19 came before the log began
        assert "turns whose turn before is not in the log: 1" in notes(trace)

    def test_a_block_behind_another_is_another_block(self, tmp_path: Path) -> None:
        """The README: SipHash of each block. So block 3 behind 1 is not block 3 behind 2."""
        rows = [self.row(at, at, -1) | {"hash_ids": ids} for at, ids in enumerate(([1, 3], [2, 3], [1, 3, 4]))]
        assert blocks(read_lines(tmp_path, rows)) == [[0, 1], [2, 3], [0, 1, 4]]

    def test_ids_that_do_not_fit_are_unknown_content(self, tmp_path: Path) -> None:
        rows = [self.row(0, 0, -1), self.row(1, 1, -1) | {"hash_ids": list(range(9))}]
        trace = read_lines(tmp_path, rows)
        assert trace.blocks is not None
        assert trace.blocks.known is not None
        assert trace.blocks.known.tolist() == [True, False]
        assert "their content left unknown: 1" in notes(trace)

    @staticmethod
    def row(at: float, chat: int, parent: int) -> dict[str, Any]:
        return {
            "chat_id": chat, "parent_chat_id": parent, "timestamp": at, "input_length": 40, "output_length": 1,
            "type": "text", "turn": 1, "hash_ids": [0, 1, 2],
        }  # fmt: skip


class TestWeka:
    def test_example(self, shared: Path) -> None:
        trace = example(shared, "format-examples/weka_trace.json")
        assert trace.info is not None
        assert (trace.info.format, trace.info.lines, trace.info.items) == ("weka", 1, 3)
        # The sub-agent's entry at 6 s lasted 4 s: it was called when the first answer ended, at 2 s.
        assert trace.arrival_s.tolist() == [0.0, 2.0, 12.0]
        assert trace.info.arrival_basis == "t, seconds from the start of the conversation"
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([200, 130, 330], [10, 8, 20])
        assert blocks(trace) == [[0, 1, 2], [3, 4], [0, 1, 2, 5, 6]]
        assert trace.blocks is not None
        assert (trace.blocks.size, trace.blocks.rounding, trace.blocks.scope) == (64, "floor", "conversation")
        assert names(trace.session) == ["trace_x", "trace_x/ag1", "trace_x"]
        assert set(names(trace.model)) == {"claude-example"}
        assert trace.e2e_s is not None
        np.testing.assert_array_equal(trace.e2e_s, [2.0, np.nan, 3.1])
        assert trace.ttft_s is not None
        np.testing.assert_array_equal(trace.ttft_s, [np.nan, np.nan, 0.9])
        assert trace.think_s is not None
        np.testing.assert_array_equal(trace.think_s, [np.nan, np.nan, 4.0])  # no turn before: no think time
        assert trace.parent is not None
        assert trace.parent.tolist() == [-1, -1, 0]
        assert unknown(trace) == {"sharing.cached_share", "clients"}

    def test_conversations_have_no_common_clock(self, tmp_path: Path) -> None:
        """Pooled at t = 0 they would make a burst that never was."""
        rows = [self.conversation("a", [0.0, 30.0]), self.conversation("b", [0.0, 10.0])]
        trace = read_lines(tmp_path, rows)
        assert np.isnan(trace.arrival_s).all()
        assert "arrivals" in unknown(trace)
        assert names(trace.session) == ["a", "b", "b", "a"]
        assert trace.parent is not None
        assert trace.parent.tolist() == [-1, -1, 1, 0]
        assert "2 conversations" in notes(trace)

    @pytest.mark.parametrize(
        ("scope", "expected"), [("local", [[0], [1]]), ("global", [[0], [0]]), (None, [[0], [1]])]
    )
    def test_ids_mean_what_their_scope_says(
        self, tmp_path: Path, scope: str | None, expected: list[list[int]]
    ) -> None:
        rows = [self.conversation(name, [0.0]) | {"hash_id_scope": scope} for name in "ab"]
        trace = read_lines(tmp_path, rows)
        assert blocks(trace) == expected
        assert trace.blocks is not None
        assert trace.blocks.scope == ("global" if scope == "global" else "conversation")

    def test_two_conversations_of_one_name_do_not_share(self, tmp_path: Path) -> None:
        trace = read_lines(tmp_path, [self.conversation("a", [0.0]), self.conversation("a", [0.0, 5.0])])
        assert sorted(blocks(trace)) == [[0], [1], [1]]

    def test_copies(self, tmp_path: Path) -> None:
        """23 of 710 published conversations copy another under a new id; the same file twice is a mistake."""
        rows = [self.conversation(name, [0.0, 9.0]) for name in ("a", "b", "c", "b")]
        trace = read_lines(tmp_path, rows)
        assert trace.info is not None
        assert trace.info.skipped == {"copy of a conversation with the same id": 2}
        assert len(trace) == 6
        assert "under a new id, kept: 2" in notes(trace)
        assert accounted(trace)

    @pytest.mark.parametrize(
        ("entry", "expected", "note"),
        [
            # Published: the entry is written when the sub-agent returns.
            ({"t": 14.1, "duration_ms": 10_000, "first": 0.0}, 4.1, "when it returns"),
            ({"t": 5.0, "duration_ms": None, "first": 0.0}, 5.0, "count from the t of their entry"),
            # Written when it starts: t less the duration would be before the turn that called it.
            ({"t": 5.0, "duration_ms": 60_000, "first": 0.0}, 5.0, "count from the t of their entry"),
            ({"t": 14.1, "duration_ms": 10_000, "first": 4.5}, 4.5, "from the start of the conversation"),
        ],
    )
    def test_where_the_times_of_sub_agents_start(
        self, tmp_path: Path, entry: dict[str, Any], expected: float, note: str
    ) -> None:
        row = self.conversation("a", [0.0, 20.0])
        row["requests"][0]["api_time"] = 4.0
        inner = [{"t": entry.pop("first"), "type": "n", "model": "m", "in": 70, "out": 1, "hash_ids": [9]}]
        row["requests"].insert(1, {"type": "subagent", "agent_id": "x", "requests": inner, **entry})
        trace = read_lines(tmp_path, [row])
        assert trace.arrival_s.tolist() == [0.0, pytest.approx(expected), 20.0]
        assert names(trace.session) == ["a", "a/x", "a"]
        assert note in notes(trace)

    def test_requests_that_do_not_add_up(self, tmp_path: Path) -> None:
        row = self.conversation("a", [0.0])
        good = row["requests"][0]
        row["requests"] += [good | {"hash_ids": [1, 2]}, good | {"t": None}, good | {"in": None}, 7]
        trace = read_lines(
            tmp_path, [row, {**row, "id": "b", "block_size": 16}, {**row, "id": "c", "requests": []}]
        )
        assert trace.info is not None
        assert trace.info.skipped == {
            "more hash_ids than the prompt has full blocks": 1,
            "no arrival time": 1,
            "no prompt length": 1,
            "not a request": 1,
            "another block size than the first conversation's": 5,
            "conversation without requests": 1,
        }
        assert accounted(trace)

    @staticmethod
    def conversation(name: str, times: Sequence[float]) -> dict[str, Any]:
        return {
            "id": name,
            "models": ["m"],
            "block_size": 64,
            "hash_id_scope": "local",
            "tool_tokens": 0,
            "requests": [
                {"t": t, "type": "n", "model": "m", "in": 70, "out": 1, "hash_ids": [1], "think_time": 1.0}
                for t in times
            ],
        }
