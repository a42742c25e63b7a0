"""Traces of block ids: the size of blocks, 64-bit ids, and rows that do not add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.logs import accounted, read_lines, write_lines

from advisor.logs.columns import Columns
from advisor.logs.formats.base import Basis
from advisor.logs.formats.mooncake import infer_blocks
from advisor.logs.options import ReadOptions
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


def test_64_bit_hashes_keep_all_their_bits(tmp_path: Path) -> None:
    # Dynamo writes unsigned 64-bit hashes; cut to 32 bits they share too much (ai-dynamo/dynamo#12046).
    hashes = [14879255164371896291, 14879255164371896291 - 2**32, 2**63, 7]
    trace = read_lines(tmp_path, [row(512, [number]) for number in [*hashes, hashes[0]]])
    assert trace.blocks is not None
    assert trace.blocks.ids.tolist() == [0, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (row(512, [1, 2]), "more hash_ids than the prompt has blocks"),
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
    for model in ("x", "y", "x"):
        columns.add(Record(arrival_ns=0, prompt_tokens=1024, hash_ids=[5, 6], model=model), None)
    blocks = columns.finish(Basis(clock=None, arrival="none", block_size=512), None).blocks
    assert blocks is not None
    assert blocks.ids.tolist() == [0, 1, 2, 3, 0, 1]
