"""What a validation left is read as it was written; what cannot be is an error that says which file and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.journals import write_journal
from helpers.results import make_records, make_result

from advisor.validation.record import Record
from advisor.validation.saved import read_result
from engine.errors import InputError

RECORDS = make_records(40, window_s=10.0, failed=2, unsent=1)


def saved(folder: Path, *parts: tuple[int, Sequence[Record]], seed: int = 7) -> Path:
    """A folder with a Result of `seed`, and a journal of these replays."""
    make_result(RECORDS, window_s=10.0, replayed={"seed": seed}).save(folder)
    write_journal(folder, *parts)
    return folder


def test_a_result_and_its_records_come_back(tmp_path: Path) -> None:
    ended = sorted(RECORDS, key=lambda record: record.t_done or 0.0)  # a journal is in order of ends
    result, records = read_result(saved(tmp_path, (7, ended)))
    assert result == make_result(RECORDS, window_s=10.0).model_copy(update={"records": ()})
    assert records == RECORDS


def test_the_records_are_of_the_last_replay_with_the_results_seed(tmp_path: Path) -> None:
    """A search journals every rate it tried; a run that went on has the earlier one before it."""
    folder = saved(tmp_path, (7, RECORDS[:3]), (7, RECORDS[:20]), (8, RECORDS[:10]))
    assert read_result(folder)[1] == RECORDS[:20]
    with pytest.raises(InputError) as caught:
        read_result(saved(tmp_path, (8, RECORDS), seed=9))
    assert "another replay" in caught.value.message
    assert "seed 9" in str(caught.value.why)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = saved(tmp_path, (7, RECORDS)) / "requests.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert read_result(tmp_path)[1] == RECORDS[:-1]


def test_a_result_without_its_journal_is_still_a_result(tmp_path: Path) -> None:
    (saved(tmp_path, (7, RECORDS)) / "requests.jsonl").unlink()
    assert read_result(tmp_path)[1] == ()


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"verdict": "PASS"}', "\x00"])
def test_no_result_is_an_error_with_its_file(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    with pytest.raises(InputError) as caught:
        read_result(tmp_path)
    assert caught.value.where == str(tmp_path / "result.json")
    assert caught.value.hint == f"advise validate {tmp_path}"


def test_a_result_of_another_version_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, (7, RECORDS)) / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": "2", "more": 1}))
    with pytest.raises(InputError, match="cannot read the result") as caught:
        read_result(tmp_path)
    assert "2 of its fields" in str(caught.value.why)
