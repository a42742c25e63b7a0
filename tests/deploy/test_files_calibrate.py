"""`calibrate` with a measuring process that plays known step times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.advice.profiles import gpu
from advisor.advice.steps import choose_step_times
from advisor.advice.target import Target
from advisor.deploy.calibrate import calibrate, calibrate_one_core, refit, step_times_path
from engine.errors import InputError, InvalidMeasurementError, MachineError
from engine.shape import ModelShape
from engine.step_time.files import Key, load_calibrations

# Stands in for `python -m engine.calibrate`: steps take 20 ms + 1 ms a new token + 2 ms a decode row.
FAKE = """
import json, random, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
random.seed(0)
with open(flags["--out"], "w") as file:
    header = {"engine": "advise", "version": "9", "model": "folder-name", "dtype": "bfloat16"}
    header |= {"threads": int(flags["--threads"]), "tp": int(flags["--tp"]), "block_size": 16}
    file.write(json.dumps(header | json.loads(flags.get("--header", "{}"))) + "\\n")
    for step in range(120):
        new, rows = random.choice([0, 64, 256]), random.randint(1, 16)
        seconds = 0.020 + 0.001 * new + 0.002 * rows
        prefill = [[new, random.randint(0, 900)]] if new else []
        row = {"step": step, "seconds": seconds, "prefill": prefill}
        file.write(json.dumps(row | {"decode": [random.randint(1, 900) for _ in range(rows)]}) + "\\n")
