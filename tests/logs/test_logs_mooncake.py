"""Mooncake's traces and what other tools write in that form: block sizes, units, sessions, text, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.logs import WordEncoder, accounted, read_lines, write_lines

from advisor.logs.columns import Columns
from advisor.logs.formats.base import Basis
from advisor.logs.formats.mooncake import infer_blocks, infer_unit
from advisor.logs.options import ReadOptions
from advisor.logs.part import make_part
from advisor.logs.read import read
from advisor.logs.record import Record


def row(length: int, ids: list[Any], **more: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": length, "output_length": 1, "hash_ids": ids, **more}


@pytest.mark.parametrize("rounding", ["ceil", "floor"])
@pytest.mark.parametrize("size", [16, 64, 256, 512, 1024])
def test_block_size_is_inferred(size: int, rounding: str) -> None:
    lengths = [5 * size + 1, 9 * size - 1, 12 * size, 40 * size + 7]
    extra = size - 1 if rounding == "ceil" else 0
    rows = [row(length, list(range((length + extra) // size))) for length in lengths]
    assert infer_blocks([*rows, row(7, list(range(99))), {}]) == (size, rounding)


def test_the_published_size_stands_where_nothing_speaks_against_it() -> None:
    assert infer_blocks([row(10, [0])]) == (512, "ceil")


def test_a_block_size_that_fits_nothing_is_unknown(tmp_path: Path) -> None:
    rows = [row(10, [0, 1, 2, 3]), row(20, [0, 1]), row(15, [5] * 11)]
    assert infer_blocks(rows) == (None, "ceil")
    trace = read_lines(tmp_path, rows)
    assert trace.blocks is None
    assert trace.prompt_tokens.tolist() == [10, 20, 15]
    (sharing,) = [entry for entry in trace.unknown if entry.path == "sharing"]
    assert "block size cannot be inferred" in sharing.why


def test_ids_that_are_too_many_for_the_prompt_are_unknown_content(tmp_path: Path) -> None:
    trace = read_lines(tmp_path, [*[row(600, [0, 1])] * 10, row(512, [0, 1])])
    assert trace.blocks is not None
    assert trace.blocks.known is not None
    assert trace.blocks.known.tolist() == [True] * 10 + [False]
    assert trace.info is not None
    assert "their content left unknown: 1" in trace.info.notes[-1]
    assert accounted(trace)


def test_guidellm_test_plan(tmp_path: Path) -> None:
    """The three rows of vllm-project/guidellm#948: seconds, and ids that do not fit blocks of 512 tokens."""
    rows = [
        {"timestamp": 0.0, "input_length": 10, "output_length": 5, "hash_ids": [0]},
        {"timestamp": 0.2, "input_length": 20, "output_length": 8, "hash_ids": [0, 1]},
        {"timestamp": 0.4, "input_length": 15, "output_length": 6, "hash_ids": [2]},
    ]
    trace = read_lines(tmp_path, rows)
    assert trace.arrival_s.tolist() == [0.0, 0.2, 0.4]
    assert trace.blocks is not None
    assert trace.blocks.size == 16
    assert trace.info is not None
    assert trace.info.arrival_basis == "timestamp, seconds from the start"
    assert any("as milliseconds they would mean" in note for note in trace.info.notes)


@pytest.mark.parametrize(
    ("stamps", "unit"),
    [
        ([0, 3000, 3000, 6000], "ms"),  # Mooncake
        ([27482, 30535, 30540], "ms"),
        ([0, 1, 2, 3, 4], "s"),  # 1 a second rather than 1000
        ([0.0, 4.5, 9.25], "s"),  # 0.2 a second rather than 200
        ([0.5, 30.25, 61.0], "ms"),  # 33 a second: nothing speaks against what is published
        ([0, 0, 0], "ms"),
        ([1_784_000_000, 1_784_000_060], None),  # since 1970: the number tells
        ([1_784_000_000_000], None),
        ([], "ms"),
    ],
)
def test_unit_of_times_by_evidence(stamps: list[float], unit: str | None) -> None:
    assert infer_unit(stamps) == unit


def test_names_of_dynamo(tmp_path: Path) -> None:
    """`created_time`, `input_tokens`, `output_tokens` and `delay_ms` are its aliases of Mooncake's names."""
    rows = [
        {"created_time": 0, "input_tokens": 600, "output_tokens": 7, "hash_ids": [3, 4], "session_id": "a"},
        {"created_time": 8000, "input_tokens": 513, "output_tokens": 1, "hash_ids": [3, 5]},
        {"delay_ms": 500, "input_tokens": 1100, "output_tokens": 2, "hash_ids": [3, 4, 6], "session_id": "a"},
    ]
    trace = read_lines(tmp_path, rows)
    assert trace.arrival_s.tolist() == [0.0, 0.5, 8.0]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([600, 1100, 513], [7, 2, 1])
    assert trace.think_s is not None
    assert trace.think_s[1] == 0.5
    assert trace.parent is not None
    assert trace.parent.tolist() == [-1, 0, -1]


