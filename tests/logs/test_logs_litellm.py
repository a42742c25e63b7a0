"""LiteLLM's logs: each trouble that was reported of them, and what operators run into."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from helpers.gateways import cached, info, said, unknown
from helpers.logs import WordEncoder, read_lines

from advisor.logs.read import read
from advisor.workload.measure import measure
from engine.errors import InputError

WORDS = WordEncoder()
USER = [{"role": "user", "content": "a b c"}]  # four tokens: one for the role
ARRIVAL = 1789372800.12  # 2026-09-14T08:00:00.120Z


def spend(name: str = "r", **fields: Any) -> dict[str, Any]:
    """A row of LiteLLM's spend logs, without prompts."""
    return {
        "request_id": name, "call_type": "acompletion", "api_key": "key", "startTime": "2026-09-14T08:00:00Z",
        "endTime": "2026-09-14T08:00:02Z", "completionStartTime": "2026-09-14T08:00:01Z", "prompt_tokens": 41,
        "completion_tokens": 17, "model": "m", "metadata": {}, "messages": {}, "response": {},
        "proxy_server_request": {}, "status": "success",
    } | fields  # fmt: skip


def usage(**fields: Any) -> dict[str, Any]:
    return {"usage_object": fields}


class TestLiteLLM:
    def test_15641_messages_are_empty_and_prompts_in_the_request(self, tmp_path: Path) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "word " * 40}]}
        rows = [spend("a", proxy_server_request=body), spend("b", proxy_server_request=json.dumps(body))]
        trace = read_lines(tmp_path, rows, tokenizer=WORDS)
        assert trace.blocks is not None
        assert [trace.blocks.row(row).tolist() for row in (0, 1)] == [[0, 1], [0, 1]]
        assert "sharing" not in unknown(trace)

    def test_without_prompts_sharing_is_null_and_the_cached_share_is_there(self, tmp_path: Path) -> None:
        details = usage(prompt_tokens_details={"cached_tokens": 32})
        trace = read_lines(tmp_path, [spend("a", metadata=details), spend("b", metadata=json.dumps(details))])
        assert (trace.blocks, cached(trace)) == (None, [32, 32])
        workload = measure(trace)
        assert workload.sharing.hit_rate_tokens is None
        assert workload.sharing.cached_share == pytest.approx(32 / 41)
        [entry] = [entry for entry in workload.unknown if entry.path == "sharing.hit_rate_tokens"]
        assert "store_prompts_in_spend_logs: true" in entry.how_to_get
        assert entry.how_to_get.endswith("docs/collecting-logs.md")

    def test_17335_a_start_at_the_response_headers_gives_no_latency(self, tmp_path: Path) -> None:
        late = {"call_type": "anthropic_messages", "startTime": "2026-09-14T08:00:00.995Z"}
        trace = read_lines(tmp_path, [spend("a"), spend("b", **late)])
        assert trace.ttft_s is not None
        assert trace.e2e_s is not None
        assert (trace.ttft_s[0], trace.e2e_s[0]) == (1.0, 2.0)
        assert math.isnan(trace.ttft_s[1])
        assert math.isnan(trace.e2e_s[1])
        assert any("17335" in note and ": 1 " in note for note in info(trace).notes)

    def test_31385_a_first_token_at_the_end_is_unknown(self, tmp_path: Path) -> None:
        trace = read_lines(tmp_path, [spend(completionStartTime="2026-09-14T08:00:02Z")])
        assert trace.ttft_s is None
        assert "latency.ttft_s" in unknown(trace)

    def test_6633_counts_that_a_stream_lost_are_not_zero(self, tmp_path: Path) -> None:
        lost = {"prompt_tokens": 0, "completion_tokens": 0}
        rows = [spend("a", **lost, proxy_server_request={"messages": USER}), spend("b", **lost)]
        trace = read_lines(tmp_path, rows, tokenizer=WORDS)
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([4], [-1])
        assert info(trace).skipped == {"no token counts": 1}

    def test_36943_an_answer_counted_as_zero_is_counted_here(self, tmp_path: Path) -> None:
        answer = {"choices": [{"message": {"role": "assistant", "content": "one two three"}}]}
        row = spend(
            prompt_tokens=1, completion_tokens=0, response=answer, proxy_server_request={"messages": USER}
        )
        trace = read_lines(tmp_path, [row], tokenizer=WORDS)
        assert trace.output_tokens.tolist() == [3]
        assert any("400.0% of the logged prompt tokens" in note for note in info(trace).notes)

    def test_37734_a_cut_stream_has_an_unknown_prompt_and_no_cached_tokens(self, tmp_path: Path) -> None:
        cut = spend(prompt_tokens=0, completion_tokens=35, status="failure", metadata=usage(prompt_tokens=0))
        trace = read_lines(tmp_path, [cut])
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), cached(trace)) == ([-1], [35], [-1])
        assert said(trace.status) == "failure"
        assert "sharing.cached_share" in unknown(trace)

    def test_16341_cached_tokens_are_found_where_either_field_has_them(self, tmp_path: Path) -> None:
        gemini = usage(prompt_tokens_details={"cached_tokens": 20203}, cache_read_input_tokens=0)
        rows = [
            spend("a", prompt_tokens=20209, metadata=gemini),
            spend("b", metadata={"additional_usage_values": {"cache_read_input_tokens": 5}}),
            spend("c", metadata=usage(prompt_tokens_details=None)),
        ]
        trace = read_lines(tmp_path, rows)
        assert cached(trace) == [20203, 5, -1]
        assert trace.prompt_tokens.tolist() == [20209, 41, 41]

    def test_42663_written_tokens_are_the_total_not_the_split_by_life(self, tmp_path: Path) -> None:
        details = usage(
            cache_read_input_tokens=200,
            cache_creation_input_tokens=30000,
            cache_creation={"ephemeral_5m_input_tokens": 10000, "ephemeral_1h_input_tokens": 0},
        )
        trace = read_lines(tmp_path, [spend(prompt_tokens=100, metadata=details)])
        assert trace.prompt_tokens.tolist() == [30300]

    def test_9838_a_prompt_count_may_hold_what_was_read_and_not_what_was_written(self, tmp_path: Path) -> None:
        details = usage(cache_read_input_tokens=400, cache_creation_input_tokens=1000)
        trace = read_lines(tmp_path, [spend(prompt_tokens=500, metadata=details)])
        assert trace.prompt_tokens.tolist() == [1500]

    def test_shortened_prompts_share_what_is_before_the_cut(self, tmp_path: Path) -> None:
        def body(middle: str) -> dict[str, Any]:
            text = "same " * 40 + f"... (litellm_truncated skipped {middle} chars) ..." + " tail" * 40
            return {"messages": [{"role": "user", "content": text}, {"role": "user", "content": "end " * 40}]}

        rows = [spend(name, prompt_tokens=500, proxy_server_request=body(name)) for name in ("100", "200")]
        trace = read_lines(tmp_path, rows, tokenizer=WORDS)
        assert trace.blocks is not None
        assert [trace.blocks.row(row).tolist() for row in (0, 1)] == [
            [0, 1],
            [0, 1],
        ]  # 41 tokens, role included
        assert any("only the start is compared: 2;" in note for note in info(trace).notes)

    def test_a_shortened_prompt_does_not_tell_a_length_that_was_lost(self, tmp_path: Path) -> None:
        text = "same... (litellm_truncated skipped 9 chars) ...tail"
        body = {"messages": [{"role": "user", "content": text}]}
        row = spend(prompt_tokens=0, completion_tokens=5, proxy_server_request=body)
        assert read_lines(tmp_path, [row], tokenizer=WORDS).prompt_tokens.tolist() == [-1]

    def test_shortened_tools_leave_nothing_to_compare(self, tmp_path: Path) -> None:
        tool = {
            "type": "function",
            "function": {"description": "x... (litellm_truncated skipped 9 chars) ...y"},
        }
        trace = read_lines(
            tmp_path, [spend(proxy_server_request={"messages": USER, "tools": [tool]})], tokenizer=WORDS
        )
        assert trace.blocks is None
        assert "store_prompts_in_spend_logs" in unknown(trace)["sharing"]

    def test_redacted_prompts_are_no_prompts(self, tmp_path: Path) -> None:
        hidden = [{"role": "user", "content": "redacted-by-litellm"}]
        trace = read_lines(tmp_path, [spend(proxy_server_request={"messages": hidden})], tokenizer=WORDS)
        assert trace.blocks is None
        assert any("turn_off_message_logging): 1" in note for note in info(trace).notes)

    def test_what_is_no_request_of_an_engine_is_counted(self, tmp_path: Path) -> None:
        rows = [
            spend("a"),
            spend("b", call_type="aembedding"),
            spend("c", call_type="aretrieve_batch"),
            spend("d", cache_hit="True"),
            spend("e", api_key="litellm-internal-health-check"),
            spend("f", status="failure", prompt_tokens=0, completion_tokens=0),
        ]
        assert info(read_lines(tmp_path, rows)).skipped == {
            "other operation than generating text": 2,
            "answered from the gateway's own cache": 1,
            "health check": 1,
            "failed request": 1,
        }

    def test_sums_of_days_are_refused_with_the_way_to_get_requests(self, tmp_path: Path) -> None:
        day = {"startTime": "2026-09-14", "spend": 1.5, "users": {"u": 1.5}, "models": {"m": 1.5}}
        with pytest.raises(InputError) as caught:
            read_lines(tmp_path, [day, day])
        assert "summarize=false" in str(caught.value.why)

    def test_the_page_of_the_api_and_nulls_of_a_dump_are_read(self, tmp_path: Path) -> None:
        page = tmp_path / "page.json"
        page.write_text(json.dumps({"data": [spend("a"), spend("b")], "total": 2, "page": 1}))
        assert len(read([page])) == 2
        dump = tmp_path / "dump.csv"
        dump.write_text(
            "request_id,call_type,startTime,endTime,completionStartTime,prompt_tokens,completion_tokens,end_user\n"
            "a,acompletion,2026-09-14 08:00:00.12,2026-09-14 08:00:01.5,NULL,41,17,NULL\n"
        )
        trace = read([dump])
        assert trace.first_epoch_s == ARRIVAL
        assert (trace.prompt_tokens.tolist(), trace.client, trace.ttft_s) == ([41], None, None)
        assert not any("--tz" in note for note in info(trace).notes)  # the table is in UTC

    def test_the_model_is_the_one_that_served(self, tmp_path: Path) -> None:
        rows = [
            spend(
                "a", model="hosted_vllm/Qwen/Qwen3-8B", custom_llm_provider="hosted_vllm", model_group="chat"
            ),
            spend("b", model="openai/qwen3-8b", model_group="qwen3-8b"),
            spend("c", model="", model_group="chat"),
        ]
        trace = read_lines(tmp_path, rows)
        assert [said(trace.model, row) for row in range(3)] == ["Qwen/Qwen3-8B", "qwen3-8b", "chat"]

    def test_tools_beside_the_messages_of_a_payload_come_first(self, tmp_path: Path) -> None:
        row = {
            "id": "a", "trace_id": "t", "call_type": "acompletion", "startTime": 1789372800.0,
            "status": "success", "endTime": 1789372802.0, "prompt_tokens": 50,
            "completion_tokens": 1, "messages": USER,
        }  # fmt: skip
        tool = {"type": "function", "function": {"name": "lookup " * 20}}
        rows = [row, row | {"id": "b", "model_parameters": {"tools": [tool]}}]
        trace = read_lines(tmp_path, rows, tokenizer=WORDS)
        assert trace.blocks is not None
        assert [len(trace.blocks.row(index)) for index in (0, 1)] == [0, 1]
