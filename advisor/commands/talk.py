"""Where the commands talk to people: stderr. Stdout is data."""

from __future__ import annotations

from rich.console import Console


def talk() -> Console:
    """A console on stderr, as it is now."""
    return Console(stderr=True, soft_wrap=True, highlight=False)
