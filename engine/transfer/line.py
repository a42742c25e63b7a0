"""One connection of a puller to one start of a source, and the pulls that are queued on it.

    asked -> copied -> confirmed by the source, with the checksum of its pages -> ok
             anything else, at any point                                       -> one word why not

Owns the connection, its thread, and the source's memory where that can be mapped. It ends with the connection:
everything that is queued fails the same way. A source that dies ends it at once, so that its memory is not kept
mapped.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from engine.transfer.connection import BrokenLinkError, Connection, Wake
from engine.transfer.layout import KvLayout, Peer
from engine.transfer.memory import close_all
from engine.transfer.pages import Offer, Pages, checksum, piece_sizes
from engine.transfer.protocol import (
    CHALLENGE_BYTES,
    Answer,
    Ask,
    Busy,
    Confirm,
    Found,
    Gone,
    Hello,
    Proven,
    Refusal,
    StillHeld,
    Wanted,
    Welcome,
    proof,
    proves,
)

if TYPE_CHECKING:
    from engine.transfer.puller import Faults, PullJob, Reason

_proofs: msgspec.msgpack.Decoder[Proven | Refusal] = msgspec.msgpack.Decoder(Proven | Refusal)
_welcomes: msgspec.msgpack.Decoder[Welcome | Refusal] = msgspec.msgpack.Decoder(Welcome | Refusal)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_log = logging.getLogger(__name__)

ENDING = "the instance ends"


class Queued(NamedTuple):
    """A pull, and when it was asked for."""

    job: PullJob
    asked_s: float


class Note(NamedTuple):
    """For a source of another fleet: whether what it keeps is `still` wanted."""

    kept_as: str
    still: bool


class Side(NamedTuple):
    """What all lines of a Puller share. `done` is told of a pull's end, and why it does not count."""

    pages: Pages
    layout: KvLayout
    secret: str
    done: Callable[[Queued, PullError | None], None]
    timeout_s: float
    faults: Faults | None


