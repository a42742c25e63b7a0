"""Results of benchmark tools, TGI's log and Dynamo's trace: their pitfalls, each as a small log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.logs import WordEncoder, accounted, write_lines

from advisor.logs.read import read
from advisor.logs.trace import Trace

NOW_MS = 1789372800120
RESULT: dict[str, Any] = {
    "model_id": "m", "backend": "openai-chat", "duration": 2.5, "completed": 2, "total_input_tokens": 82,
    "total_output_tokens": 33, "input_lens": [41, 41], "output_lens": [17, 16], "ttfts": [0.3, 0.1],
    "itls": [[0.02], [0.01]], "errors": ["", ""],
}  # fmt: skip


def load(folder: Path, rows: Sequence[object]) -> Trace:
    trace = read([write_lines(folder / "log", rows)], tokenizer=WordEncoder())
    assert accounted(trace)
    return trace


def skipped(trace: Trace) -> dict[str, int]:
    assert trace.info is not None
    return trace.info.skipped


def notes(trace: Trace) -> str:
    assert trace.info is not None
    return "\n".join(trace.info.notes)


def test_bench_results_of_older_versions_have_no_start_times(tmp_path: Path) -> None:
    trace = load(tmp_path, [RESULT])
    assert np.isnan(trace.arrival_s).all()
    assert trace.prompt_tokens.tolist() == [41, 41]
    assert "--save-detailed" in {entry.path: entry.how_to_get for entry in trace.unknown}["arrivals"]


@pytest.mark.parametrize("between", ["\n", "", "\n\n"])
@pytest.mark.parametrize("indent", [None, 1])
def test_appended_bench_results_are_one_log(tmp_path: Path, between: str, indent: int | None) -> None:
    results = [RESULT | {"start_times": [start, start + 1.5]} for start in (51234.0, 52000.0)]
    path = tmp_path / "result.json"
    path.write_text(between.join(json.dumps(result, indent=indent) for result in results))
    trace = read([path])
    assert trace.arrival_s == pytest.approx([0.0, 1.5, 766.0, 767.5])
    assert "start times of 2 results are taken as of one machine's clock" in notes(trace)


def test_bench_results_without_details_are_sums(tmp_path: Path) -> None:
    bare = {name: value for name, value in RESULT.items() if not isinstance(value, list)}
    trace = load(tmp_path, [bare, bare])
    assert (len(trace), skipped(trace)) == (0, {"result without details": 2})
    assert trace.totals is not None
    assert (trace.totals.requests, trace.totals.prompt_tokens, trace.totals.output_tokens) == (4, 164, 66)
    assert (trace.totals.span_s, trace.totals.model) == (5.0, "m")


def test_bench_latencies_win_over_gaps_and_failures_have_zeros(tmp_path: Path) -> None:
    result = RESULT | {"latencies": [0.5, 0.4], "start_times": [1.0, 2.0]}
    failed = {"errors": ["", ""], "output_lens": [17, 0], "ttfts": [0.3, 0.0], "itls": [[0.02], []]}
    assert load(tmp_path, [result]).e2e_s == pytest.approx([0.5, 0.4])
    assert skipped(load(tmp_path, [result | failed])) == {"failed request": 1}  # also without an error text


def test_bench_of_embeddings_is_another_operation(tmp_path: Path) -> None:
    trace = load(tmp_path, [RESULT, RESULT | {"total_input_sequences": 9}])
    assert skipped(trace) == {"other operation than generating text": 1}


@pytest.mark.parametrize(
    ("total", "seconds"),
    [
        ("1.380215s", 1.380215),
        ("81.1606ms", 0.0811606),
        ("412.5µs", 0.0004125),
        ("71μs", 71e-6),
        ("999ns", 999e-9),
        ("2s", 2),
    ],
)
def test_tgi_durations_have_mixed_units(tmp_path: Path, total: str, seconds: float) -> None:
    trace = load(tmp_path, [_tgi(total, "1s", "100ms")])
    assert trace.e2e_s == pytest.approx([seconds], rel=1e-12)
    assert trace.first_epoch_s == pytest.approx(1789372801.5 - seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("inference", "each", "tokens"),
    [
        # router/src/server.rs: time_per_token = inference_time / generated_tokens, in whole nanoseconds
        ("1.379731s", "81.160647ms", 17), ("10.000000007s", "9.765625ms", 1024), ("5ms", "5ms", 1),
        ("1s", "0ns", -1), ("1s", "666ms", -1), ("1s", "2s", -1), ("1s", "None", -1),
    ],
)  # fmt: skip
def test_tgi_output_tokens_undo_the_division(tmp_path: Path, inference: str, each: str, tokens: int) -> None:
    assert load(tmp_path, [_tgi("12s", inference, each)]).output_tokens.tolist() == [tokens]


def test_tgi_other_lines_and_errors(tmp_path: Path) -> None:
    error = _tgi("1s", "1s", "1s") | {
        "level": "ERROR",
        "message": "x",
        "span": {"parameters": "GenerateParameters"},
    }
    ready = {"timestamp": "2026-09-14T08:00:01.5Z", "level": "INFO", "target": "text_generation_launcher"}
    trace = load(tmp_path, [ready, error, _tgi("1s", "1s", "100ms")])
    assert skipped(trace) == {"not a request": 1, "failed request": 1}


def _tgi(total: str, inference: str, each: str) -> dict[str, Any]:
    span = {"name": "generate", "total_time": total, "inference_time": inference, "time_per_token": each}
    return {
        "timestamp": "2026-09-14T08:00:01.500000Z", "level": "INFO", "message": "Success",
        "target": "text_generation_router::server", "span": span,
    }  # fmt: skip


def test_triton_kinds_of_requests(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
    whole = json.dumps({"choices": [{"message": {"content": "x y"}}], "usage": usage})
    requests = [
        # chat, not streamed, with usage
        _triton({"payload": '{"messages": [{"role": "user", "content": "a b"}]}'}, [{"response": whole}], 1),
        # Triton's own protocol: text in and out
        _triton({"text_input": "a b c", "stream": True}, [{"text_output": "x"}, {"text_output": " y"}], 2),
        # the engine's: token ids
        _triton({"input_ids": [5, 6, 7, 8]}, [{}], 3),
        # no response, an error event, nothing at all
        _triton({"text_input": "a"}, [], 4),
        _triton({"payload": '{"prompt": "a"}'}, [{"response": 'data: {"error": {"message": "x"}}\n\n'}], 5),
        _triton({"payload": "{}"}, [{"response": "data: [DONE]"}], 6),
        "not a request",
    ]
    document = {"experiments": [{"requests": requests[:3]}, {"requests": requests[3:]}]}
    trace = load(tmp_path, [document])
    assert trace.prompt_tokens.tolist() == [9, 3, 4]
    assert trace.output_tokens.tolist() == [4, 2, -1]
    assert trace.cached_tokens is not None
    assert trace.cached_tokens.tolist() == [2, -1, -1]
    assert trace.e2e_s == pytest.approx([1.0, 2.0, 1.0])
    assert skipped(trace) == {"failed request": 2, "no prompt length": 1, "no arrival time": 1}
    assert "experiments in one log, each at a load of its own: 2" in notes(trace)


def _triton(inputs: object, outputs: list[Any], second: int) -> dict[str, Any]:
    start = 1789372800 * 10**9 + second * 10**9
    stamps = [start + (number + 1) * 10**9 for number in range(len(outputs))]
    return {
        "timestamp": start, "request_inputs": inputs, "response_timestamps": stamps,
        "response_outputs": outputs,
    }  # fmt: skip


def test_aiperf_units_warm_up_and_cancelled(tmp_path: Path) -> None:
    rows = [
        _aiperf("profiling", {"time_to_first_token": {"value": 0.31, "unit": "sec"}}),
        _aiperf("profiling", {"time_to_first_token": {"value": 310_000, "unit": "us"}}, was_cancelled=True),
        _aiperf("profiling", {"time_to_first_token": {"value": 0.31, "unit": "fortnight"}}),
        _aiperf("warmup", {}),
    ]
    trace = load(tmp_path, rows)
    assert trace.ttft_s == pytest.approx([0.31, 0.31, np.nan], nan_ok=True)
    assert trace.e2e_s == pytest.approx([1.38] * 3)  # request_end_ns - request_start_ns
    assert trace.status is not None
    assert [trace.status.names[code] for code in trace.status.codes] == ["ok", "cancelled", "ok"]
    assert trace.output_tokens.tolist() == [17] * 3
    assert skipped(trace) == {"warm-up": 1}


def _aiperf(phase: str, metrics: dict[str, Any], **about: object) -> dict[str, Any]:
    start = NOW_MS * 10**6
    lengths = {"input_sequence_length": 41, "output_sequence_length": 17}
    return {
        "metadata": {
            "request_start_ns": start, "request_end_ns": start + 1_380_000_000, "benchmark_phase": phase,
            **about,
        },
        "metrics": {name: {"value": value, "unit": "tokens"} for name, value in lengths.items()} | metrics,
    }  # fmt: skip


def _dynamo(
    request: dict[str, Any], hashes: list[int] | None = None, size: int = 64, **event: object
) -> dict[str, Any]:
    length = size * len(hashes or [1])
    replay = {"trace_block_size": size, "input_length": length, "input_sequence_hashes": hashes or [1]}
    return {
        "schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": NOW_MS + 1380,
        "request": {"output_tokens": 5, "request_received_ms": NOW_MS, "replay": replay, **request}, **event,
    }  # fmt: skip


def test_dynamo_hashes_that_agree_in_53_or_32_bits_are_different(tmp_path: Path) -> None:
    # ai-dynamo/dynamo#12046: ids cut to 32 bits share what is not shared; JavaScript and pandas keep 53.
    near = [2**63 + 1, 2**63 + 1 + 2**32, 2**63 + 2, 1]
    trace = load(tmp_path, [_dynamo({"request_id": str(value)}, [value]) for value in (*near, near[0])])
    assert trace.blocks is not None
    assert [trace.blocks.row(row).tolist() for row in range(5)] == [[0], [1], [2], [3], [0]]


def test_dynamo_rows_without_agent_context(tmp_path: Path) -> None:
    # They hold output tokens and what a replay needs, nothing else.
    trace = load(tmp_path, [_dynamo({}, [7, 8])])
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([128], [5])
    assert trace.e2e_s == pytest.approx([1.38])  # event time - time of arrival
    assert {"sharing.cached_share", "clients"} == {entry.path for entry in trace.unknown}


def test_dynamo_arrival_from_the_end(tmp_path: Path) -> None:
    trace = load(tmp_path, [_dynamo({"request_received_ms": None, "total_time_ms": 1380.0})])
    assert trace.first_epoch_s == NOW_MS / 1000
    assert "placed at end - latency: 1" in notes(trace)


def test_dynamo_deployments_with_other_block_sizes_keep_their_lengths(tmp_path: Path) -> None:
    # ai-dynamo/dynamo#8998: blocks of 64 and of 16 tokens must not be compared.
    rows = [_dynamo({}, [1, 2]), _dynamo({}, [1, 2]), _dynamo({}, [1, 2], size=16)]
    trace = load(tmp_path, rows)
    assert trace.prompt_tokens.tolist() == [128, 128, 32]
    assert trace.blocks is not None
    assert trace.blocks.known is not None
    assert trace.blocks.known.tolist() == [True, True, False]
    assert "blocks of another size than 64, whose content stays unknown: 1" in notes(trace)


def test_dynamo_envelope_payloads_and_failures(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 17, "event": _dynamo({})},
        _dynamo({}, event_type="request_payload"),
        _dynamo({}, event_type="tool_error"),
        _dynamo({"output_tokens": 0, "finish_reason_metadata": {"backend_finish_reason": "cancelled"}}),
        _dynamo({"output_tokens": 3, "finish_reason_metadata": {"backend_finish_reason": "cancelled"}}),
        _dynamo({"input_tokens": 64}, [1, 2, 3]),
    ]
    trace = load(tmp_path, rows)
    assert trace.output_tokens.tolist() == [5, 3, 5]
    assert skipped(trace) == {"duplicate of another row": 1, "tool event": 1, "failed request": 1}
    assert "more hashes than their prompt has blocks, their content left unknown: 1" in notes(trace)
