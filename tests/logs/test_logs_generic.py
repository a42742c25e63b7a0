"""JSON lines and CSV without a known layout: aliases, units, `--map`, failures and other operations."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.logs import WordEncoder, accounted, read_lines

from advisor.logs.options import ReadOptions, parse_pairs
from advisor.logs.read import read
from engine.errors import InputError

NOW = 1_700_000_000


@pytest.mark.parametrize(
    "row",
    [
        {"timestamp": NOW, "prompt_tokens": 10, "completion_tokens": 3},
        {"created_at": "2023-11-14T22:13:20Z", "usage": {"prompt_tokens": 10, "completion_tokens": 3}},
        {"startTime": NOW * 1000, "inputTokens": "10", "outputTokens": "3"},
        {"ts": NOW + 0.0, "response": {"usage": {"input_tokens": 10, "output_tokens": 3}}},
        {"end_time": NOW + 2, "latency_ms": 2000, "input_length": 10, "output_length": 3},
        {"arrived_at": NOW, "num_prefill_tokens": 10.0, "num_decode_tokens": 3.0},
    ],
)
def test_aliases(tmp_path: Path, row: dict[str, Any]) -> None:
    trace = read_lines(tmp_path, [row])
    assert trace.first_epoch_s == NOW
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10], [3])


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv(tmp_path: Path, delimiter: str) -> None:
    rows = [
        ["Time", "Prompt Tokens", "Output Tokens", "Model"],
        ["0.5", "10", "", "a"],
        ["1.5", "20", "2", '"b"'],
    ]
    path = tmp_path / "log.csv"
    path.write_text("\ufeff" + "\r\n".join(delimiter.join(row) for row in rows) + "\r\n", encoding="utf-8")
    trace = read([path])
    assert trace.model is not None
    assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist()) == ([0.0, 1.0], [10, 20])
    assert (trace.output_tokens.tolist(), trace.model.names) == ([-1, 2], ("a", "b"))


def test_map(tmp_path: Path) -> None:
    rows = [{"when": {"at": 5.0}, "n_in": 7, "who": "x", "timestamp": "not this one"}]
    options = ReadOptions(field_map=parse_pairs("arrival=when.at,prompt_tokens=n_in,session=who", "--map"))
    trace = read_lines(tmp_path, rows, options=options)
    assert trace.session is not None
    assert trace.info is not None
    assert (trace.prompt_tokens.tolist(), trace.session.names) == ([7], ("x",))
    assert trace.info.arrival_basis == "when.at, seconds from the start"


def test_map_of_the_prompt(tmp_path: Path) -> None:
    options = ReadOptions(block_size=2, field_map=(("prompt", "question"), ("arrival", "t")))
    rows = [{"t": 0.5, "question": "a b c"}, {"t": 1.5, "question": "a b d"}]
    trace = read_lines(tmp_path, rows, options=options, tokenizer=WordEncoder())
    assert trace.blocks is not None
    assert (trace.prompt_tokens.tolist(), trace.blocks.ids.tolist()) == ([3, 3], [0, 0])


@pytest.mark.parametrize(
    ("field", "values", "seconds"),
    [
        ("ttft_ms", [310, 250], [0.31, 0.25]),
        ("ttft", [0.31, 0.25], [0.31, 0.25]),
        ("ttft", [310, 250], [0.31, 0.25]),  # no unit in the name: too long for seconds
        ("time_to_first_token_s", [200, 300], [200, 300]),
    ],
)
def test_latency_units(tmp_path: Path, field: str, values: list[float], seconds: list[float]) -> None:
    trace = read_lines(tmp_path, [{"ts": NOW, "prompt_tokens": 5, field: value} for value in values])
    assert trace.ttft_s is not None
    assert trace.ttft_s.tolist() == pytest.approx(seconds)


def test_latency_from_both_ends(tmp_path: Path) -> None:
    trace = read_lines(tmp_path, [{"start_time": NOW, "end_time": NOW + 1.5, "prompt_tokens": 5}])
    assert trace.e2e_s is not None
    assert trace.e2e_s.tolist() == [1.5]


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        ({"status": 200, "completion_tokens": 5}, "ok"),
        ({"status": "success", "completion_tokens": 5}, "ok"),
        ({"status": 500, "completion_tokens": 0}, None),
        ({"status": "failure"}, None),
        ({"error": "the message may quote a prompt", "completion_tokens": 0}, None),
        ({"error": {"code": "aborted"}, "completion_tokens": 5}, "aborted"),  # cut after it had produced
        ({"error": "the message may quote a prompt", "completion_tokens": 5}, "error"),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
    ],
)
def test_failures_without_output_are_left_out(tmp_path: Path, row: dict[str, Any], kept: str | None) -> None:
    base = {"ts": NOW, "prompt_tokens": 5}
    trace = read_lines(tmp_path, [base | {"completion_tokens": 1}, base | row])
    assert trace.info is not None
    assert accounted(trace)
    if kept is None:
        assert trace.info.skipped == {"failed request": 1}
    else:
        assert trace.status is not None
        assert trace.status.names == (kept,)


def test_a_damaged_end_costs_the_latency_only(tmp_path: Path) -> None:
    rows = [
        {"start": NOW, "end": NOW + 2, "prompt_tokens": 5},
        {"start": NOW, "end": "never", "prompt_tokens": 6},
    ]
    trace = read_lines(tmp_path, rows)
    assert trace.e2e_s is not None
    assert trace.prompt_tokens.tolist() == [5, 6]
    np.testing.assert_array_equal(trace.e2e_s, [2.0, np.nan])


def test_missing_values_as_csv_writers_put_them(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    cells = ["nan", "None", "NULL", "-", ""]
    path.write_text(
        "ts,prompt_tokens,completion_tokens,error\n" + "".join(f"{NOW},5,{cell},{cell}\n" for cell in cells)
    )
    trace = read([path])
    assert trace.output_tokens.tolist() == [-1] * 5
    assert trace.status is None


def test_other_operations_are_counted(tmp_path: Path) -> None:
    routes = ["/v1/chat/completions", "/v1/embeddings", "aembedding", "/health/ready", "my-image-chat"]
    trace = read_lines(tmp_path, [{"ts": NOW, "prompt_tokens": 5, "path": route} for route in routes])
    assert trace.info is not None
    assert trace.route is not None
    assert trace.route.names == ("/v1/chat/completions", "my-image-chat")
    assert trace.info.skipped == {"other operation than generating text": 3}


@pytest.mark.parametrize(
    ("usage", "total"),
    [
        ({"prompt_tokens": 41, "prompt_tokens_details": {"cached_tokens": 32}}, 41),  # OpenAI: cached is a part
        ({"input_tokens": 9, "cache_read_input_tokens": 32, "cache_creation_input_tokens": 4}, 45),  # Anthropic
        ({"input_tokens": 9, "cached_tokens": 32}, 41),  # fewer than were cached: they cannot be a part (B17)
        ({"input_tokens": 90, "cache_read_input_tokens": 32}, 122),  # by its name, Anthropic's
        (
            {"prompt_tokens": 90, "cache_read_input_tokens": 32, "cache_creation_input_tokens": 4},
            90,
        ),  # LiteLLM's
        (
            {"input_tokens": 90, "output_tokens": 5, "total_tokens": 127, "cached_tokens": 32},
            122,
        ),  # by the total
        ({"input_tokens": 90, "output_tokens": 5, "total_tokens": 95, "cached_tokens": 32}, 90),
    ],
)
def test_cached_tokens_in_or_out_of_the_prompt(tmp_path: Path, usage: dict[str, Any], total: int) -> None:
    trace = read_lines(tmp_path, [{"ts": NOW, "usage": usage}])
    assert trace.cached_tokens is not None
    assert (trace.prompt_tokens.tolist(), trace.cached_tokens.tolist()) == ([total], [32])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt_tokens": -1}, "negative prompt length"),
        ({"prompt_tokens": 1.5}, "prompt length is not a whole number"),
        ({"prompt_tokens": "many"}, "prompt length is not a whole number"),
        ({"prompt_tokens": True}, "prompt length is not a whole number"),
        ({"prompt_tokens": 10**12}, "prompt length out of range"),
        ({"prompt_tokens": None}, "no prompt length"),
        ({"completion_tokens": -3}, "negative output length"),
        ({"ts": None}, "no arrival time"),
        ({"ts": "soon"}, "arrival time not understood"),
        ({"ts": 4}, "arrival time out of range"),
    ],
)
def test_unusable_rows(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    good = {"ts": NOW, "prompt_tokens": 5, "completion_tokens": 1}
    trace = read_lines(tmp_path, [good, good | changes])
    assert trace.info is not None
    assert (len(trace), trace.info.skipped) == (1, {reason: 1})


def test_rows_out_of_order_are_sorted_and_ties_keep_their_order(tmp_path: Path) -> None:
    rows = [{"ts": NOW + at, "prompt_tokens": size} for at, size in [(3, 1), (1, 2), (3, 3), (0, 4), (1, 5)]]
    trace = read_lines(tmp_path, rows)
    assert trace.prompt_tokens.tolist() == [4, 2, 5, 1, 3]


def test_bodies_that_were_logged_as_text(tmp_path: Path) -> None:
    """Pitfall 12: JSON inside CSV cells."""
    usage = json.dumps({"usage": {"prompt_tokens": 41, "completion_tokens": 17}, "model": "m"})
    quoted = usage.replace('"', '""')
    path = tmp_path / "log.csv"
    path.write_text(f'ts,request,response\n{NOW},"{{}}","{quoted}"\n{NOW},"{{}}","{quoted}"\n')
    options = ReadOptions(format="generic")
    trace = read([path], options=options)
    assert trace.model is not None
    assert (trace.prompt_tokens.tolist(), trace.model.names) == ([41, 41], ("m",))


def test_several_models_stay_in_one_trace(tmp_path: Path) -> None:
    rows = [{"ts": NOW + i, "model": model, "prompt_tokens": 5} for i, model in enumerate("bab")]
    trace = read_lines(tmp_path, rows)
    assert trace.model is not None
    assert (trace.model.names, trace.model.codes.tolist()) == (("b", "a"), [0, 1, 0])


def test_nothing_usable_names_the_line_and_a_way_on(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"when": 1, "size": 2}) + "\n")
    with pytest.raises(InputError) as caught:
        read([path])
    assert caught.value.where == f"{path}, line 1"
    assert "--map arrival=FIELD" in str(caught.value.hint)
    assert "when, size" in str(caught.value.hint)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickle_is_refused_with_the_flag_that_makes_a_log(tmp_path: Path, protocol: int) -> None:
    """SGLang dumps requests so (`--crash-dump-folder`); loading it would run what it says."""
    path = tmp_path / "requests.pkl"
    path.write_bytes(pickle.dumps([{"text": "hello", "rid": "1"}], protocol))
    with pytest.raises(InputError, match="no usable request") as caught:
        read([path])
    assert "pickle" in caught.value.why
    assert "--log-requests-format json" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["arrival", "arrival=", "=ts", ""])
def test_malformed_pairs(text: str) -> None:
    with pytest.raises(InputError, match="name=value"):
        parse_pairs(text, "--map")


def test_unknown_names_of_fields() -> None:
    with pytest.raises(InputError, match="colour"):
        ReadOptions(where=(("colour", "red"),))
    with pytest.raises(InputError, match="colour"):
        ReadOptions(field_map=(("colour", "red"),))


def test_rows_of_many_shapes(tmp_path: Path) -> None:
    rows = [{"ts": NOW + i, "prompt_tokens": i + 1, f"extra_{i}": i} for i in range(1200)]
    assert np.array_equal(read_lines(tmp_path, rows).prompt_tokens, np.arange(1, 1201))
