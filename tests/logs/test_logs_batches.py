"""OpenAI's batch files and usage buckets: joins, ids used again, sums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.gateways import cached, info, said, unknown
from helpers.logs import WordEncoder, read_lines

from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.trace import Trace
from engine.errors import InputError

NOW = 1_789_372_800


def trace_of(folder: Path, *rows: dict[str, Any], **keywords: Any) -> Trace:
    trace = read_lines(folder, rows, **keywords)
    info(trace)
    return trace


def asked(custom_id: str, prompt: str = "a b c", url: str = "/v1/completions") -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "m", "prompt": prompt}}


def answered(custom_id: str, usage: dict[str, Any] | None, **body: Any) -> dict[str, Any]:
    body = {"model": "m-2026", "created": NOW, "usage": usage} | body
    return {"custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}


class TestOpenAIBatch:
    def test_the_responses_api(self, tmp_path: Path) -> None:
        usage = {"input_tokens": 41, "output_tokens": 17, "input_tokens_details": {"cached_tokens": 32}}
        request = asked("a") | {
            "url": "/v1/responses",
            "body": {"model": "m", "instructions": "x", "input": "y z"},
        }
        trace = trace_of(tmp_path, request, answered("a", usage), tokenizer=WordEncoder())
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), cached(trace)) == ([41], [17], [32])
        assert said(trace.model) == "m-2026"
        assert trace.blocks is not None

    def test_other_operations_are_left_out_on_both_sides(self, tmp_path: Path) -> None:
        embeddings = answered("e", {"prompt_tokens": 8}, object="list", model="text-embedding-3-small")
        rows = [asked("a"), asked("e", url="/v1/embeddings"), embeddings]
        trace = trace_of(tmp_path, *rows, answered("a", {"prompt_tokens": 5, "completion_tokens": 1}))
        assert trace.prompt_tokens.tolist() == [5]
        assert info(trace).skipped == {"other operation than generating text": 2}

    def test_ids_that_every_batch_uses_again(self, tmp_path: Path) -> None:
        """`request-1` of the first batch and of the second are two requests."""
        counts = {"completion_tokens": 1}
        first = [asked("request-1"), answered("request-1", counts | {"prompt_tokens": 5})]
        second = [asked("request-1"), answered("request-1", counts | {"prompt_tokens": 7})]
        assert trace_of(tmp_path, *first, *second).prompt_tokens.tolist() == [5, 7]

    def test_what_failed_is_one_request_and_may_be_sent_again(self, tmp_path: Path) -> None:
        failed: dict[str, Any] = {"custom_id": "a", "response": None, "error": {"code": "batch_expired"}}
        good = answered("a", {"prompt_tokens": 5, "completion_tokens": 1})
        trace = trace_of(tmp_path, asked("a"), failed, asked("a"), good)
        assert (trace.prompt_tokens.tolist(), info(trace).skipped) == ([5], {"failed request": 1})

    def test_a_request_without_an_answer_is_a_request(self, tmp_path: Path) -> None:
        rows = [asked("a"), asked("b"), answered("a", {"prompt_tokens": 5, "completion_tokens": 1})]
        trace = trace_of(tmp_path, *rows)
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([5, -1], [1, -1])

    def test_times_cannot_be_asked_for(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="the log has none"):
            trace_of(tmp_path, asked("a"), options=ReadOptions(since="2026-09-14"))


def result(model: str | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": 100,
        "input_cached_tokens": 60,
        "output_tokens": 50,
        "num_model_requests": 4,
        "model": model,
        "batch": None,
    } | changes


def bucket(hour: int, *results: dict[str, Any]) -> dict[str, Any]:
    start = NOW + 3600 * hour
    return {"object": "bucket", "start_time": start, "end_time": start + 3600, "results": list(results)}


def page(*buckets: dict[str, Any], more: bool = False) -> dict[str, Any]:
    return {"object": "page", "data": list(buckets), "has_more": more, "next_page": "x" if more else None}


class TestOpenAIUsage:
    def test_pages_are_added_up(self, tmp_path: Path) -> None:
        trace = trace_of(
            tmp_path, page(bucket(0, result("m")), more=True), page(bucket(1), bucket(2, result("m")))
        )
        assert trace.totals is not None
        assert (trace.totals.requests, trace.totals.prompt_tokens, trace.totals.output_tokens) == (8, 200, 100)
        assert (trace.totals.cached_share, trace.totals.span_s, trace.totals.model) == (0.6, 3 * 3600, "m")
        assert not any("last page" in note for note in info(trace).notes)

    def test_a_list_of_buckets(self, tmp_path: Path) -> None:
        path = tmp_path / "usage.json"
        path.write_text(json.dumps([bucket(0, result("m")), bucket(1, result("m"))]))
        trace = read([path])
        assert trace.totals is not None
        assert trace.totals.requests == 8

    def test_the_last_page_is_missed(self, tmp_path: Path) -> None:
        trace = trace_of(tmp_path, page(bucket(0, result("m")), more=True))
        assert "the last page is missing: has_more is true on all of them" in info(trace).notes

    def test_several_models(self, tmp_path: Path) -> None:
        row = page(bucket(0, result("m"), result("n", input_tokens=300)))
        trace = trace_of(tmp_path, row)
        assert trace.totals is not None
        assert (trace.totals.model, trace.totals.prompt_tokens) == (None, 400)
        assert "several models are added up (share of prompt tokens): n 75%, m 25%" in info(trace).notes
        assert unknown(trace)["log.models"] == "--where model=NAME"

    def test_one_model_of_several(self, tmp_path: Path) -> None:
        row = page(bucket(0, result("m"), result("n", input_tokens=300)))
        trace = trace_of(tmp_path, row, options=ReadOptions(where=(("model", "n"),)))
        assert trace.totals is not None
        assert (trace.totals.model, trace.totals.prompt_tokens) == ("n", 300)
        assert info(trace).skipped == {"not selected by --where model": 1}

    def test_no_caller_can_be_chosen(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="usage buckets have none"):
            trace_of(tmp_path, page(bucket(0, result())), options=ReadOptions(where=(("client", "c"),)))

    def test_not_grouped(self, tmp_path: Path) -> None:
        trace = trace_of(tmp_path, page(bucket(0, result())))
        assert unknown(trace)["log.models"] == "fetch it with group_by=model"

    def test_without_cached_tokens_their_share_is_unknown(self, tmp_path: Path) -> None:
        row = page(bucket(0, result("m"), result("m", input_cached_tokens=None)))
        trace = trace_of(tmp_path, row)
        assert trace.totals is not None
        assert (trace.totals.cached_tokens, trace.totals.cached_share) == (None, None)
        assert "sharing.cached_share" in unknown(trace)

    def test_more_tokens_than_any_request_has(self, tmp_path: Path) -> None:
        trace = trace_of(tmp_path, page(bucket(0, result("m", input_tokens=10**12))))
        assert trace.totals is not None
        assert trace.totals.prompt_tokens == 10**12

    def test_other_usage_and_damage(self, tmp_path: Path) -> None:
        other = result(object="organization.usage.embeddings.result")
        trace = trace_of(tmp_path, page(bucket(0, result("m"), other, result("m", input_tokens="many"))))
        assert trace.totals is not None
        assert trace.totals.requests == 4
        assert info(trace).skipped == {"no token counts": 1, "other operation than generating text": 1}
