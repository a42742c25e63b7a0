"""What the front and who runs its instances know of each other."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Literal, Protocol

from engine.errors import AdviseError
from engine.server.channel import RouterChannel
from engine.server.messages import Info, Order, Report, Start
from engine.transfer.layout import Peer

State = Literal["starting", "up", "down", "lost"]


class Listener(Protocol):
    """Who hears of instances, in the event loop."""

    def heard(self, index: int, report: Report) -> None:
        """A report of an instance that is up."""
        ...

    def came_up(self, index: int) -> None:
        """The instance serves, empty."""
        ...

    def went_down(self, index: int) -> None:
        """The instance is dead, with all that it held."""
        ...

    def all_lost(self, error: AdviseError) -> None:
        """No instance serves, and none will."""
        ...


class Member:
    """One instance as the supervisor sees it."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.state: State = "starting"
        self.info: Info | None = None
        self.peer: Peer | None = None
        self.error: AdviseError | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: RouterChannel | None = None
        self.heard_at = 0.0
        self.busy_s = 0.0
        self.cpu_s = 0.0
        self.cpu_before_s = 0.0  # of earlier starts
        self.restarts = 0
        self.failed_starts = 0

    @property
    def name(self) -> str:
        """`decode-1`: its role and its number in the fleet's pool."""
        return self.start.name

    @property
    def pid(self) -> int | None:
        """Of its process; None while there is none."""
        return self.process.pid if self.process else None


class Instances(Protocol):
    """Who starts, watches and ends instances: processes of this host; in tests threads."""

    @property
    def members(self) -> Sequence[Member]:
        """The instances, in the order of the pools."""
        ...

    async def start(self, listener: Listener) -> None:
        """Start all of them; returns when all are up. Raises the error of one that cannot start."""
        ...

    def send(self, index: int, order: Order) -> None:
        """Queue an order for an instance; nothing happens where it is dead, which is heard of soon."""
        ...

    async def stop(self) -> None:
        """End all of them."""
        ...
