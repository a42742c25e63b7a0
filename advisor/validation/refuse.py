"""What is refused before a single request is sent: a run that could only fail, or that must not start.

Each refusal is a MachineError (exit 3) with the share of requests affected and the flag that goes round it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np

from advisor.validation.window import Window
from engine.errors import InputError, MachineError


@dataclass(frozen=True, slots=True)
class Load:
    """How much a window asks of the advised plan, by its calibrated step times.

    An instance that starts idle may fall behind by `backlog_s` of work before a request misses its TTFT target.
    """

    utilisation: float  # seconds of work that a second of the window brings
    length_s: float
    backlog_s: float = 0.0

    @property
    def limit(self) -> float:
        """The utilisation at which the last request of the window still keeps its TTFT target."""
        return 1 + self.backlog_s / self.length_s

    @property
    def late_share(self) -> float:
        """Share of the window, at a steady rate, that finds more than `backlog_s` of work before it."""
        if self.utilisation <= self.limit:
            return 0.0
        return 1 - self.backlog_s / ((self.utilisation - 1) * self.length_s)


def over_context(window: Window, max_len: int) -> None:
    """Refuse a window with a request (prompt plus output) longer than the model's context."""
    lengths = window.trace.prompt_tokens + window.trace.output_tokens
    over = int(np.count_nonzero(lengths > max_len))
    if over:
        raise MachineError(
            f"{over} of {len(window)} requests ({over / len(window):.1%}) are longer than the model's context",
            why=f"the longest takes {int(lengths.max())} tokens, the context holds {max_len}",
            hint="add --fit lengths to scale them (the verdict then says: not your traffic)",
        )


def over_load(load: Load) -> None:
    """Refuse a window that asks for more than the plan's calibrated limit."""
    if load.utilisation > load.limit:
        raise MachineError(
            f"the window asks for {load.utilisation / load.limit:.2f} times what the plan can serve here",
            why=f"about {load.late_share:.0%} of the requests would miss their TTFT target by load alone",
            hint="add --fit rate to stretch the arrivals (the verdict then says: not your traffic)",
        )


def remote(url: str, *, allowed: bool) -> None:
    """Refuse a host that is not this machine unless that was allowed. Raises InputError for what is no URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url!r} is not a URL", hint="--url http://127.0.0.1:8000")
    if allowed or _is_loopback(parts.hostname):
        return
    raise MachineError(
        f"{parts.hostname} is not this machine",
        why="a replay sends real load, which may cost money or disturb others",
        hint="add --yes if the host is yours",
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
