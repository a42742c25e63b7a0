"""The wheel: what it holds, and that it works alone, away from the checkout."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from benchmarks.install import LIMIT_MB, LOG, install_wheel, size_mb


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with the built wheel, and the Python of a new environment that holds only it."""
    folder = tmp_path_factory.mktemp("wheel")
    return folder, install_wheel(folder)


def test_import_packages_are_exactly_advisor_and_engine(environment: tuple[Path, Path]) -> None:
    [wheel] = environment[0].glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"advisor", "engine"}


def test_analyzes_a_log_from_another_folder(environment: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(LOG)
    command = [str(environment[1]), "-m", "advisor", "analyze", "log.jsonl", "--gpu", "h100-sxm"]
    command += ["--model", "llama-3.1-8b", "--slo", "chat", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["log"]["requests"] == 200
    # Blocks 0 and 1 of every request but the first are hits: 199 * 1024 of 200 * 1200 tokens.
    assert report["sharing"]["hit_rate_tokens"] == pytest.approx(199 * 1024 / (200 * 1200))
    assert (tmp_path / "advise-out" / "engine.yaml").exists()  # profiles and templates came along


def test_cli_imports_no_torch_and_the_base_install_is_small(environment: tuple[Path, Path]) -> None:
    check = "import sys, advisor.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([str(environment[1]), "-c", check], check=True, cwd=environment[0])
    assert size_mb(environment[0] / "venv") <= LIMIT_MB
