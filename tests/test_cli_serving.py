"""The commands that start or measure an engine: what they pass on."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.ruled import plan_by_rules

from advisor.cli import run
from advisor.deploy import launch as launching
from engine.errors import InputError

LINE = '{{"timestamp": {t}, "input_length": 1200, "output_length": 40, "hash_ids": [0, 1, {n}]}}\n'
LOG = "".join(LINE.format(t=i * 250, n=i + 2) for i in range(40))
REMOTE = "http://engine.example:8000"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.jsonl").write_text(LOG)
    return tmp_path


def test_a_launch_is_told_all_its_flags(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_by_rules(monkeypatch)
    assert run(["analyze", "log.jsonl", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--slo", "chat"]) == 0
    told = {}

    def launch(found: launching.Launchable, **given: object) -> None:
        told.update(given, folder=found.folder)
        raise InputError("stop here", hint="x")

    monkeypatch.setattr(launching, "launch", launch)
    flags = ["--port", "0", "--step-log", "steps.jsonl", "--request-log", "log.jsonl", "--load", "dummy"]
    emulated = ["--emulate", "h100-sxm", "--time-scale", "4", "--oversubscribe"]
    assert run(["launch", *flags, *emulated]) == 2
    told.pop("progress")
    assert told == {
        "folder": Path("advise-out"), "port": 0, "step_log": Path("steps.jsonl"), "load": "dummy",
        "request_log": Path("log.jsonl"), "emulate": "h100-sxm", "time_scale": 4.0, "oversubscribe": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("parallel", "want"),
    [
        ([], (1, None)),
        (["--gpus", "4"], (4, None)),
        (["--tp", "2"], (2, 2)),
        (["--gpus", "4", "--tp", "2"], (4, 2)),
    ],
)
def test_a_calibration_from_outside_is_told_all_its_flags(
    here: Path, monkeypatch: pytest.MonkeyPatch, parallel: list[str], want: tuple[int, int | None]
) -> None:
    """A `tp` of None is all of the instance's GPUs."""
    told = {}

    def calibrate(url: str, **given: object) -> None:
        told.update(given, url=url)
        raise InputError("stop here", hint="x")

    monkeypatch.setattr("advisor.validation.outside.calibrate_url", calibrate)
    flags = [
        "--gpu",
        "h100-sxm",
        *parallel,
        "--stack",
        "vllm",
        "--model",
        "llama-3.1-8b",
        "--out",
        "times.yaml",
    ]
    assert run(["calibrate", "--url", REMOTE, *flags, "--out", "times.yaml", "--yes"]) == 2
    told.pop("progress")
    assert told == {
        "url": REMOTE, "device": "h100-sxm", "engine": "vllm", "model": "llama-3.1-8b", "dtype": "auto",
        "parallel": want[0], "tp": want[1], "api_key": None, "tokenizer": None, "out": Path("times.yaml"),
    }  # fmt: skip
