"""Reads GGUF files (versions 2 and 3, little-endian): metadata, and tensors as mapped bytes.

Owns the bounds. Every count, length, dimension and offset of the file is foreign and is checked against the
file's size before it is used, so that a damaged or hostile file gives an InputError and nothing else. Knows
nothing of models.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import InputError, MachineError

TOKENIZE_EXTRA = "pip install 'advise[tokenize]'"

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
"""Kinds of numbers that are read, by ggml's names."""

_HINT = "--model FOLDER with the model's safetensors"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# Ours: far above any model that exists, far below what fills a machine.
_MOST_ITEMS, _MOST_KEY_BYTES, _MOST_ELEMENTS = 2**24, 2**16, 2**40


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: `shape` rows first, `kind` by ggml's name, and where its bytes are in the file."""

    name: str
    shape: tuple[int, ...]
    kind: str
    first: int
    last: int

    @property
    def elements(self) -> int:
        """Count of its numbers."""
        return int(np.prod(self.shape, dtype=np.int64))


class GgufFile:
    """One open file. Raises InputError for whatever is wrong with it."""

    def __init__(self, path: Path) -> None:
        try:
            import gguf
        except ImportError as error:
            raise MachineError("cannot read GGUF files", why=str(error), hint=TOKENIZE_EXTRA) from None
        self.path = path
        self._types = gguf.GGMLQuantizationType
        self._sizes = gguf.GGML_QUANT_SIZES
        self._dequantize: Callable[..., npt.NDArray[np.float32]] = gguf.dequantize
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._metadata: dict[str, Any] = {}
            self.tensors: dict[str, GgufTensor] = {}
            self._read()
        except (ValueError, OSError, struct.error) as error:
            raise InputError(
                "not a usable GGUF file",
                where=str(path),
                why=str(error),
                hint="copy the file again, or take the model's folder of safetensors",
            ) from None

    def unusable(self, why: str) -> InputError:
        """The error for a file that is sound but not for us."""
        return InputError("cannot use this GGUF file", where=str(self.path), why=why, hint=_HINT)

    def has(self, key: str) -> bool:
        """Whether the metadata has `key`."""
        return key in self._metadata

    def text(self, key: str, default: str | None = None) -> str:
        """A string of the metadata."""
        return self._value(key, default, str)  # type: ignore[no-any-return] # checked there

    def number(self, key: str, default: float | None = None, *, least: float = 0, most: float = 2**31) -> float:
        """A number of the metadata, within bounds."""
        value: float = self._value(key, default, (int, float))
        if not least <= value <= most:
            raise self.unusable(f"{key} is {value}")
        return value

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer of the metadata, from `least`."""
        value: int = self._value(key, default, int)
        if not least <= value <= 2**31:
            raise self.unusable(f"{key} is {value}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A truth value of the metadata."""
        return bool(self._value(key, default, (bool, int)))

    def texts(self, key: str, default: list[str] | None = None) -> list[str]:
        """A list of strings of the metadata."""
        return self._list(key, default, str)

    def numbers(self, key: str, default: list[float] | None = None) -> list[float]:
        """A list of numbers of the metadata."""
        return self._list(key, default, (int, float))

    def floats(self, tensor: GgufTensor) -> npt.NDArray[np.float32]:
        """A tensor's values, rows first. Raises InputError where one is not a finite number."""
        if tensor.kind not in KINDS:
            raise self.unusable(f"{tensor.name} is {tensor.kind}, not one of {', '.join(KINDS)}")
        raw = np.frombuffer(self._bytes, np.uint8, tensor.last - tensor.first, tensor.first)
        rows = tensor.elements // tensor.shape[-1]
        with np.errstate(all="ignore"):
            values = self._dequantize(raw.reshape(rows, -1), self._types[tensor.kind])
        if not np.isfinite(values).all():
            raise self.unusable(f"{tensor.name} holds values that are not finite numbers")
        return values.astype(np.float32, copy=False).reshape(tensor.shape)

    def _value(self, key: str, default: Any, kind: type | tuple[type, ...]) -> Any:
        value = self._metadata.get(key, default)
        if value is None:
            raise self.unusable(f"it lacks {key}")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, (int, float))):
            raise self.unusable(f"{key} is a {type(value).__name__}")
        return value

    def _list(self, key: str, default: Any, kind: type | tuple[type, ...]) -> list[Any]:
        values: list[Any] = self._value(key, default, list)
        if not all(isinstance(value, kind) for value in values):
            raise self.unusable(f"{key} holds other things than it should")
        return values

    def _read(self) -> None:
        cursor = _Cursor(self._bytes)
        magic, version = cursor.take("4s")[0], cursor.take("I")[0]
        if magic != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        if version not in (2, 3):
            raise ValueError(f"version {version}, or big-endian; 2 and 3 are read")
        tensors, entries = cursor.take("QQ")
        for _ in range(entries):
            key = cursor.string(_MOST_KEY_BYTES)
            if key in self._metadata:
                raise ValueError(f"two entries are called {key}")
            self._metadata[key] = cursor.value(cursor.take("I")[0])
        found = [self._tensor(cursor) for _ in range(tensors)]
        align = self._metadata.get("general.alignment", 32)
        if not isinstance(align, int) or not 1 <= align <= 2**20:
            raise ValueError(f"general.alignment is {align}")
        self._place(found, cursor.offset + -cursor.offset % align)

    def _tensor(self, cursor: _Cursor) -> GgufTensor:
        """A tensor's record, its bytes counted from the start of the data."""
        name = cursor.string(_MOST_KEY_BYTES)
        dimensions = cursor.take("I")[0]
        if not 1 <= dimensions <= 4:
            raise ValueError(f"{name} has {dimensions} dimensions")
        shape = cursor.take(f"{dimensions}Q")[::-1]
        number, offset = cursor.take("IQ")
        if number not in self._types.__members__.values():
            raise ValueError(f"{name} has the unknown kind {number}")
        kind = self._types(number)
        block, size = self._sizes[kind]
        elements = 1
        for length in shape:
            elements *= length
        if not 1 <= elements <= _MOST_ELEMENTS or shape[-1] % block:
            raise ValueError(f"{name} has the impossible shape {list(shape)}")
        return GgufTensor(name, tuple(shape), kind.name, offset, offset + elements // block * size)

    def _place(self, found: list[GgufTensor], start: int) -> None:
        """Move tensors to their place in the file; none may reach beyond its end or into another."""
        end = start
        for one in sorted(found, key=lambda tensor: tensor.first):
            first, last = start + one.first, start + one.last
            if last > len(self._bytes):
                raise ValueError(
                    f"{one.name} reaches {last - len(self._bytes)} bytes beyond the end of the file"
                )
            if first < end:
                raise ValueError(f"{one.name} begins inside another tensor")
            if one.name in self.tensors:
                raise ValueError(f"two tensors are called {one.name}")
            end = last
            self.tensors[one.name] = GgufTensor(one.name, one.shape, one.kind, first, last)


class _Cursor:
    """Reads on from one place to the next. Raises ValueError or struct.error past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.offset = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self._data, self.offset)
        self.offset += struct.calcsize(f"<{layout}")
        return values

    def string(self, most: int | None = None) -> str:
        length = self.take("Q")[0]
        if length > len(self._data) - self.offset or (most is not None and length > most):
            raise ValueError(f"a string of {length} bytes at byte {self.offset}")
        self.offset += length
        return self._data[self.offset - length : self.offset].decode()

    def value(self, kind: int) -> Any:
        """Strings, numbers, truth values, or lists of them."""
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])[0]
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ValueError(f"a value of the unknown type {kind} at byte {self.offset}")
        element, count = self.take("IQ")
        if count > min(_MOST_ITEMS, len(self._data) - self.offset):
            raise ValueError(f"a list of {count} values at byte {self.offset}")
        if element == _STRING:
            return [self.string() for _ in range(count)]
        if element not in _SCALARS:
            raise ValueError(f"a list of the unknown type {element} at byte {self.offset}")
        return list(self.take(f"{count}{_SCALARS[element]}"))
