"""The journal: every figure follows from it; a torn end is left out, all else is an error with its line."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.validation.journal import Header, Journal, Part, moved, read_journal
from advisor.validation.record import Record
from engine.errors import InputError

HEADER = Header(
    url="http://127.0.0.1:1",
    model="m",
    traffic_digest="d",
    window="all",
    from_s=0.0,
    length_s=10.0,
    seed=7,
    factor=1.0,
    turns="open",
    cache="cold",
    slo={"ttft_s": 1.0},
    start_unix_s=0.0,
)
ONE = Record(
    3, 1.0, 10, 4, "ok", held_s=0.25, t_send=1.3, t_hdr=1.4, t_any=1.4, t_chunk=(1.5, 1.6, 1.75), t_done=1.8,
    n_in=10, n_cached=8, n_out=4, n_out_source="usage", finish_reason="length", session=2,
    turn=1, slo_class="a",
)  # fmt: skip
TWO = Record(4, 2.0, 10, 4, "unsent")


def written(path: Path, *records: Record) -> tuple[Part, ...]:
    with Journal(path) as journal:
        journal.begin(HEADER)
        journal.add_all(records)
    return read_journal(path)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    assert written(path, ONE, TWO) == (Part(HEADER, (ONE, TWO)),)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert (rows[1]["t_first"], rows[1]["t_last"], rows[1]["n_cached"]) == (1.5, 1.75, 8)
    assert path.stat().st_mode & 0o777 == 0o600


def test_another_run_is_added_and_a_fresh_journal_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    written(path, ONE)
    with Journal(path, fresh=False) as journal:
        journal.begin(HEADER)
        journal.add(TWO)
    assert [part.records for part in read_journal(path)] == [(ONE,), (TWO,)]
    assert len(written(path, TWO)) == 1


@given(cut=st.integers(min_value=1, max_value=2000))
def test_a_file_cut_anywhere_is_read_up_to_there(tmp_path_factory: Any, cut: int) -> None:
    """A process killed while it wrote leaves some leading bytes: all whole lines are there, nothing else is."""
    path = tmp_path_factory.mktemp("cut") / "requests.jsonl"
    written(path, ONE, TWO, ONE)
    whole = path.read_bytes()
    kept = whole[: max(1, len(whole) - cut)]
    path.write_bytes(kept)
    parts = read_journal(path)
    lines = kept.split(b"\n")
    complete = len(lines) - 1 + (lines[-1] != b"" and whole[len(kept) : len(kept) + 1] == b"\n")
    assert sum(len(part.records) for part in parts) == max(0, complete - 1)


@pytest.mark.parametrize("line", ["{", "[]", '{"row": 1}', '{"run": {"url": 3}}', '{"row": "x", "t_sched": 0}'])
def test_a_bad_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "requests.jsonl"
    written(path, ONE, TWO)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
    with pytest.raises(InputError) as caught:
        read_journal(path)
    assert caught.value.where == f"{path}:3"
    assert caught.value.hint


def test_a_record_before_any_run_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    written(path, ONE)
    path.write_text("".join(f"{line}\n" for line in path.read_text().splitlines()[1:]) * 2)
    with pytest.raises(InputError):
        read_journal(path)
    with pytest.raises(InputError):
        read_journal(tmp_path / "none")


def test_every_line_reaches_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    with Journal(path) as journal:
        journal.begin(HEADER)
        journal.add(ONE)
        assert len(path.read_bytes().splitlines()) == 2  # before anything is closed
        assert os.path.getsize(path) > 0  # noqa: PTH202 - what another process would see


def test_a_record_moves_with_all_its_times() -> None:
    later = moved(ONE, 10.0)
    assert (later.t_sched, later.held_s, later.t_due) == (11.0, 0.25, 11.25)
    assert later.t_chunk == (11.5, 11.6, 11.75)
    assert moved(TWO, 1.0).t_send is None
    assert moved(later, -10.0).t_done == pytest.approx(ONE.t_done)
    assert replace(later, t_sched=1.0).want_in == ONE.want_in
