"""A puller on a virtual clock: as that of `engine.transfer`, with every message and every slice an event.

A copy asks the source where the KV is, copies some positions at a time, out of the source's memory or by asking
for bytes, and asks again whether all was kept meanwhile and what its checksum is. Its end is reported once, and
nothing writes for it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from engine.transfer.layout import Peer
from engine.transfer.puller import PullJob, PullResult, Reason

if TYPE_CHECKING:
    from helpers.fleet_process import Place, Process

PULL_TIMEOUT_S = 5.0
GARBAGE = -1
Values = list[int | None]


class Found(NamedTuple):
    """Answer to `look`: which keeping of the KV, and its blocks."""

    serial: int
    blocks: tuple[int, ...]


class Intact(NamedTuple):
    """Answer to `confirm`: which keeping is held now, and the checksum of its pages."""

    serial: int
    checksum: int


Reply = Found | Intact | Values | None
Heard = Callable[[Reply], None]


@dataclass
class Copy:
    """A pull in progress. `questions` counts what was asked, and answered: an answer counts once."""

    job: PullJob
    at: int
    fate: str
    found: Found | None = None
    questions: int = 0
    moved: Values = field(default_factory=list)
    over: bool = False


class VirtualPuller:
    """The copies of one process. Implements the driver's `Pulls`."""

    def __init__(self, process: Process) -> None:
        self.copies: dict[str, Copy] = {}
        self._process = process
        self._setting = process.setting
        self._size = process.place.shape.pool.block_size

    def pull(self, job: PullJob) -> None:
        """Start a copy; a share of them is to fail or to be corrupted."""
        setting = self._setting
        spoiled = setting.random.random() < setting.shape.spoiled
        fate = setting.random.choice(["fail", "corrupt"]) if spoiled else ""
        copy = self.copies[job.request_id] = Copy(job, job.start, fate)
        self._ask(copy, "look", job.start, job.stop, partial(self._looked, copy))

    def tell(self, peer: Peer, kept_as: str, *, still: bool) -> None:
        """No other fleet takes part."""
        raise NotImplementedError

    def _source(self, copy: Copy) -> Place:
        return self._setting.places[int(copy.job.peer.address)]

    def _ask(self, copy: Copy, question: str, start: int, stop: int, then: Heard) -> None:
        """Ask whoever is at the source's place; `then` gets the first answer, if one comes in time."""
        copy.questions += 1
        number, me, job, source = copy.questions, self._process, copy.job, self._source(copy)
        plane, void = self._setting.plane, self._setting.clock.void

        def heard(reply: Reply) -> None:
            if copy.questions != number or copy.over:
                return void()
            copy.questions += 1
            return then(reply)

        def answer() -> None:
            reply = source.now.answer(question, job.peer.nonce, job.request_id, start, stop)
            plane.carry(f"answer to {question}", partial(me.run, "answer", lambda: heard(reply)))

        def asked() -> None:
            if source.now.alive:
                source.now.run(question, answer)
            else:
                plane.carry("nobody answers", partial(me.run, "nobody answers", lambda: heard(None)))

        def late() -> None:
            if copy.questions != number or copy.over:
                return void()
            return self._end(copy, "timeout")

        plane.carry(f"{question} {job.request_id}", asked)
        me.later(PULL_TIMEOUT_S, "timeout", late)

    def _looked(self, copy: Copy, reply: Reply) -> None:
        if not isinstance(reply, Found) or self._source(copy).memory.nonce != copy.job.peer.nonce:
            return self._end(copy, "expired")
        copy.found = reply
        return self._go_on(copy)

    def _go_on(self, copy: Copy) -> None:
        """Copy some more positions; behind the last one, ask again."""
        job = copy.job
        if copy.over:
            return self._setting.clock.void()
        if copy.at == job.stop:
            self._blank(copy)
            return self._ask(copy, "confirm", job.start, job.stop, partial(self._confirmed, copy))
        assert copy.found is not None
        stop = min(job.stop, copy.at + self._setting.random.randrange(1, 13))
        if self._process.place.shape.by_bytes:
            return self._ask(copy, "bytes", copy.at, stop, partial(self._received, copy))
        return self._received(copy, self._source(copy).memory.read(copy.found.blocks, copy.at, stop))

    def _received(self, copy: Copy, values: Reply) -> None:
        if not isinstance(values, list):
            return self._end(copy, "expired")
        self._write(copy, values)
        self._setting.counts["part of a copy"] += 1
        if copy.fate == "fail" and self._setting.random.random() < 0.5:
            return self._end(copy, "failed")
        delay = self._setting.random.expovariate(1 / self._process.place.shape.step_s)
        return self._process.later(delay, "copy", partial(self._go_on, copy))

    def _confirmed(self, copy: Copy, reply: Reply) -> None:
        assert copy.found is not None
        if not isinstance(reply, Intact) or reply.serial != copy.found.serial:
            return self._end(copy, "expired")
        if copy.fate == "fail":
            return self._end(copy, "failed")
        return self._end(copy, "ok" if reply.checksum == checksum(copy.moved) else "corrupt")

    def _end(self, copy: Copy, reason: Reason) -> None:
        """Nothing writes any more: say so, once."""
        job = copy.job
        copy.over = True
        del self.copies[job.request_id]
        self._setting.counts[f"copy {reason}"] += 1
        ok, moved = reason == "ok", copy.at - job.start
        transport = job.peer.transport
        self._process.driver.pulled(PullResult(job.request_id, job.attempt, ok, reason, moved, 0.0, transport))

    def _write(self, copy: Copy, values: Values) -> None:
        """The next positions are there; of a copy that is to be corrupted one is not what was sent."""
        if copy.fate == "corrupt":
            values, copy.fate = [GARBAGE, *values[1:]], ""
        self._process.place.memory.write(copy.job.blocks, copy.at, values)
        copy.moved += values
        copy.at += len(values)

    def _blank(self, copy: Copy) -> None:
        """What is left of the last block says nothing."""
        self._process.place.memory.write(copy.job.blocks, copy.at, [None] * (-copy.at % self._size))


def checksum(values: Values) -> int:
    """Stands for the CRC of pages."""
    return hash(tuple(values))