class PullError(Exception):
    """A pull, or a whole line, ends with this reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason


class Line:
    """One connection to one start of a peer, and the pulls on it; the first of them is the one under way."""

    def __init__(self, side: Side, peer: Peer, first: Queued | Note) -> None:
        self._side = side
        self._peer = peer
        self._queue = deque([first])
        self._lock = threading.Lock()
        self._wake = Wake()
        self._ending = threading.Event()
        self._link = Connection(_socket(self._peer), side.timeout_s)
        self._reached: Pages | None = None
        self.alive = True
        self._thread = threading.Thread(target=self._run, name="kv-pull", daemon=True)
        self._thread.start()

    def put(self, pull: Queued | Note) -> bool:
        """Queue a pull, or a note behind the pulls; False where the line has ended."""
        with self._lock:
            if self.alive:
                self._queue.append(pull)
                self._wake.set()
            return self.alive

    def end(self) -> None:
        """End it, and wait until it has ended."""
        self._ending.set()
        self._wake.set()
        self._link.cut()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._connect()
            while True:
                self._pull(self._next())
        except PullError as error:
            why = error
        except BrokenLinkError as error:
            why = PullError("timeout" if error.silent else "unreachable", str(error))
        except Exception as error:
            _log.exception("a pull of KV failed")
            why = PullError("failed", type(error).__name__)
        if self._ending.is_set():
            why = PullError("failed", ENDING)
        with self._lock:
            self.alive = False
        if self._reached is not None:
            self._reached.close()
        self._link.close()
        self._wake.close()
        for pull in self._queue:
            if isinstance(pull, Queued):
                self._side.done(pull, why)

    def _connect(self) -> None:
        """The handshake. Raises PullError, whose reason is that of every pull on this line."""
        side, peer, link = self._side, self._peer, self._link
        if peer.transport not in side.pages.transports:
            raise PullError("refused", f"{peer.transport} cannot reach this memory")
        host, _, port = peer.address.rpartition(":")
        link.connect((host, int(port)) if peer.transport == "tcp" else peer.address)
        self._go_on()
        challenges = bytes(link.receive_bytes(CHALLENGE_BYTES)) + secrets.token_bytes(CHALLENGE_BYTES)
        link.send_bytes(challenges[CHALLENGE_BYTES:] + proof(side.secret, "puller", challenges))
        proven = link.receive(_proofs)
        if isinstance(proven, Refusal):
            raise _no(proven)
        if not proves(proven.proof, side.secret, "source", challenges):
            raise PullError("refused", "the source does not know the secret")
        link.send(Hello(side.layout))
        welcome, fds = link.receive_with_fds(_welcomes)
        try:
            if isinstance(welcome, Refusal):
                raise _no(welcome)
            if welcome.nonce != peer.nonce:
                raise PullError("expired", "the source was started anew")
            if peer.transport != "tcp":
                taken, fds = fds, ()
                self._reached = side.pages.reach(Offer(welcome.num_blocks, taken, welcome.handles))
        except ValueError as error:
            raise PullError("refused", str(error)) from None
        finally:
            close_all(fds)

    def _next(self) -> Queued | Note:
        """What to carry out; waits for it. Raises BrokenLinkError where the source ends meanwhile."""
        while True:
            self._wake.clear()
            self._go_on()
            with self._lock:
                if self._queue:
                    return self._queue[0]
            if self._link.wait(self._wake):
                raise BrokenLinkError("the source ended")

    def _pull(self, pull: Queued | Note) -> None:
        """Carry one out and report it, unless the line ends with it."""
        if isinstance(pull, Note):
            self._link.send(Wanted(pull.kept_as, self._peer.nonce, pull.still))
            with self._lock:
                self._queue.popleft()
            return
        why = None
        try:
            self._copy(pull.job)
        except PullError as error:
            why = error
        with self._lock:
            self._queue.popleft()
        self._side.done(pull, why)

    def _copy(self, job: PullJob) -> None:
        """Ask, copy, confirm. Raises PullError where it does not count."""
        side, link = self._side, self._link
        place = (job.blocks, job.start, job.stop)
        link.send(Ask(job.kept_as or job.request_id, self._peer.nonce, job.start, job.stop))
        found = self._answer()
        if not isinstance(found, Found):
            raise _no(found)
        pieces: Iterator[memoryview] = iter(())
        if self._reached is None:
            pieces = (link.receive_bytes(size) for size in piece_sizes(side.layout, job.start, job.stop))
            steps = side.pages.write(*place, pieces)
        else:
            steps = side.pages.copy(self._reached, found.blocks, *place)
        fault = None if side.faults is None else side.faults.draw()
        with closing(steps):
            for moved in self._paced(steps):
                if fault == "fail" and 2 * moved >= (job.stop - job.start) * side.layout.bytes_per_token:
                    for _ in pieces:  # the next answer comes behind them
                        pass
                    raise PullError("failed", "a fault on purpose")
        if fault == "corrupt":
            _change_a_byte(side.pages, job)
        link.send(Confirm(job.kept_as or job.request_id, self._peer.nonce, found.serial, job.start, job.stop))
        crc32 = checksum(side.pages, *place, self._go_on)
        held = self._answer()
        if not isinstance(held, StillHeld):
            raise _no(held)
        if held.crc32 != crc32:
            raise PullError("corrupt", f"CRC-32 {crc32:08x}, the source's is {held.crc32:08x}")

    def _paced(self, steps: Iterator[int]) -> Iterator[int]:
        """Carry a copy out; the bytes moved so far, after each step."""
        faults, began, moved = self._side.faults, time.perf_counter(), 0
        for size in steps:
            moved += size
            self._go_on()
            if faults is not None and faults.bytes_per_s is not None:
                self._ending.wait(max(0.0, began + moved / faults.bytes_per_s - time.perf_counter()))
            yield moved
        if faults is not None:
            # Behind the last byte: between two, the source would go on meanwhile.
            self._ending.wait((faults.slower - 1) * (time.perf_counter() - began))
            self._go_on()

    def _answer(self) -> Answer:
        """The answer to what was asked, however long the source works on it."""
        while isinstance(answer := self._link.receive(_answers), Busy):
            self._go_on()
        return answer

    def _go_on(self) -> None:
        if self._ending.is_set():
            raise BrokenLinkError(ENDING)


def _socket(peer: Peer) -> socket.socket:
    if peer.transport != "tcp":
        return socket.socket(socket.AF_UNIX)
    return socket.socket(socket.AF_INET6 if peer.address.count(":") > 1 else socket.AF_INET)


def _no(answer: Answer) -> PullError | BrokenLinkError:
    """The error that an answer other than the hoped-for one is."""
    if isinstance(answer, Gone):
        return PullError("expired", "the source does not keep it any more")
    if isinstance(answer, Refusal):
        return PullError("refused", f"the source says: {answer.why}")
    return BrokenLinkError(f"{type(answer).__name__} was not asked for")


def _change_a_byte(pages: Pages, job: PullJob) -> None:
    """What a broken link does: the first byte arrives changed."""
    place = (job.blocks, job.start, min(job.stop, job.start + pages.layout.block_size))
    pieces = [memoryview(bytearray(piece)) for piece in pages.read(*place)]
    pieces[0][0] ^= 1
    for _ in pages.write(*place, pieces):
        pass
