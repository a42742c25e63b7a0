"""Helicone, Portkey, OpenRouter and Envoy AI Gateway: what each gets wrong or leaves out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.gateways import cached, info, said, unknown
from helpers.logs import WordEncoder, read_lines

from advisor.logs.read import read

WORDS = WordEncoder()
USER = [{"role": "user", "content": "a b c"}]  # four tokens: one for the role
CHAT = "/v1/chat/completions"


class TestHelicone:
    ROW: Mapping[str, Any] = {
        "request_id": "a", "request_created_at": "2026-09-14T08:00:00.120Z", "response_status": 200,
        "request_path": "https://api.example/v1/chat/completions", "delay_ms": 1380, "completion_tokens": 17,
        "request_body": {"helicone_message": "fetching body from signed_url"}, "provider": "OPENAI",
    }  # fmt: skip

    def test_each_provider_counts_its_own_way(self, tmp_path: Path) -> None:
        """Anthropic's prompt_tokens left out the cached ones before Helicone's pull request 4655."""
        both = {"prompt_cache_read_tokens": 32, "prompt_cache_write_tokens": 0}
        rows = [
            {**self.ROW, **both, "prompt_tokens": 41},
            {**self.ROW, **both, "request_id": "b", "provider": "ANTHROPIC", "prompt_tokens": 9},
            {**self.ROW, **both, "request_id": "c", "provider": "ANTHROPIC", "prompt_tokens": 50},
        ]
        trace = read_lines(tmp_path, rows)
        assert trace.prompt_tokens.tolist() == [41, 41, 82]
        basis = info(trace).token_basis
        assert basis == (
            "logged counts (rows that hold the cached tokens: 1, rows to which cached tokens were added: 2)"
        )

    def test_the_note_in_place_of_a_body_is_no_prompt(self, tmp_path: Path) -> None:
        trace = read_lines(tmp_path, [{**self.ROW, "prompt_tokens": 41}], tokenizer=WORDS)
        assert trace.blocks is None
        assert "--include-body" in unknown(trace)["sharing"]

    def test_internal_codes_are_failures_and_its_cache_is_no_engine(self, tmp_path: Path) -> None:
        rows = [
            {**self.ROW, "prompt_tokens": 41},
            {**self.ROW, "request_id": "b", "response_status": -3, "completion_tokens": None},
            {**self.ROW, "request_id": "c", "cache_reference_id": "a"},
            {**self.ROW, "request_id": "d", "request_path": "https://api.example/v1/embeddings?x=1"},
        ]
        assert info(read_lines(tmp_path, rows)).skipped == {
            "failed request": 1,
            "answered from the gateway's own cache": 1,
            "other operation than generating text": 1,
        }


class TestPortkey:
    ROW: Mapping[str, Any] = {
        "id": "a", "created_at": "2026-09-14T08:00:00.120Z", "req_units": 41, "res_units": 17, "ai_model": "m",
        "response_status_code": 200, "response_time": 1380,
    }  # fmt: skip

    def test_1180_a_stream_without_input_tokens_is_counted_from_its_text(self, tmp_path: Path) -> None:
        row = {**self.ROW, "req_units": 0, "request": {"messages": USER}}
        assert read_lines(tmp_path, [row], tokenizer=WORDS).prompt_tokens.tolist() == [4]
        assert read_lines(tmp_path, [row]).prompt_tokens.tolist() == [-1]

    def test_cached_tokens_are_in_the_usage_of_the_response(self, tmp_path: Path) -> None:
        openai = {"usage": {"prompt_tokens": 41, "prompt_tokens_details": {"cached_tokens": 32}}}
        anthropic = {
            "usage": {"input_tokens": 9, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 2}
        }
        rows = [
            {**self.ROW, "response": openai},
            {**self.ROW, "id": "b", "response": json.dumps({"body": anthropic}), "req_units": 9},
        ]
        trace = read_lines(tmp_path, rows[:1])
        assert (trace.prompt_tokens.tolist(), cached(trace)) == ([41], [32])
        trace = read_lines(tmp_path, rows[1:])
        assert (trace.prompt_tokens.tolist(), cached(trace)) == ([41], [30])

    def test_its_cache_is_no_engine(self, tmp_path: Path) -> None:
        rows = [
            self.ROW,
            {**self.ROW, "id": "b", "cache_status": "HIT"},
            {**self.ROW, "id": "c", "cache_status": "MISS"},
        ]
        trace = read_lines(tmp_path, rows)
        assert (len(trace), info(trace).skipped) == (2, {"answered from the gateway's own cache": 1})


class TestOpenRouter:
    def test_days_of_the_activity_api_are_sums_not_requests(self, tmp_path: Path) -> None:
        day = {"date": "2026-09-14", "model_permaslug": "q/m", "endpoint_id": "e", "requests": 5}
        days = [
            {**day, "prompt_tokens": 500, "completion_tokens": 50},
            {**day, "date": "2026-09-15", "requests": 15, "prompt_tokens": 2500, "completion_tokens": 150},
        ]
        path = tmp_path / "activity.json"
        path.write_text(json.dumps({"data": days}))
        trace = read([path])
        assert len(trace) == 0
        assert trace.totals is not None
        assert (trace.totals.requests, trace.totals.prompt_tokens, trace.totals.output_tokens) == (
            20,
            3000,
            200,
        )
        assert (trace.totals.span_s, trace.totals.model) == (172_800, "q/m")

    def test_a_cancelled_generation_with_output_is_kept(self, tmp_path: Path) -> None:
        row = {
            "generation_id": "g", "created_at": "2026-09-14 08:00:00.120", "tokens_prompt": 40,
            "tokens_completion": 3, "cancelled": "true",
        }  # fmt: skip
        trace = read_lines(tmp_path, [row, row | {"generation_id": "h", "tokens_completion": 0}])
        assert (trace.output_tokens.tolist(), said(trace.status)) == ([3], "cancelled")
        assert info(trace).skipped == {"failed request": 1}


class TestEnvoy:
    LINE: Mapping[str, Any] = {
        "start_time": "2026-09-14T08:00:00.120Z", "duration": 1380, "response_code": 200, "response_flags": "-",
        "x-envoy-origin-path": CHAT,
    }  # fmt: skip

    def test_2290_a_lost_prompt_count_is_unknown_unless_the_total_tells_it(self, tmp_path: Path) -> None:
        def tokens(prompt: int | None, total: int | None) -> dict[str, Any]:
            names = ("input_tokens", "output_tokens", "total_tokens")
            return {
                f"gen_ai.usage.{name}": count for name, count in zip(names, (prompt, 17, total), strict=True)
            }

        rows = [self.LINE | tokens(0, 58), self.LINE | tokens(0, 17), self.LINE | tokens(None, None)]
        trace = read_lines(tmp_path, rows)
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([41, -1, -1], [17, 17, 17])

    def test_the_other_documented_keys_and_the_cost_types(self, tmp_path: Path) -> None:
        row = {
            **self.LINE, "genai_model_name": "m", "genai_model_name_override": "served",
            "genai_tokens_input": 41, "genai_tokens_output": 17, "genai_tokens_cached_input": 32,
        }  # fmt: skip
        trace = read_lines(tmp_path, [row])
        assert (trace.prompt_tokens.tolist(), cached(trace), said(trace.model)) == ([41], [32], "served")

    def test_without_cost_types_lengths_are_unknown_and_the_setting_is_named(self, tmp_path: Path) -> None:
        trace = read_lines(tmp_path, [self.LINE, self.LINE])
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([-1, -1], [-1, -1])
        assert "llmRequestCosts" in unknown(trace)["lengths.prompt"]
        assert "llmRequestCosts" in unknown(trace)["lengths.output"]

    def test_lines_that_are_no_calls_are_counted(self, tmp_path: Path) -> None:
        rows = [
            self.LINE,
            {**self.LINE, "response_code": 429},
            {**self.LINE, "response_code": 0, "response_flags": "DC"},
            {**self.LINE, "mcp_method": "tools/call"},
            {**self.LINE, "x-envoy-origin-path": "/v1/embeddings"},
        ]
        skipped = {"failed request": 2, "other operation than generating text": 2}
        assert info(read_lines(tmp_path, rows)).skipped == skipped
