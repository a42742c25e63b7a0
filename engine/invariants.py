"""How stateful classes say that they are broken: `check_invariants` raises InvariantError, always a bug."""

from __future__ import annotations


class InvariantError(AssertionError):
    """State that must never be reached."""


def require(holds: bool, what: str) -> None:
    """Raise InvariantError naming `what` unless it holds. Unlike an assert, it stays under `python -O`."""
    if not holds:
        raise InvariantError(what)
