"""When a copy between two instances counts as complete: at once, or once a modelled link has carried it.

Owns the copies in progress as the router knows them. On an emulated fleet the bytes that really move are a
fraction of the modelled model's; the link makes them take as long as those would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from engine.emulation import Emulation
from engine.fleet.actions import Pull
from engine.server.messages import Pulled
from engine.transfer.link import Link


@dataclass(slots=True)
class _Copy:
    pull: Pull
    report: Pulled | None = None  # the bytes are there, or never will be
    carried: bool = True  # so says the link


class Links:
    """All copies of a fleet; `link` paces them at `bytes_per_token`, its second is `scale` of the wall's."""

    def __init__(self, link: Link | None = None, *, bytes_per_token: float = 0.0, scale: float = 1.0) -> None:
        self._link = link
        self._bytes_per_token = bytes_per_token
        self._scale = scale
        self._copies: dict[int, _Copy] = {}  # by attempt
        self._done: list[Pulled] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self, pull: Pull, now: float) -> None:
        """A copy begins."""
        self._copies[pull.attempt] = _Copy(pull, carried=self._link is None)
        if self._link is not None:
            size = (pull.stop - pull.start) * self._bytes_per_token
            self._link.start(pull.attempt, pull.source, pull.target, size, now / self._scale)

    def copied(self, report: Pulled, now: float) -> None:
        """What the target reports of its copy."""
        copy = self._copies.get(report.attempt)
        if copy is None:
            return
        copy.report = report
        if report.result != "ok" and self._link is not None:
            self._link.cancel(report.attempt, now / self._scale)
            copy.carried = True
        self._settle(report.attempt)

    def down(self, index: int, now: float) -> None:
        """An end of copies died: of a target nobody will report, what came of a source does not count."""
        for attempt, copy in list(self._copies.items()):
            if copy.pull.target == index:
                del self._copies[attempt]
            elif copy.pull.source == index:
                copy.carried = True
                if copy.report is not None and copy.report.result == "ok":
                    copy.report = Pulled(copy.pull.request_id, attempt, "unreachable", 0, 0.0, "none")
                    self._settle(attempt)
            else:
                continue
            if self._link is not None:
                self._link.cancel(attempt, now / self._scale)

    def landed(self, now: float) -> list[Pulled]:
        """The copies that are complete or have failed, each once."""
        if self._link is not None:
            for attempt in self._link.landed(now / self._scale):
                copy = self._copies.get(int(str(attempt)))
                if copy is not None:
                    copy.carried = True
                    self._settle(copy.pull.attempt)
        done, self._done = self._done, []
        return done

    def wake_at(self, now: float, call: Callable[[], None]) -> None:
        """Have `call` called when the link has carried its next copy, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._link is not None and self._link.next_s < float("inf"):
            wait_s = max(0.0, self._link.next_s * self._scale - now)
            self._timer = asyncio.get_running_loop().call_later(wait_s, call)

    def _settle(self, attempt: int) -> None:
        copy = self._copies[attempt]
        if copy.report is not None and copy.carried:
            self._done.append(copy.report)
            del self._copies[attempt]


def links_of(emulation: Emulation | None, *, slower: float = 1.0) -> Links:
    """Copies that take the time they take; on an emulated fleet the modelled link's, `slower` times as long."""
    if emulation is None or emulation.link is None:
        return Links()
    # On a clock that runs so many times slower, every copy takes that much longer.
    return Links(
        emulation.link.open(),
        bytes_per_token=emulation.kv_bytes_per_token,
        scale=emulation.time_scale * slower,
    )
