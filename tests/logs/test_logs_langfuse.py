"""Langfuse's exports: cached tokens counted twice or not, units, spans, and the reports of such trouble."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.gateways import cached, info, said, unknown
from helpers.logs import WordEncoder, read_lines

from advisor.logs.read import read

WORDS = WordEncoder()
USER = [{"role": "user", "content": "a b c"}]  # four tokens: one for the role


def generation(name: str, usage: Mapping[str, int], **fields: Any) -> dict[str, Any]:
    """An observation of Langfuse's UI export."""
    return {
        "id": name, "traceId": "t", "type": "GENERATION", "startTime": "2026-09-14T08:00:00.000Z",
        "endTime": "2026-09-14T08:00:02.000Z", "completionStartTime": "2026-09-14T08:00:01.000Z",
        "usageDetails": usage, "level": "DEFAULT",
    } | fields  # fmt: skip


class TestLangfuse:
    @pytest.mark.parametrize(
        ("report", "usage", "prompt"),
        [
            # The counts of the reports; a total that no one gave is Langfuse's sum of all buckets.
            ("10592", {"input": 17903, "input_cached_tokens": 17817, "output": 50, "total": 35770}, 17903),
            ("5568", {"input": 1999, "input_cached_tokens": 1792, "output": 10, "total": 3801}, 1999),
            (
                "12306",
                {
                    "input": 130213,
                    "cache_read_input_tokens": 128955,
                    "cache_creation_input_tokens": 1253,
                    "output": 9,
                },
                130213,
            ),
            ("dust 20989", {"input": 9844, "cache_read_input_tokens": 9842, "output": 7}, 9844),
            (
                "codex plugin 22",
                {"input": 117231, "cache_read_input_tokens": 115584, "output": 225, "total": 117456},
                117231,
            ),
            (
                "litellm 26919",  # the input still holds the 3,000 written
                {
                    "input": 4000,
                    "cache_read_input_tokens": 6000,
                    "cache_creation_input_tokens": 3000,
                    "output": 500,
                    "total": 10500,
                },
                10000,
            ),
            (
                "litellm 16203",
                {"input": 0, "cache_read_input_tokens": 8000, "output": 100, "total": 8100},
                8000,
            ),
            ("as documented", {"input": 9, "input_cached_tokens": 32, "output": 17, "total": 58}, 41),
            ("no input", {"input_cached_tokens": 32, "output": 17, "total": 58}, 41),
        ],
    )
    def test_cached_tokens_are_counted_once(
        self, tmp_path: Path, report: str, usage: dict[str, int], prompt: int
    ) -> None:
        trace = read_lines(tmp_path, [generation("o", usage)])
        assert trace.prompt_tokens.tolist() == [prompt], report
        assert cached(trace) == [
            max(count for name, count in usage.items() if "cach" in name and "creat" not in name)
        ]

    def test_the_log_tells_how_rows_count_that_do_not_tell_themselves(self, tmp_path: Path) -> None:
        little = {"input": 100, "input_cached_tokens": 10, "output": 5}
        rows = [generation("a", little), generation("b", {"input": 20, "input_cached_tokens": 80, "output": 5})]
        assert read_lines(tmp_path, rows).prompt_tokens.tolist() == [110, 100]
        rows = [
            generation("a", little),
            generation("b", {"input": 100, "input_cached_tokens": 95, "output": 5}),
        ]
        trace = read_lines(tmp_path, rows)
        assert trace.prompt_tokens.tolist() == [100, 100]
        basis = info(trace).token_basis
        assert basis == "logged counts (rows that hold the cached tokens: 2)"

    def test_reasoning_is_output(self, tmp_path: Path) -> None:
        apart = {"input": 10, "output": 20, "output_reasoning_tokens": 300, "total": 330}
        inside = {"input": 10, "output": 320, "output_reasoning_tokens": 300, "total": 330}
        cached_too = {"input": 100, "input_cached_tokens": 90, "total": 420}
        mixed = cached_too | {"output": 20, "output_reasoning_tokens": 300}
        trace = read_lines(tmp_path, [generation("a", apart), generation("b", inside), generation("c", mixed)])
        assert trace.output_tokens.tolist() == [320, 320, 320]
        assert trace.prompt_tokens.tolist() == [10, 10, 100]

    def test_no_usage_is_unknown(self, tmp_path: Path) -> None:
        rows = [generation("a", {}, input=USER), generation("b", {}), generation("c", {}, promptTokens=7)]
        trace = read_lines(tmp_path, rows, tokenizer=WORDS)
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([4, 7], [-1, -1])
        assert info(trace).skipped == {"no token counts": 1}

    def test_only_generations_are_calls(self, tmp_path: Path) -> None:
        some = {"input": 5, "output": 5}
        kinds = ("SPAN", "EVENT", "AGENT", "CHAIN", "TOOL", "RETRIEVER", "EVALUATOR", "GUARDRAIL", "EMBEDDING")
        rows = [generation("call", some), *(generation(kind, some, type=kind) for kind in kinds)]
        skipped = {"not a request": 8, "other operation than generating text": 1}
        assert info(read_lines(tmp_path, rows)).skipped == skipped

    def test_an_error_with_output_is_kept_with_its_status(self, tmp_path: Path) -> None:
        rows = [generation("a", {"input": 5, "output": 5}, level="ERROR"), generation("b", {}, level="ERROR")]
        trace = read_lines(tmp_path, rows)
        assert (len(trace), said(trace.status), info(trace).skipped) == (1, "error", {"failed request": 1})

    @pytest.mark.parametrize(("latency", "ttft"), [(2.0, 1.0), (2000, 1000), (2000, 1.0)])
    def test_times_decide_whatever_the_unit_of_the_durations(
        self, tmp_path: Path, latency: float, ttft: float
    ) -> None:
        row = generation("a", {"input": 5, "output": 5}, latency=latency, timeToFirstToken=ttft)
        trace = read_lines(tmp_path, [row])
        assert trace.ttft_s is not None
        assert trace.e2e_s is not None
        assert (trace.ttft_s.tolist(), trace.e2e_s.tolist()) == ([1.0], [2.0])

    @pytest.mark.parametrize(("ttft", "unit"), [(0.31, "seconds"), (310, "milliseconds")])
    def test_a_duration_alone_is_read_in_its_unit(self, tmp_path: Path, ttft: float, unit: str) -> None:
        row = {
            "id": "o", "trace_id": "t", "type": "GENERATION", "start_time": "2026-09-14 08:00:00.120000",
            "end_time": "2026-09-14 08:00:01.500000", "time_to_first_token": ttft,
            "usage_details": {"input": 5, "output": 5},
        }  # fmt: skip
        trace = read_lines(tmp_path, [row])
        assert trace.ttft_s == pytest.approx([0.31])
        assert f"time_to_first_token is read as {unit}: 1 requests" in info(trace).notes

    def test_both_folders_of_an_export_hold_the_same_calls(self, tmp_path: Path) -> None:
        old = {
            "id": "o", "trace_id": "t", "type": "GENERATION", "start_time": "2026-09-14 08:00:00.120000",
            "end_time": "2026-09-14 08:00:01.500000", "usage_details": '{"input": 5, "output": 5}',
        }  # fmt: skip
        new = old | {"user_id": "u", "session_id": "s", "completion_start_time": "2026-09-14 08:00:00.430000"}
        for folder, row in (("observations", old), ("observations_v2", new)):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "1.jsonl").write_text(json.dumps(row) + "\n")
        trace = read([tmp_path])
        assert (len(trace), said(trace.client), said(trace.session)) == (1, "u", "s")
        assert trace.ttft_s == pytest.approx([0.31])
        alone = read([tmp_path / "observations"])
        assert {"clients", "sessions", "sharing", "latency.ttft_s"} <= unknown(alone).keys()

    def test_tools_that_langchain_puts_last_come_first(self, tmp_path: Path) -> None:
        tool = {"type": "function", "function": {"name": "lookup " * 20}}
        rows = [
            generation(
                f"{index}", {"input": 60, "output": 1}, input=[*said_before, {"role": "tool", "content": tool}]
            )
            for index, said_before in enumerate((USER, [{"role": "user", "content": "x y z"}]))
        ]
        trace = read_lines(tmp_path, rows, tokenizer=WORDS)
        assert trace.blocks is not None
        assert [trace.blocks.row(row).tolist() for row in (0, 1)] == [[0], [0]]

    def test_an_input_that_is_no_prompt_leaves_the_request(self, tmp_path: Path) -> None:
        odd: list[Any] = [{"args": ["a"], "kwargs": {}}, ["a", "b"], 7, "", None]
        rows = [
            generation(f"{index}", {"input": 5, "output": 5}, input=value) for index, value in enumerate(odd)
        ]
        trace = read_lines(tmp_path, rows, tokenizer=WORDS)
        assert (len(trace), trace.blocks) == (5, None)
        assert unknown(trace)["sharing"].endswith("docs/collecting-logs.md")
