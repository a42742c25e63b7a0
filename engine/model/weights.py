"""A model's tensors by name: from the safetensors of a folder, or random ones of the same shapes.

Owns the files, the check of shapes and kinds, and the count of bytes. A rank of tensor parallelism takes parts
of tensors, and the rest is never read. Files are mapped: what needs no packing or conversion stays shared
between processes.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import InputError, MachineError

Cut = slice | None
"""A part of one dimension; None for all of it."""

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_KINDS = ("F64", "F32", "F16", "BF16")
_MOST_INDEX_BYTES = 2**26  # ours


class Source(Protocol):
    """Where tensors come from."""

    def has(self, name: str) -> bool:
        """Whether `name` can be read."""
        ...

    def read(self, name: str, shape: tuple[int, ...], rows: Cut, columns: Cut) -> torch.Tensor:
        """That part of the tensor `name`, which must have `shape`. Raises InputError."""
        ...

    def skip(self, name: str) -> None:
        """Accept a tensor that is not needed."""
        ...

    def refuse_leftovers(self) -> None:
        """Raise InputError for tensors that were neither read nor skipped."""
        ...


class Weights:
    """Takes tensors from a source to `dtype` and `device`, and counts their bytes."""

    def __init__(self, source: Source, dtype: torch.dtype, device: torch.device | str) -> None:
        self.source = source
        self.bytes = 0
        self._dtype = dtype
        self._device = device

    def take(
        self, name: str, *shape: int, rows: Cut = None, columns: Cut = None, pad_to: int = 0
    ) -> torch.Tensor:
        """A part of the tensor `name`, whose whole must have `shape`; zero rows behind it up to `pad_to`."""
        tensor = self.source.read(name, shape, rows, columns).to(self._device, self._dtype)
        if len(tensor) < pad_to:
            tensor = torch.cat((tensor, tensor.new_zeros(pad_to - len(tensor), *tensor.shape[1:])))
        self.bytes += tensor.numel() * tensor.element_size()
        return tensor


class FolderSource:
    """The safetensors of `folder`; each tensor is read once, and none may be left over.

    An index file decides which files count, as transformers writes it; else `model.safetensors`; else all.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        for path, expected in weight_files(folder).items():
            try:
                file = safe_open(path, framework="pt")
                names = set(file.keys())  # type: ignore[no-untyped-call]
            except (SafetensorError, OSError) as error:
                raise InputError(
                    "cannot read the weights",
                    where=str(path),
                    why=str(error),
                    hint="copy the model's folder again, whole",
                ) from None
            lacking = sorted(expected - names)
            if lacking:
                raise self._unusable(f"{path.name} lacks {lacking[0]}, which the index file places there")
            twice = sorted(names & self._files.keys())
            if twice:
                raise self._unusable(f"{twice[0]} is in {path.name} and in another file")
            self._files |= dict.fromkeys(names, file)

    def has(self, name: str) -> bool:
        """See `Source`."""
        return name in self._files

    def read(self, name: str, shape: tuple[int, ...], rows: Cut, columns: Cut) -> torch.Tensor:
        """See `Source`."""
        if name not in self._files:
            raise self._unusable(f"there is no tensor {name}")
        file = self._files.pop(name)
        try:
            part = file.get_slice(name)
            found, kind = tuple(part.get_shape()), part.get_dtype()
            if found != shape:
                raise self._unusable(f"{name} is {list(found)}, config.json says {list(shape)}")
            if kind not in _KINDS:
                raise self._unusable(f"{name} holds {kind}, not one of {', '.join(_KINDS)}")
            whole = rows is None and columns is None
            tensor: torch.Tensor = file.get_tensor(name) if whole else part[_cut(rows, columns)]
        except SafetensorError as error:
            raise self._unusable(f"{name}: {error}") from None
        return tensor

    def skip(self, name: str) -> None:
        """See `Source`."""
        self._files.pop(name, None)

    def refuse_leftovers(self) -> None:
        """A tensor that nobody took means a model that differs from ours, and would answer wrongly."""
        left = sorted(name for name in self._files if not name.endswith("rotary_emb.inv_freq"))
        if left:
            raise self._unusable(f"{len(left)} tensors have no place, the first is {left[0]}")

    def _unusable(self, why: str) -> InputError:
        return InputError(
            "the weights do not fit config.json",
            where=str(self._folder),
            why=why,
            hint="copy the model's folder again, whole",
        )


class DummySource:
    """Random tensors by name and seed, whole ones equal on every rank: for timing, not for answers.

    Matrices keep the size of what passes through them (uniform with variance 1 / inputs), norms start as ones,
    so that activations stay finite in 16 bits.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device | str, *, seed: int = 0) -> None:
        self._dtype = dtype
        self._device = torch.device(device)
        self._seed = seed

    def has(self, name: str) -> bool:
        """There is whatever is asked for."""
        return bool(name)

    def read(self, name: str, shape: tuple[int, ...], rows: Cut, columns: Cut) -> torch.Tensor:
        """See `Source`."""
        try:
            whole = torch.empty(shape, dtype=self._dtype, device=self._device)
        except RuntimeError as error:  # CUDA's out of memory is one too
            raise MachineError(
                f"no memory for {name}",
                why=str(error).splitlines()[0],
                hint="take a smaller model, more GPUs to an instance (tp), or dtype: bfloat16",
            ) from None
        if len(shape) == 1 and name.endswith("norm.weight"):
            return whole.fill_(1.0)
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        bound = math.sqrt(3 / shape[-1])
        whole.uniform_(-bound, bound, generator=generator)
        return whole[_cut(rows, columns)].contiguous()

    def skip(self, name: str) -> None:
        """See `Source`."""

    def refuse_leftovers(self) -> None:
        """Nothing is left over."""


def _cut(rows: Cut, columns: Cut) -> tuple[slice, ...]:
    every = slice(None)
    return (rows or every,) if columns is None else (rows or every, columns)


def weight_files(folder: Path) -> dict[Path, set[str]]:
    """The safetensors files of a folder that count, and the tensors that an index places in each.

    Raises InputError for an index that names files which are missing, or anything but files beside it.
    """
    index = folder / _INDEX
    if not index.is_file():
        single = folder / _SINGLE
        paths = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
        if not paths:
            raise InputError(
                "cannot read the weights",
                where=str(folder),
                why="there is no *.safetensors file",
                hint="copy the model's folder again, whole",
            )
        return {path: set() for path in paths}
    files: dict[Path, set[str]] = {}
    for tensor, name in _weight_map(index).items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise InputError(
                "the index of the weights is not usable",
                where=str(index),
                why=f"{name!r:.80}",
                hint="copy the model's folder again, whole",
            )
        files.setdefault(folder / name, set()).add(tensor)
    missing = sorted(path.name for path in files if not path.is_file())
    if missing:
        raise InputError(
            "a file of the weights is missing",
            where=str(folder),
            why=f"{_INDEX} names {', '.join(missing[:4])}"
            + (f" and {len(missing) - 4} more" * (len(missing) > 4)),
            hint="copy the model's folder again, whole",
        )
    return files


def _weight_map(index: Path) -> dict[str, Any]:
    try:
        if index.stat().st_size > _MOST_INDEX_BYTES:
            raise ValueError("it is larger than 64 MB")
        places = json.loads(index.read_bytes())["weight_map"]
        if not isinstance(places, dict) or not places:
            raise ValueError("its weight_map is not a dictionary of tensors")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            "the index of the weights is not usable",
            where=str(index),
            why=str(error),
            hint="copy the model's folder again, whole",
        ) from None
    return places
