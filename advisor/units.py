"""Quantities as people write them, `300ms`, `8k`, `8Ki`, `2x`, and as they read them, `90 min`."""

from __future__ import annotations

import re

from engine.errors import InputError

_TIME_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_COUNT = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_seconds(text: str, what: str = "time") -> float:
    """Seconds in `text`: `300ms`, `3s`, `10m`, `1.5h`; a bare number is seconds. Raises InputError."""
    return _parse(text, _TIME_S | {"": 1.0}, what, "300ms, 3s, 10m, 6h")


def show_seconds(value: float) -> str:
    """A time in the unit that suits it: `0.3 s`, `90 min`, `6 h`, `5 d`."""
    for unit, below in (("s", 120.0), ("m", 7200.0), ("h", 4 * 86400.0), ("d", float("inf"))):
        if value < below:
            return f"{value / _TIME_S[unit]:.4g} {'min' if unit == 'm' else unit}"
    return "never"


def parse_count(text: str, what: str = "count") -> int:
    """A count in `text`: `512`, `8k` = 8000, `8Ki` = 8192. Raises InputError on fractions."""
    value = _parse(text, _COUNT, what, "512, 8k (8000), 8Ki (8192)")
    if value != int(value):
        raise InputError(
            f"{what} {text!r} is not a whole number", hint=f"a count without a fraction: {what} 512"
        )
    return int(value)


def _parse(text: str, units: dict[str, float] | dict[str, int], what: str, examples: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or match.group(2) not in units:
        raise InputError(f"{what} {text!r} is not understood", hint=f"write it like {examples}")
    return float(match.group(1)) * units[match.group(2)]
