"""Which requests of a log are wanted: `--where`, `--since` and `--until`, `--log-share`.

What is left out is counted like any other line that was skipped: lines always equal requests plus skips.
"""

from __future__ import annotations

import hashlib

from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, UnusableError
from advisor.logs.times import Clock, parse_bound
from engine.errors import InputError

_NAMEABLE = ("model", "status")  # fields whose values may be shown; routes, clients and sessions may not
_MOST_NAMES = 8

Names = dict[str, dict[str, None]]  # field -> some of its values, in the order in which they were met


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
        self._names: Names = {}
        self.narrows = bool(self._where) or self._share < 1 or (self._since, self._until) != (None, None)

    def check(self, record: Record, place: str) -> UnusableError | None:
        """Why the record is not wanted. `place` tells it from all others of the log."""
        for field in self._where:
            if field in _NAMEABLE and (name := getattr(record, field)) is not None:
                add_names(self._names, {field: {name: None}})
        for field, wanted in self._where.items():
            if getattr(record, field) not in wanted:
                return UnusableError(f"not selected by --where {field}")
        arrival = record.arrival_ns
        if arrival is not None:
            if self._since is not None and arrival < self._since:
                return UnusableError("before --since")
            if self._until is not None and arrival >= self._until:
                return UnusableError("after --until")
        if self._share < 1 and not self._in_share(record.session or place):
            return UnusableError("left out by --log-share")
        return None

    def take_names(self) -> Names:
        """Names met since the last time."""
        names, self._names = self._names, {}
        return names

    def _in_share(self, name: str) -> bool:
        digest = hashlib.blake2b(name.encode("utf-8", "replace"), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64 < self._share


def add_names(names: Names, more: Names) -> None:
    """Add names while there are few."""
    for field, values in more.items():
        known = names.setdefault(field, {})
        for value in values:
            if len(known) < _MOST_NAMES:
                known[value] = None


def name_hint(names: Names) -> str:
    """What `--where` could have said."""
    return "; ".join(f"--where {field}={name}" for field, values in names.items() for name in sorted(values))


def _bound(text: str | None, clock: Clock | None, flag: str) -> int | None:
    if text is None:
        return None
    if clock is None:
        raise InputError(f"{flag} needs times, and the log has none", hint=f"leave {flag} out")
    return parse_bound(text, clock, flag)