def test_times_since_1970(tmp_path: Path) -> None:
    rows = [row(512, [0], timestamp=1_784_000_000 + at) for at in (0, 2)]
    trace = read_lines(tmp_path, rows)
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    assert trace.first_epoch_s == 1_784_000_000


def test_rows_of_text(tmp_path: Path) -> None:
    """AIPerf's other two ways to say what a prompt is."""
    rows = [
        {"timestamp": 0, "text_input": "one two three four", "output_length": 4, "session_id": "a"},
        {"timestamp": 2000, "messages": [{"role": "user", "content": "one two three"}], "output_length": 2},
    ]
    trace = read_lines(tmp_path, rows, tokenizer=WordEncoder(), options=ReadOptions(block_size=2))
    assert trace.info is not None
    assert (trace.info.format, trace.info.prefix_basis) == ("mooncake", "text of the prompts")
    assert trace.prompt_tokens.tolist() == [4, 4]  # words, with one for the role
    assert trace.blocks is not None
    assert [trace.blocks.row(index).tolist() for index in range(2)] == [[0, 1], [2, 3]]


def test_no_times_at_all(tmp_path: Path) -> None:
    rows = [{"input_length": 600, "output_length": 1, "hash_ids": [0, 1]}] * 2
    trace = read_lines(tmp_path, rows)
    assert trace.info is not None
    assert trace.info.arrival_basis == "none"
    assert {"arrivals", "sessions"} <= {entry.path for entry in trace.unknown}


def test_ids_of_single_blocks_are_chained(tmp_path: Path) -> None:
    """A trace whose ids do not say what comes before: block 7 behind 1 is not block 7 behind 2."""
    trace = read_lines(tmp_path, [row(1024, [1, 7]), row(1024, [2, 7]), row(512, [7])])
    assert trace.blocks is not None
    assert [trace.blocks.row(index).tolist() for index in range(3)] == [[0, 1], [2, 3], [4]]


def test_64_bit_hashes_keep_all_their_bits(tmp_path: Path) -> None:
    # Dynamo writes unsigned 64-bit hashes; cut to 32 bits they share too much (ai-dynamo/dynamo#12046).
    hashes = [14879255164371896291, 14879255164371896291 - 2**32, 2**63, 7]
    trace = read_lines(tmp_path, [row(512, [number]) for number in [*hashes, hashes[0]]])
    assert trace.blocks is not None
    assert trace.blocks.ids.tolist() == [0, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        ({"timestamp": 0, "output_length": 1, "hash_ids": [1]}, "no prompt length"),
        (row(512, ["a"]), "hash_ids are not integers"),
        (row(512, [1.0]), "hash_ids are not integers"),
        (row(512, [2**64]), "hash_ids over 64 bits"),
        (row(1024, [-1, 2**63]), "hash_ids over 64 bits"),
        (row(512, [1], timestamp=None), "no arrival time"),
        (row(512, [1], timestamp=None, delay=100), "no arrival time"),  # of no session
        (row(512, [1], timestamp=None, delay=100, session_id="s"), "no arrival time"),  # nothing before it
    ],
)
def test_rows_that_do_not_add_up(tmp_path: Path, damaged: dict[str, Any], reason: str) -> None:
    trace = read_lines(tmp_path, [*[row(600, [0, 1])] * 10, damaged])
    assert trace.info is not None
    assert trace.info.skipped == {reason: 1}


def test_rows_without_ids_are_kept(tmp_path: Path) -> None:
    trace = read_lines(tmp_path, [row(600, [0, 1]), row(600, [0, 1]), {"timestamp": 1, "input_length": 9}])
    assert trace.blocks is not None
    assert [len(trace.blocks.row(index)) for index in range(3)] == [2, 2, 0]
    assert trace.output_tokens.tolist() == [1, 1, -1]


def test_seconds_on_request(tmp_path: Path) -> None:
    rows = [row(512, [0], timestamp=at) for at in (0, 2, 7)]  # GuideLLM's examples use seconds
    assert read_lines(tmp_path, rows, options=ReadOptions(time_unit="s")).arrival_s.tolist() == [0, 2, 7]


def test_a_file_in_another_format_is_counted_not_mixed_in(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [row(600, [0, 1]), row(600, [0, 2])])
    write_lines(tmp_path / "b.jsonl", [{"ts": 1_700_000_000, "prompt_tokens": 5}])
    trace = read([tmp_path])
    assert trace.info is not None
    assert accounted(trace)
    assert trace.info.skipped == {"another format than the rest of the log": 1}


def test_equal_ids_of_different_models_are_different_blocks() -> None:
    columns = Columns(16)
    records = [
        Record(arrival_ns=0, prompt_tokens=1024, hash_ids=[5, 6], model=model) for model in ("x", "y", "x")
    ]
    columns.add(make_part(records, None, b"key"))
    blocks = columns.finish(Basis(clock=None, arrival="none", block_size=512))[0].blocks
    assert blocks is not None
    assert blocks.ids.tolist() == [0, 1, 2, 3, 0, 1]
