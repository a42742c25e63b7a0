"""What every format must keep to, whoever wrote it: run on one good record of each."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from advisor.logs.formats import FORMATS, choose_format
from advisor.logs.formats.base import Format
from advisor.logs.options import ReadOptions
from advisor.logs.record import LINE, Record, UnusableError

NOW = 1_700_000_000
SAMPLES: dict[str, dict[str, Any]] = {
    "advise-trace": {
        "timestamp": 0, "input_length": 20, "output_length": 2, "hash_ids": [0], "block_size": 16,
        "scope": "global",
    },
    "dynamo": {
        "schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": NOW * 1000,
        "request": {
            "input_tokens": 100, "output_tokens": 2, "request_received_ms": NOW * 1000, "replay": {
                "trace_block_size": 64, "input_length": 100, "input_sequence_hashes": [2**63, 5],
            },
        },
    },
    "aiperf": {
        "metadata": {"request_start_ns": NOW * 10**9, "benchmark_phase": "profiling"},
        "metrics": {
            "input_sequence_length": {"value": 41, "unit": "tokens"},
            "output_sequence_length": {"value": 2, "unit": "tokens"},
        },
        "error": None,
    },
    "triton": {
        "service_kind": "openai", "experiments": [
            {"requests": [
                {
                    "timestamp": NOW * 10**9, "request_inputs": {"payload": '{"model": "m", "prompt": "a b"}'},
                    "response_timestamps": [NOW * 10**9 + 5], "response_outputs": [{"response": "data: {}"}],
                },
            ]},
        ],
    },
    "vllm-bench": {
        "model_id": "m", "duration": 2.4, "completed": 1, "total_input_tokens": 41, "total_output_tokens": 2,
        "input_lens": [41], "output_lens": [2], "ttfts": [0.1], "itls": [[0.1]], "start_times": [5.5],
        "errors": [""],
    },
    "vllm": {
        LINE: "INFO 09-14 08:00:00 [logger.py:40] Received request c1: prompt: 'a b', "
        "params: SamplingParams(n=1), prompt_token_ids: None, lora_request: None.",
    },
    "sglang-log": {
        "timestamp": "2026-09-14T08:00:01.5", "event": "request.finished", "rid": "d1", "obj": {"rid": "d1"},
        "out": {"meta_info": {"prompt_tokens": 41, "completion_tokens": 2, "e2e_latency": 1.5}},
    },
    "sglang-metrics": {
        "request_parameters": '{"rid": "d1", "input_ids": [1, 2]}', "prompt_tokens": 41, "completion_tokens": 2,
        "e2e_latency": 1.5, "request_received_ts": NOW + 0.5,
    },
    "tgi": {
        "timestamp": "2026-09-14T08:00:01.5Z", "level": "INFO", "message": "Success",
        "target": "text_generation_router::server", "span": {
            "name": "generate", "total_time": "1.38s", "inference_time": "1s", "time_per_token": "100ms",
        },
    },
    "mooncake": {"timestamp": 0, "input_length": 1100, "output_length": 2, "hash_ids": [0, 1, 2]},
    "qwen-bailian": {
        "chat_id": 7, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 40, "output_length": 2,
        "type": "text", "turn": 1, "hash_ids": [0, 1, 2],
    },
    "weka": {
        "id": "c", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [
            {"t": 0.0, "type": "n", "model": "m", "in": 130, "out": 2, "hash_ids": [1, 2], "api_time": 1.0},
        ],
    },
    "burstgpt": {
        "Timestamp": "5", "Model": "ChatGPT", "Request tokens": "41", "Response tokens": "17",
        "Total tokens": "58", "Log Type": "Conversation log",
    },
    "azure": {"TIMESTAMP": "2023-11-16 18:17:03.9799600", "ContextTokens": "4808", "GeneratedTokens": "10"},
    "lmcache": {"timestamp": NOW * 10**6, "input": "a b", "output": "c", "session_id": "s"},
    "sharegpt": {
        "id": "x_0", "conversations": [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c"}],
    },
    "aibrix": {"timestamp": 6011, "requests": [{"Prompt Length": 2, "Output Length": 1, "prompt": "a b"}]},
    "tracelab": {
        "provider": "codex", "session_id": "codex:1", "round_index": 0, "model": "m", "input_tokens_total": 20,
        "prefix_tokens": 16, "output_tokens": 2, "trace_key": "codex:1:0", "timing_events": [
            {"event_type": "user_message", "timestamp": "2026-06-01T05:40:20.151Z"},
            {"event_type": "text", "timestamp": "2026-06-01T05:40:29.887Z"},
        ],
    },
    "litellm-spend": {
        "request_id": "r", "call_type": "acompletion", "startTime": "2026-09-14T08:00:00Z", "prompt_tokens": 5,
        "endTime": "2026-09-14T08:00:01Z", "completionStartTime": "2026-09-14T08:00:00.5Z",
        "completion_tokens": 2, "model": "m", "model_group": "g", "custom_llm_provider": "p",
        "end_user": "u", "session_id": "s",
        "metadata": {"usage_object": {"prompt_tokens_details": {"cached_tokens": 3}}}, "cache_hit": "False",
        "messages": {}, "response": {},
        "proxy_server_request": {"messages": [{"role": "user", "content": "a"}]},
        "status": "success",
    },
    "litellm-payload": {
        "id": "r", "trace_id": "t", "call_type": "acompletion", "startTime": NOW, "endTime": NOW + 1,
        "completionStartTime": NOW + 0.5, "prompt_tokens": 5, "completion_tokens": 0, "messages": "a b",
        "response": "c", "metadata": {}, "model_parameters": {}, "status": "success", "error_information": None,
    },
    "langfuse": {
        "id": "o", "traceId": "t", "type": "GENERATION", "startTime": "2026-09-14T08:00:00Z",
        "level": "DEFAULT", "endTime": "2026-09-14T08:00:01Z", "completionStartTime": "2026-09-14T08:00:00.5Z",
        "model": "m", "input": [{"role": "user", "content": "a"}], "output": "b", "userId": "u",
        "sessionId": "s", "usageDetails": {"input": 5, "output": 2}, "usage": {}, "timeToFirstToken": 0.5,
    },
    "langfuse-blob": {
        "id": "o", "trace_id": "t", "type": "GENERATION", "start_time": "2026-09-14 08:00:00.000000",
        "end_time": "2026-09-14 08:00:01.000000", "time_to_first_token": 0.5, "provided_model_name": "m",
        "input": "[]", "output": "b", "usage_details": '{"input": 5, "output": 2}', "parent_observation_id": "",
    },
    "langsmith": {
        "id": "r", "run_type": "llm", "start_time": "2026-09-14T08:00:00", "end_time": "2026-09-14T08:00:01",
        "first_token_time": None, "events": [{"name": "new_token", "time": "2026-09-14T08:00:00.5"}],
        "inputs": {"messages": [[{"role": "user", "content": "a"}]]}, "status": "success", "error": None,
        "outputs": {
            "generations": [[{"text": "b"}]], "usage_metadata": {"input_tokens": 5, "output_tokens": 2},
        },
        "prompt_tokens": 0, "completion_tokens": 0, "extra": {"metadata": {"thread_id": "s"}},
        "prompt_token_details": {"cache_read": 1},
    },
    "helicone": {
        "request_id": "r", "request_created_at": "2026-09-14T08:00:00Z", "request_path": "/v1/chat/completions",
        "delay_ms": 10, "time_to_first_token": 5, "prompt_tokens": 5, "completion_tokens": 2,
        "provider": "OPENAI", "prompt_cache_read_tokens": 1, "prompt_cache_write_tokens": 0,
        "request_body": {"prompt": "a"},
        "response_body": {}, "response_status": 200, "request_properties": {"Helicone-Session-Id": "s"},
        "request_model": "m", "request_user_id": "u", "cache_reference_id": None,
    },
    "portkey": {
        "id": "p", "created_at": "2026-09-14T08:00:00Z", "request": {"body": {"prompt": "a"}}, "ai_model": "m",
        "response": {"usage": {"prompt_tokens_details": {"cached_tokens": 1}}}, "req_units": 5, "res_units": 2,
        "response_time": 10, "response_status_code": 200, "is_success": True, "metadata": {"_user": "u"},
        "cache_status": "MISS",
    },
    "openrouter": {
        "generation_id": "g", "created_at": "2026-09-14 08:00:00.120", "tokens_prompt": "5",
        "tokens_cached": "1", "tokens_completion": "2", "model_permaslug": "m", "cancelled": "false",
        "user": "", "api_key_name": "k",
        "finish_reason_normalized": "stop", "generation_time_ms": "10", "time_to_first_token_ms": "5",
    },
    "envoy-ai-gateway": {
        "start_time": "2026-09-14T08:00:00.120Z", "duration": 10, "response_code": 200, "response_flags": "-",
        "x-envoy-origin-path": "/v1/chat/completions", "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 2, "gen_ai.usage.total_tokens": 7,
        "gen_ai.usage.cached_input_tokens": 1,
    },
    "otlp": {"resourceSpans": [{"scopeSpans": [{"spans": [{
        "traceId": "t", "spanId": "a", "parentSpanId": "", "name": "chat m", "status": {"code": 1},
        "startTimeUnixNano": str(NOW * 10**9), "endTimeUnixNano": str((NOW + 1) * 10**9), "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "5"}},
        ],
    }]}]}]},
    "openai-usage": {
        "object": "bucket", "start_time": NOW, "end_time": NOW + 3600, "results": [
            {"input_tokens": 5, "input_cached_tokens": 1, "output_tokens": 2, "num_model_requests": 1},
        ],
    },
    "openai-batch": {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}},
    "anthropic-batch": {
        "custom_id": "c", "result": {
            "type": "succeeded", "message": {"id": "m", "usage": {"input_tokens": 5, "output_tokens": 2}},
        },
    },
    "claude-code": {
        "type": "assistant", "uuid": "a1", "parentUuid": "a0", "sessionId": "s", "requestId": "r",
        "timestamp": "2026-09-14T08:00:06.100Z", "isSidechain": False, "isApiErrorMessage": False, "message": {
            "id": "m", "role": "assistant", "model": "c", "usage": {"input_tokens": 5, "output_tokens": 2},
        },
    },
    "anthropic-messages": {
        "ts": NOW, "request": {"model": "c", "system": "s", "messages": [{"role": "user", "content": "a"}]},
        "response": {"type": "message", "model": "c", "usage": {"input_tokens": 5, "output_tokens": 2}},
    },
    "openai": {"ts": NOW, "request": {"model": "m", "prompt": "a b"}},
    "generic": {"ts": NOW, "prompt_tokens": 5},
}  # fmt: skip
JUNK: list[object] = [None, True, -1, 1.5, 10**30, float("nan"), "", "x", "\ud800", [], [None], {}, {"a": [{}]}]


def test_every_format_has_a_sample() -> None:
    assert [kind.name for kind in FORMATS] == list(SAMPLES)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
class TestFormat:
    def test_its_rows_are_recognised_as_its_own(self, kind: type[Format]) -> None:
        row = SAMPLES[kind.name]
        assert choose_format([row], ReadOptions()) is kind
        assert choose_format([row, row, {"damaged": 1}], ReadOptions()) is kind
        assert choose_format([{"nothing": "known"}], ReadOptions()) is None

    def test_a_row_becomes_a_record(self, kind: type[Format]) -> None:
        row = SAMPLES[kind.name]
        reader = kind([row], ReadOptions())
        records = list(reader.parse(row))
        if not records:  # sums, no requests
            assert reader.basis().totals is not None
            return
        (record,) = records
        assert isinstance(record, Record)
        assert (record.arrival_ns is None) == (reader.basis().clock is None)
        told = "lengths.prompt" not in {entry.path for entry in kind.cannot_tell}
        assert record.prompt_tokens > 0 or record.prompt is not None or not told

    def test_it_says_what_it_assumed(self, kind: type[Format]) -> None:
        row = SAMPLES[kind.name]
        reader = kind([row], ReadOptions())
        list(reader.parse(row))
        basis = reader.basis()
        assert (basis.clock is None) == (basis.arrival == "none")
        assert basis.arrival
        assert basis.tokens
        assert all(entry.path and entry.why and entry.how_to_get for entry in reader.cannot_tell)

    def test_junk_in_any_field_is_unusable_or_read_never_a_crash(self, kind: type[Format]) -> None:
        row = SAMPLES[kind.name]
        for name in row:
            for value in JUNK:
                for damaged in ({**row, name: value}, {key: row[key] for key in row if key != name}):
                    for sample in ([row], [damaged]):
                        with contextlib.suppress(UnusableError):
                            for record in kind(sample, ReadOptions()).parse(damaged):
                                assert isinstance(record, UnusableError) or record.prompt_tokens >= -1
