"""What no row of a log said, declared unknown once the log is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from advisor.logs.record import Record
from advisor.logs.trace import Unknown


def note_known(record: Record, names: Iterable[str], counts: Counter[str]) -> None:
    """Count which fields of a record are known, out of those with the names."""
    for name in names:
        counts[f"told {name}"] += is_known(getattr(record, name))


def is_known(value: object) -> bool:
    """Whether a field of a record holds a value: not None, -1 or NaN."""
    return value is not None and (not isinstance(value, int | float) or value >= 0)


def left_open(gaps: Mapping[str, Unknown], counts: Counter[str]) -> tuple[Unknown, ...]:
    """What to declare for the fields, by name, that no record had."""
    return tuple(gap for name, gap in gaps.items() if not counts[f"told {name}"])
