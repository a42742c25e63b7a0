"""Step logs and step_times.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import InputError
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.files import Key, load_calibrations, read_step_log, save_calibrations
from engine.step_time.model import StepShape

HEADER = '{"engine":"advise","version":"1","model":"m","dtype":"bfloat16","threads":2,"block_size":16}\n'
KEY = Key("advise", "1", "cpu", "m", "bfloat16", 2)
BUMPS = (0.0, 0.001, 0.0, 0.03, 0.0, 0.0, 0.0, 0.0, 0.0)
MODEL = CalibratedStepTime(Coefficients(0.01, 0.0, 1e-3, 1e-9, 2e-3, 3e-7), 0.02, 0.08, 123, BUMPS)


def test_reads_what_the_engine_writes(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    # Older logs list decode contexts; the server's log has `rows`, too; a step of no measured time is left out.
    path.write_text(
        HEADER
        + '{"step":1,"seconds":0.25,"prefill":[[64,0],[8,16]],"decode":[100,7],"rows":[["a",64,0]]}\n'
        + '{"step":2,"seconds":0.5,"prefill":[],"decode_rows":3,"decode_context":90,"rows":[]}\n'
        + '{"step":3,"seconds":0.0,"prefill":[],"decode":[100]}\n'
    )
    log = read_step_log(path)
    assert log.key() == KEY
    assert log.shapes == (StepShape(((64, 0), (8, 16)), 2, 107), StepShape((), 3, 90))
    assert log.seconds == (0.25, 0.5)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        '{"step":1}',
        '{"seconds":"x","prefill":[],"decode":[1]}',
        "[1]",
        '{"seconds":1,"prefill":[[1]],"decode":[]}',
    ],
)
def test_names_the_line_that_is_no_step(tmp_path: Path, line: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(HEADER + '{"step":1,"seconds":1,"prefill":[],"decode":[1]}\n' + line + "\n")
    with pytest.raises(InputError) as caught:
        read_step_log(path)
    assert caught.value.where == f"{path}:3"


def test_empty_log_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("")
    with pytest.raises(InputError, match="empty"):
        read_step_log(path)


def test_calibrations_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "step_times.yaml"
    other = Key("advise", "1", "cpu", "m", "float32", 1)
    calibrations = {KEY: MODEL, other: CalibratedStepTime(Coefficients(1, 2, 3, 4, 5, 6), 0.1, 0.2, 40)}
    save_calibrations(path, calibrations)
    assert load_calibrations(path) == calibrations
    assert list(load_calibrations(path)) == [KEY, other]
    save_calibrations(path, dict(reversed(calibrations.items())))
    assert list(load_calibrations(path)) == [other, KEY]


def test_no_file_means_no_calibrations(tmp_path: Path) -> None:
    assert load_calibrations(tmp_path / "step_times.yaml") == {}


@pytest.mark.parametrize("text", ["calibrations: 3", "a: [", "other: []", "calibrations: [{key: {engine: x}}]"])
def test_a_broken_file_is_an_input_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "step_times.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_calibrations(path)
    assert caught.value.where == str(path)