"""
FAILING = "import sys; sys.stderr.write('no such number format\\n'); sys.exit(3)"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model's."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_calibrate_keeps_what_it_measured_beside_other_calibrations(tmp_path: Path, model: Path) -> None:
    cache = tmp_path / "cache"
    for threads in (1, 2):
        result = calibrate(model=str(model), threads=threads, cache=cache, program=(sys.executable, "-c", FAKE))
    assert result.key == Key("advise", "9", "cpu", "tiny", "bfloat16", 2)
    assert result.path == step_times_path(cache) == cache / "step_times.yaml"
    assert result.step_time.coefficients == pytest.approx((0.020, 0, 0.001, 0, 0.002, 0), abs=1e-7)
    assert result.step_time.error_p90 == pytest.approx(0, abs=1e-6)
    assert load_calibrations(result.path) == {
        Key("advise", "9", "cpu", "tiny", "bfloat16", threads): result.step_time for threads in (1, 2)
    }


def test_of_two_that_fit_a_plan_rests_on_the_newest(tmp_path: Path, model: Path) -> None:
    """A dtype is chosen by a race: the one that won last is the one that will be served."""
    target = Target(model="tiny", gpu="cpu", gpus=2)
    shape = ModelShape(layers=1, hidden=8, heads=1, kv_heads=1, head_dim=8, ffn=8, vocab=8, max_len=64)
    for dtype in ("float32", "bfloat16", "float32"):
        program = (sys.executable, "-c", FAKE.replace("bfloat16", dtype))
        calibrate(model=str(model), threads=2, cache=tmp_path, program=program)
        found = load_calibrations(step_times_path(tmp_path))
        assert choose_step_times(target, shape, 1, found).dtype == dtype


# Steps take a millisecond more for each core that they may run on; the only one is left in the model's folder.
PINNED = (
    FAKE.replace("seconds = 0.020 +", "seconds = 0.001 * len(mine) +")
    .replace("import json", "import os, json")
    .replace("random.seed(0)", "random.seed(0); mine = sorted(os.sched_getaffinity(0))")
    + "if len(mine) == 1: open(flags['--model'] + f'/core-{mine[0]}', 'w')\n"
)


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores to pin"
)
def test_an_instance_of_one_core_is_measured_beside_others(tmp_path: Path, model: Path) -> None:
    """Each process may run on one core, another each; the fit is of the steps of all."""
    mine = sorted(os.sched_getaffinity(0))
    program, cache = (sys.executable, "-c", PINNED), tmp_path / "cache"
    whole = calibrate(model=str(model), cache=cache, program=program)
    one = calibrate_one_core(whole, model=str(model), cache=cache, program=program)
    assert os.sched_getaffinity(0) == set(mine)
    assert one is not None
    assert (one.key.parallel, one.key.tp, one.key.dtype) == (1, 1, "bfloat16")
    assert one.step_time.steps == 120 * min(len(mine), 8)
    assert one.step_time.coefficients.base == pytest.approx(0.001)
    assert whole.step_time.coefficients.base == pytest.approx(0.001 * len(mine))
    assert {path.name for path in model.glob("core-*")} == {f"core-{core}" for core in mine[:8]}
    assert set(load_calibrations(one.path)) == {whole.key, one.key}
    assert calibrate_one_core(one, model=str(model), cache=cache, program=program) is None


def test_ranks_have_a_calibration_of_their_own(tmp_path: Path, model: Path) -> None:
    for tp in (1, 2):
        calibrate(model=str(model), threads=2, tp=tp, cache=tmp_path, program=(sys.executable, "-c", FAKE))
    one, two = sorted(load_calibrations(step_times_path(tmp_path)))
    assert (one.parallel, one.tp) == (2, 1)
    assert (two.parallel, two.tp) == (2, 2)
    assert str(two).endswith("cpu, 2 thread(s) as 2 ranks")


def served_log(path: Path, **header: object) -> Path:
    """A step log of 20 ms + 1 ms a new token + 2 ms a decode row, as a served engine writes it."""
    argv = [sys.executable, "-c", FAKE, "--out", str(path), "--threads", "2", "--tp", "2"]
    subprocess.run([*argv, "--header", json.dumps(header)], check=True)
    return path


def test_a_served_engines_step_log_is_refitted_under_its_own_key(tmp_path: Path) -> None:
    log = served_log(tmp_path / "steps.jsonl", model="served", device="cpu")
    result = refit(log, cache=tmp_path)
    assert result.key == Key("advise", "9", "cpu", "served", "bfloat16", 2, 2)
    assert result.step_time.coefficients == pytest.approx((0.020, 0, 0.001, 0, 0.002, 0), abs=1e-7)
    assert load_calibrations(result.path) == {result.key: result.step_time}


def test_a_gpus_step_log_is_kept_under_the_id_that_plans_use(tmp_path: Path) -> None:
    log = served_log(tmp_path / "steps.jsonl", device="NVIDIA H100 80GB HBM3")
    assert refit(log, cache=tmp_path).key.device == gpu("NVIDIA H100 80GB HBM3").id
    unknown = served_log(tmp_path / "steps.jsonl", device="NVIDIA GPU That Nobody Knows")
    assert refit(unknown, cache=tmp_path).key.device == "NVIDIA GPU That Nobody Knows"


def test_a_step_log_that_cannot_be_fitted_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the step log"):
        refit(tmp_path / "none.jsonl", cache=tmp_path)
    log = served_log(tmp_path / "steps.jsonl")
    log.write_text("\n".join(log.read_text().splitlines()[:20]))
    with pytest.raises(InvalidMeasurementError, match="19 steps are too few"):
        refit(log, cache=tmp_path)
    assert not step_times_path(tmp_path).exists()


def test_a_failed_measurement_says_why_and_keeps_nothing(tmp_path: Path, model: Path) -> None:
    with pytest.raises(MachineError, match="exit status 3") as caught:
        calibrate(model=str(model), threads=1, cache=tmp_path, program=(sys.executable, "-c", FAILING))
    assert caught.value.why == "no such number format"
    assert not step_times_path(tmp_path).exists()


def test_without_the_engines_libraries_the_install_line_is_the_hint(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(MachineError, match="not installed") as caught:
        calibrate(model=str(model), threads=1, cache=tmp_path)
    assert "advise[engine]" in str(caught.value.hint)
