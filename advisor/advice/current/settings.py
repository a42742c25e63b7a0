"""From what was given to a Current: takes each setting from the user's words, else from the stack's defaults.

Owns the book of what was read and what was assumed, and versions. A stack's defaults are in its own module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from advisor.advice.current.flags import Parsed
from advisor.advice.current.model import TITLES, Assumed, Current, Said, Stack, Value
from advisor.advice.current.values import Json
from engine.config import PoolConfig, RouterConfig

T = TypeVar("T", bool, int, float, str)
NOT_SAID = "not said"


@dataclass(frozen=True, slots=True)
class Around:
    """What is known around a launch line: versions, devices, replicas, variables.

    `gpu`: name of the GPU; `gpu_memory_gb`: its memory, 1e9 bytes; `devices`: GPUs that the process sees.
    """

    version: str | None = None
    gpu: str | None = None
    gpu_memory_gb: float | None = None
    devices: int | None = None
    count: int = 1
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def memory_gib(self) -> float | None:
        """Memory of one GPU, 2**30 bytes, as the stacks count it."""
        return None if self.gpu_memory_gb is None else self.gpu_memory_gb * 1e9 / 2**30

    def at_least(self, version: str) -> bool | None:
        """Whether the stack's version is `version` or later; None where it is not known."""
        return None if self.version is None else number_of(self.version) >= number_of(version)


def number_of(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparison: `v0.11.0.post1` is (0, 11, 0)."""
    match = re.match(r"v?(\d{1,9}(?:\.\d{1,9})*)", version)
    return tuple(int(part) for part in match.group(1).split(".")[:3]) if match else ()


class Settings:
    """Takes settings one by one and keeps the book. Not shared, not stored."""

    def __init__(self, stack: Stack, parsed: Parsed, around: Around, seen: tuple[str, str]) -> None:
        """`seen`: the oldest and newest version whose defaults were read."""
        self.around = around
        self.notes: list[str] = list(parsed.notes)
        self.other: dict[str, Value] = {}
        self._stack = stack
        self._newest = seen[1]
        version = number_of(around.version or seen[1])
        self._outside = not number_of(seen[0]) <= version <= (*number_of(seen[1]), 999)
        self._parsed = parsed
        self._read: list[Said] = []
        self._assumed: list[Assumed] = []

    def said(self, name: str) -> Value:
        """What was said of a setting, else None."""
        given = self._parsed.given.get(name)
        if given is None or given.json:
            return None
        if Said(name, given.value, given.by) not in self._read:
            self._read.append(Said(name, given.value, given.by))
        return given.value

    def json(self, name: str) -> Json:
        """The mapping of a setting; empty where nothing was said. Who takes a key of it calls `note_read`."""
        given = self._parsed.given.get(name)
        return given.json if given else {}

    def note_read(self, setting: str, value: Value, by: str) -> None:
        """Something that was read outside the table's knobs."""
        self._read.append(Said(setting, value, by))

    @property
    def ignored(self) -> tuple[str, ...]:
        """Known flags that are no knobs."""
        return self._parsed.ignored

    def by(self, name: str) -> str:
        """Which flag said a setting."""
        given = self._parsed.given.get(name)
        return given.by if given else NOT_SAID

    def text(self, name: str) -> str | None:
        """A text that was said."""
        value = self.said(name)
        return None if value is None else str(value)

    def count(self, name: str) -> int | None:
        """A whole number that was said; None too for -1, by which stacks mean `decide yourself`."""
        value = self.said(name)
        return int(value) if isinstance(value, int | float) and value > 0 else None

    def number(self, name: str) -> float | None:
        """A number that was said."""
        value = self.said(name)
        return float(value) if isinstance(value, int | float) else None

    def flag(self, name: str) -> bool | None:
        """A switch that was said."""
        value = self.said(name)
        return None if value is None else bool(value)

    def take(
        self, name: str, said: T | None, default: T, versions: str, source: str, verified: bool = True
    ) -> T:
        """`said`, else the default, which is then written into the book."""
        if said is not None:
            return said
        self.assume(name, default, versions, source, verified)
        return default

    def assume(self, name: str, value: Value, versions: str, source: str, verified: bool = True) -> None:
        """Write a default into the book."""
        known = verified and (versions == "all" or not self._outside)
        self._assumed.append(Assumed(name, value, versions, source, known))

    def keep_other(self, *names: str) -> None:
        """Settings that matter and that our pools have no word for."""
        for name in names:
            value = self.said(name)
            if value is not None and value is not False:
                self.other[name] = value

    def _model(self) -> str | None:
        name = self.text("model")
        if name is not None and "$" in name:
            self.notes.append("the model is a variable that is not set here: say it with --model")
            return None
        return name

    def current(
        self,
        pools: tuple[PoolConfig, ...],
        *,
        router: RouterConfig | None = None,
        dtype: str = "auto",
        kv_dtype: str = "auto",
        max_len: int | None = None,
        memory_fraction: float | None = None,
    ) -> Current:
        """The result."""
        if self.around.version is None and self._assumed:
            self.notes.append(
                f"the version is not known: defaults are those of {TITLES[self._stack]} {self._newest}"
            )
        unverified = [a.setting for a in self._assumed if not a.verified]
        if unverified:
            self.notes.append(f"assumed and not verified: {', '.join(unverified)}")
        return Current(
            stack=self._stack,
            version=self.around.version,
            model=self._model(),
            pools=pools,
            router=router or RouterConfig(),
            dtype=dtype,
            kv_dtype=kv_dtype,
            max_len=max_len,
            memory_fraction=memory_fraction,
            other=self.other,
            read=tuple(self._read),
            assumed=tuple(self._assumed),
            ignored=self._parsed.ignored,
            unknown=self._parsed.unknown,
            notes=tuple(dict.fromkeys(self.notes)),
        )
