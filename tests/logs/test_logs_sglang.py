"""SGLang's request logs and metrics export: their pitfalls, each as a small log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.logs import WordEncoder, accounted, write_lines

from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.trace import Trace

META = {"prompt_tokens": 3, "completion_tokens": 2, "e2e_latency": 1.5, "finish_reason": {"type": "stop"}}


def event(
    kind: str, rid: object, moment: str = "08:00:00.5", out: object = None, **obj: object
) -> dict[str, Any]:
    row: dict[str, Any] = {"timestamp": f"2026-09-14T{moment}", "event": f"request.{kind}", "rid": rid}
    row["obj"] = {"rid": rid, "stream": True, **obj}
    if out is not None:
        row["out"] = {"meta_info": out}
    return row


def load(folder: Path, rows: Sequence[object], **options: Any) -> Trace:
    path = write_lines(folder / "sglang.log", rows)
    trace = read([path], options=ReadOptions(block_size=1, **options), tokenizer=WordEncoder())
    assert accounted(trace)
    return trace


def skipped(trace: Trace) -> dict[str, int]:
    assert trace.info is not None
    return trace.info.skipped


def notes(trace: Trace) -> str:
    assert trace.info is not None
    return "\n".join(trace.info.notes)


def test_local_times_take_the_zone_of_the_flag(tmp_path: Path) -> None:
    rows = [event("received", "a"), event("finished", "a", "08:00:02", META)]
    berlin = load(tmp_path, rows, tz="Europe/Berlin")
    assert berlin.first_epoch_s == 1789372800.5 - 2 * 3600
    assert "read as Europe/Berlin" in notes(berlin)


def test_a_finished_line_alone_arrives_its_latency_before(tmp_path: Path) -> None:
    trace = load(tmp_path, [event("finished", "a", "08:00:02", META), event("received", "b")])
    assert trace.first_epoch_s == 1789372800.5  # 08:00:02 - 1.5 s
    assert trace.prompt_tokens.tolist() == [3, -1]


def test_finished_text_lines_never_come_before_their_received_second(tmp_path: Path) -> None:
    # Received at 07:59:59.95, logged as :59; finished at 08:00:01.3 after 1.35 s, logged as :01.
    meta = {**META, "e2e_latency": 1.35}
    lines = [
        "[2026-09-14 07:59:59] Receive: obj=GenerateReqInput(rid='a', text='x y z')",
        f"[2026-09-14 08:00:01] Finish: obj=GenerateReqInput(rid='a'), out={{'meta_info': {meta!r}}}",
        f"[2026-09-14 08:00:01 TP0] Finish: obj=GenerateReqInput(rid='b'), out={{'meta_info': {meta!r}}}",
    ]
    trace = load(tmp_path, lines)
    assert trace.first_epoch_s == 1789372799.0
    # b: finished in [01, 02), so received in [59.65, 00.65): at 00 at the latest
    assert trace.arrival_s.tolist() == [0.0, 1.0]
    assert trace.cached_tokens is None


def test_a_batch_is_several_requests_and_each_finishes_alone(tmp_path: Path) -> None:
    rows = [
        event("received", ["a", "b"], text=["x y z", "x y w"]),
        event("finished", "a", "08:00:01", META),
        event("finished", "b", "08:00:02", META),
    ]
    trace = load(tmp_path, rows)
    assert (len(trace), skipped(trace)) == (2, {})
    assert trace.blocks is not None
    assert [trace.blocks.row(row).tolist() for row in range(2)] == [[0, 1, 2], [0, 1, 3]]
    text = load(
        tmp_path,
        ["[2026-09-14 08:00:00] Receive: obj=GenerateReqInput(text=['x y', 'x'], rid=['a', 'b'], n=[1])"],
    )
    assert text.prompt_tokens.tolist() == [2, 1]


def test_several_answers_to_one_prompt_count_when_they_finish(tmp_path: Path) -> None:
    rows = [
        event("received", "a", text="x y z", sampling_params={"n": 2}),
        event("finished", "a1", "08:00:02", META, text="x y z"),
        event("finished", "a2", "08:00:02", META, text="x y z"),
    ]
    trace = load(tmp_path, rows)
    assert (len(trace), skipped(trace)) == (2, {"duplicate of another row": 1})


def test_level_2_keeps_the_head_of_a_long_prompt(tmp_path: Path) -> None:
    # First and last 1,024 ids with "..." between: what is shared is at least the head.
    ids = list(range(1024))
    cut = [*ids, "...", *range(9000, 10024)]
    other = [*ids[:1000], *range(5000, 5024), "...", *range(9000, 10024)]
    meta = {**META, "prompt_tokens": 4000}
    rows: list[object] = []
    for rid, shown in (("a", cut), ("b", other)):
        rows += [
            event("received", rid, input_ids=shown),
            event("finished", rid, "08:00:02", meta, input_ids=shown),
        ]
    trace = load(tmp_path, rows)
    assert trace.prompt_tokens.tolist() == [4000, 4000]
    assert trace.blocks is not None
    assert [len(trace.blocks.row(row)) for row in range(2)] == [1024, 1024]
    assert (trace.blocks.row(0) == trace.blocks.row(1)).sum() == 1000
    assert "only their first 1,024 characters or ids are known: 2" in notes(trace)


def test_level_2_text_in_a_text_line(tmp_path: Path) -> None:
    head, tail = "word " * 204 + "wor!", "d end" * 204 + "done"
    meta = {**META, "prompt_tokens": 999}
    request = f"GenerateReqInput(rid='a', text={head!r} ... {tail!r})"
    line = f"Finish: obj={request}, out={{'text': 'a' ... 'b', 'meta_info': {meta}}}"
    trace = load(tmp_path, [f"[2026-09-14 08:00:02] {line}"])
    assert trace.prompt_tokens.tolist() == [999]
    assert trace.blocks is not None
    assert len(trace.blocks.row(0)) == 205
    assert "first 1,024 characters" in notes(trace)


def test_a_cut_prompt_without_its_length_is_no_prompt(tmp_path: Path) -> None:
    trace = load(
        tmp_path,
        [event("received", "a", text="x" * 1024 + "..." + "y" * 1024), event("received", "b", text="x")],
    )
    assert trace.prompt_tokens.tolist() == [-1, 1]


def test_missing_finishes_are_said(tmp_path: Path) -> None:
    # SGLANG_LOG_REQUEST_EXCEEDED_MS leaves fast requests without a finished line.
    rows = [event("received", f"r{i}", text="x y z") for i in range(4)] + [
        event("finished", "r0", "08:00:09", META)
    ]
    trace = load(tmp_path, rows)
    assert len(trace) == 4
    assert "received requests without a finished line: 3 of 4; SGLANG_LOG_REQUEST_EXCEEDED_MS" in notes(trace)


def test_what_is_no_request(tmp_path: Path) -> None:
    abort = {
        **META,
        "completion_tokens": 0,
        "prompt_tokens": 0,
        "finish_reason": {"type": "abort", "status_code": 503},
    }
    rows = [
        event("received", "ok", text="x y z"), event("finished", "ok", "08:00:02", META, text="x y z"),
        event("received", "HEALTH_CHECK_17"), event("finished", "HEALTH_CHECK_17", "08:00:02", META),
        event("received", "e", text="x", is_cross_encoder_request=False),
        event("received", "gone", text="x y"), event("finished", "gone", "08:00:02", abort, text="x y"),
    ]  # fmt: skip
    trace = load(tmp_path, rows)
    assert len(trace) == 1
    assert skipped(trace) == {
        "health check": 2, "other operation than generating text": 1, "failed request": 1,
    }  # fmt: skip
    embedding = "[2026-09-14 08:00:00] Receive: obj=EmbeddingReqInput(rid='e', text='x')"
    kept = "[2026-09-14 08:00:00] Receive: obj=GenerateReqInput(rid='a', text='x')"
    assert skipped(load(tmp_path, [embedding, kept])) == {"other operation than generating text": 1}


def test_an_abort_with_output_keeps_its_tokens(tmp_path: Path) -> None:
    trace = load(
        tmp_path,
        [
            event("received", "a"),
            event("finished", "a", "08:00:02", {**META, "finish_reason": {"type": "abort"}}),
        ],
    )
    assert trace.output_tokens.tolist() == [2]
    assert trace.status is not None
    assert trace.status.names == ("abort",)


def test_time_to_first_token_with_metrics_on(tmp_path: Path) -> None:
    meta = {**META, "request_received_ts": 1789372800.1, "prefill_finished_ts": 1789372800.4}
    trace = load(tmp_path, [event("received", "a"), event("finished", "a", "08:00:02", meta)])
    assert trace.ttft_s == pytest.approx([0.3], abs=1e-6)


def test_json_events_between_lines_of_text(tmp_path: Path) -> None:
    lines = ["[2026-09-14 08:00:00] server_args=ServerArgs(model_path='m')", "Loading", "x y"]
    lines += [
        json.dumps(event("received", "a", text="x y z")),
        json.dumps(event("finished", "a", "08:00:02", META)),
    ]
    trace = load(tmp_path, lines)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([3], [2])


def test_prefill_batches_add_up(tmp_path: Path) -> None:
    # The default log, without --log-requests: only sums, but exact ones.
    lines = [
        "[2026-09-14 08:00:00 TP0] Prefill batch, #new-seq: 1, #new-token: 896, #cached-token: 0, usage: 0.0",
        "[2026-09-14 08:00:01 TP0] Prefill batch [12], #new-seq: 1, #new-token: 128, #cached-token: 1024, x: 0",
        "[2026-09-14 08:00:02 TP0] Decode batch, #running-req: 1, #token: 74, token usage: 0.00",
    ]
    trace = load(tmp_path, lines)
    assert len(trace) == 0
    assert trace.totals is not None
    assert (trace.totals.prompt_tokens, trace.totals.cached_tokens) == (896 + 128 + 1024, 1024)
    assert trace.totals.cached_share == 0.5
    assert "--log-requests" in {entry.path: entry.how_to_get for entry in trace.unknown}["arrivals"]


def test_metrics_of_older_builds_have_no_times(tmp_path: Path) -> None:
    rows = [{"request_parameters": '{"rid": "a", "text": "x y z"}', "id": "a", **META}]
    trace = load(tmp_path, rows)
    assert trace.info is not None
    assert trace.info.arrival_basis == "none"
    assert trace.e2e_s is not None
    how = {entry.path: entry.how_to_get for entry in trace.unknown}
    assert "--enable-metrics" in how["arrivals"]
    assert "sharing" not in how


def test_metrics_without_text_at_levels_0_and_1(tmp_path: Path) -> None:
    trace = load(
        tmp_path, [{"request_parameters": '{"rid": "a"}', **META, "request_received_ts": 1789372800.1}]
    )
    assert trace.blocks is None
    assert "--log-requests-level 3" in {entry.path: entry.how_to_get for entry in trace.unknown}["sharing"]


def test_metrics_rows_that_are_no_requests(tmp_path: Path) -> None:
    base = {**META, "request_received_ts": 1789372800.1}
    failed = {**base, "completion_tokens": 0, "finish_reason": {"type": "abort"}}
    rows = [
        {"request_parameters": '{"rid": "a", "text": "x y z"}', **base},
        {"request_parameters": '{"rid": "HEALTH_CHECK_1", "text": "x"}', **base},
        {"request_parameters": '{"rid": "e", "is_cross_encoder_request": false}', **base},
        {"request_parameters": '{"rid": "b", "text": "x"}', **failed},
        {"request_parameters": "{not json", **base},
    ]
    trace = load(tmp_path, rows)
    assert len(trace) == 2  # lengths stand without parameters
    assert skipped(trace) == {
        "health check": 1, "other operation than generating text": 1, "failed request": 1,
    }  # fmt: skip
