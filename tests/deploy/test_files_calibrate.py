"""`calibrate` with a measuring process that plays known step times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from advisor.deploy.calibrate import calibrate, step_times_path
from engine.errors import MachineError
from engine.step_time.files import Key, load_calibrations

# Stands in for `python -m engine.calibrate`: steps take 20 ms + 1 ms a new token + 2 ms a decode row.
FAKE = """
import json, random, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
random.seed(0)
with open(flags["--out"], "w") as file:
    header = {"engine": "advise", "version": "9", "model": "folder-name", "dtype": "bfloat16"}
    file.write(json.dumps(header | {"threads": int(flags["--threads"]), "block_size": 16}) + "\\n")
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
