"""Which requests of a log are wanted: `--where`, `--since` and `--until`, `--log-share`.

What is left out is counted like any other line that was skipped: lines always equal requests plus skips.
"""

from __future__ import annotations

import hashlib

from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, UnusableError
from advisor.logs.times import Clock, parse_bound
from engine.errors import InputError

_NAMEABLE = ("model", "route", "status")  # fields whose values may be shown; clients and sessions may not
_MOST_NAMES = 8


class Selection:
    """Decides record by record; remembers a few names, to say what there was when nothing matched."""

    def __init__(self, options: ReadOptions, clock: Clock | None) -> None:
        self._where: dict[str, set[str]] = {}
        for field, value in options.where:
            self._where.setdefault(field, set()).add(value)
        self._since = _bound(options.since, clock, "--since")
        self._until = _bound(options.until, clock, "--until")
        self._share = options.log_share
        self._key = options.seed.to_bytes(8, "little", signed=True)
        self._asked = 0
        self._names: dict[str, set[str]] = {field: set() for field in self._where if field in _NAMEABLE}

    def check(self, record: Record) -> None:
        """Raise UnusableError if the record is not wanted."""
        self._asked += 1
        for field, names in self._names.items():
            if len(names) < _MOST_NAMES and (name := getattr(record, field)) is not None:
                names.add(name)
        for field, wanted in self._where.items():
            if getattr(record, field) not in wanted:
                raise UnusableError(f"not selected by --where {field}")
        arrival = record.arrival_ns
        if arrival is not None:
            if self._since is not None and arrival < self._since:
                raise UnusableError("before --since")
            if self._until is not None and arrival >= self._until:
                raise UnusableError("after --until")
        if self._share < 1 and not self._in_share(record.session or f"row {self._asked}"):
            raise UnusableError("left out by --log-share")

    def names_seen(self) -> str:
        """For a hint: what `--where` could have said."""
        return "; ".join(
            f"--where {field}={name}" for field, names in self._names.items() for name in sorted(names)
        )

    def _in_share(self, name: str) -> bool:
        digest = hashlib.blake2b(name.encode("utf-8", "replace"), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64 < self._share


def _bound(text: str | None, clock: Clock | None, flag: str) -> int | None:
    if text is None:
        return None
    if clock is None:
        raise InputError(f"{flag} needs times, and the log has none", hint=f"leave {flag} out")
    return parse_bound(text, clock, flag)
