"""How far a long copy is, one line for every tenth of it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]

QUIET_BYTES = 2**30  # ours: less than this is done before anyone asks


class Tenths:
    """Says `what N %` when another tenth of `total` bytes is done; nothing about small totals."""

    def __init__(self, what: str, total: int, say: Progress | None) -> None:
        self._what = what
        self._total = total
        self._say = say if total >= QUIET_BYTES else None
        self._done = 0

    def add(self, amount: int) -> None:
        """`amount` more bytes are done."""
        if self._say is None:
            return
        before, self._done = self._done * 10 // self._total, self._done + amount
        after = min(self._done * 10 // self._total, 10)
        if after > before:
            self._say(f"{self._what} {10 * after} %")
