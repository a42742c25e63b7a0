"""What a user may say about how a log is read."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from engine.errors import InputError

SELECTABLE = ("model", "client", "route", "status", "session")
MAPPABLE = (
    "arrival", "end", "prompt_tokens", "output_tokens", "cached_tokens", "ttft", "e2e", "prompt", "output",
    "model", "client", "route", "status", "session",
)  # fmt: skip
TIME_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}  # nanoseconds each


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Selection and interpretation of a log; the defaults take everything and detect the rest."""

    where: tuple[
        tuple[str, str], ...
    ] = ()  # (field, value); different fields must all match, values of one any
    since: str | None = None  # ISO or epoch; for relative times an offset such as 10m
    until: str | None = None  # exclusive
    field_map: tuple[tuple[str, str], ...] = ()  # (our name, dotted path in the log)
    time_unit: str | None = None  # s, ms, us or ns, where the guess is wrong
    tz: str = "UTC"  # zone of times that name none
    log_share: Fraction = Fraction(1)  # the share of the log to read, whole sessions where known
    block_size: int = 16  # tokens per block; text logs only
    seed: int = 0  # chooses the share
    format: str | None = None  # skip detection
    text: Literal["auto", "bytes", "tokens"] = (
        "auto"  # tokens: always by the tokenizer; auto: if the log is small
    )
    processes: int | None = None  # that parse; by default one, for large logs one a core

    def __post_init__(self) -> None:
        for name, _ in self.where:
            _check("--where field", name, SELECTABLE)
        for name, _ in self.field_map:
            _check("--map field", name, MAPPABLE)
        if self.time_unit is not None:
            _check("--time-unit", self.time_unit, tuple(TIME_UNITS))
        if not 0 < self.log_share <= 1:
            raise InputError("--log-share must be above 0 and at most 1", hint="--log-share 1/8")
        if self.processes is not None and self.processes < 1:
            raise InputError("a log is read by at least 1 process", hint="processes=1")
        if self.block_size < 1:
            raise InputError("--block-size must be at least 1", hint="--block-size 16")


def parse_pairs(text: str, flag: str) -> tuple[tuple[str, str], ...]:
    """The pairs of `name=value,name=value`, as `--where` and `--map` take them. Raises InputError."""
    pairs = []
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InputError(f"{flag} takes name=value", hint=f"{flag} {name.strip() or 'name'}=value")
        pairs.append((name.strip(), value.strip()))
    return tuple(pairs)


def _check(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise InputError(f"{what} {name!r} is not known", hint=f"use one of {', '.join(known)}")
