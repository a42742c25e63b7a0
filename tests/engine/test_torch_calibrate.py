"""Calibration: the designed steps, the file's format, and what a slow executor measures."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from helpers.tiny_model import LLAMA, write_tiny_model

from engine import calibrate
from engine.calibrate import CPU_GRID, GPU_GRID, Grid, build_step, design, main
from engine.shape import ModelShape
from engine.step_time.model import StepShape

SHAPE = ModelShape.from_config(LLAMA)
LONG = replace(SHAPE, max_len=131_072)


@pytest.mark.parametrize("grid", [CPU_GRID, GPU_GRID], ids=["cpu", "gpu"])
@pytest.mark.parametrize("shape", [LONG, SHAPE, replace(SHAPE, max_len=64)])
def test_designed_steps_fit_the_model_and_the_pool(shape: ModelShape, grid: Grid) -> None:
    for seed in range(20):
        for step in design(shape, Random(seed), grid):
            built = build_step(1, step, 16, 256, Random(0)).rows
            assert all(0 <= row.start <= shape.max_len - len(row.tokens) for row in built)
            assert sum(row.start + len(row.tokens) for row in built) <= grid.pool_tokens


def test_a_pass_covers_both_phases_and_their_mixture() -> None:
    steps = design(LONG, Random(0))
    assert {new for step in steps for new, _ in step.prefill} == {16, 64, 128, 256, 512}
    assert {step.decode_rows for step in steps if not step.prefill} == {1, 2, 4, 8, 16, 32}
    assert any(step.prefill and step.decode_rows for step in steps)
    contexts = [step.decode_context / step.decode_rows for step in steps if step.decode_rows]
    assert max(contexts) > 400
    assert min(contexts) < 64


def test_passes_differ_in_order_and_contexts() -> None:
    random = Random(0)
    first, second = design(LONG, random), design(LONG, random)
    assert first != second
    assert sorted(step.decode_rows for step in first) == sorted(step.decode_rows for step in second)
    assert design(LONG, Random(0)) == first


def test_rows_of_a_step_share_no_block() -> None:
    shape = StepShape(((40, 24),), 3, 46)
    step = build_step(7, shape, 16, 256, Random(0))
    assert StepShape.of(step) == shape
    assert [len(row.blocks) for row in step.rows] == [1, 1, 2, 4]
    blocks = [block for row in step.rows for block in row.blocks]
    assert len(set(blocks)) == len(blocks)
    assert 0 not in blocks


@pytest.mark.parametrize("tp", [1, 2])
def test_the_file_is_a_step_log(tmp_path: Path, tp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(CPU_GRID, chunks=(16, 64))
    monkeypatch.setattr(calibrate, "CPU_GRID", small)
    folder, out = write_tiny_model(tmp_path / "tiny"), tmp_path / "steps.jsonl"
    argv = ["--model", str(folder), "--out", str(out), "--dtype", "float32", "--seconds", "0"]
    assert main([*argv, "--threads", str(tp), "--tp", str(tp)]) == 0
    header, *lines = map(json.loads, out.read_text().splitlines())
    assert header.pop("version")
    assert header == {
        "engine": "advise",
        "model": "tiny",
        "dtype": "float32",
        "device": "cpu",
        "threads": tp,
        "tp": tp,
        "block_size": 16,
    }
    assert len(lines) == 2 * len(design(SHAPE, Random(0), small))
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert all(
        line["seconds"] > 0 and line.keys() == {"step", "seconds", "prefill", "decode_rows", "decode_context"}
        for line in lines
    )


def test_seconds_are_those_of_the_step_that_is_named() -> None:
    """An executor that sleeps 0.1 ms a query token: seconds must be at least that, warm-ups left out."""

    class Sleeper:
        shape = replace(SHAPE, max_len=256)
        ran = 0

        def submit(self, step: object) -> Sleeper:
            self.ran += 1
            time.sleep(1e-4 * step.query_tokens)  # type: ignore[attr-defined]
            return self

        def result(self) -> None:
            return None

    sleeper = Sleeper()
    measured = list(calibrate.measure(sleeper, block_size=16, seconds=0, seed=1))  # type: ignore[arg-type]
    tokens = [shape.tokens for shape, _ in measured]
    assert all(seconds >= 1e-4 * count for count, (_, seconds) in zip(tokens, measured, strict=True))
    assert sleeper.ran == len(measured) + len(set(tokens))


def test_threads_that_ranks_cannot_share_equally_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tmp_path), "--out", str(tmp_path / "x"), "--threads", "3", "--tp", "2"]) == 2
    assert "3 threads cannot be shared equally by 2 ranks" in capsys.readouterr().err


def test_a_folder_that_cannot_run_is_an_error_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny_model(tmp_path / "tiny", LLAMA | {"architectures": ["Other"]})
    assert main(["--model", str(folder), "--out", str(tmp_path / "x")]) == 2
    assert "architecture Other" in capsys.readouterr().err
