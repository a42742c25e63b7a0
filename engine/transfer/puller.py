"""The side that wants KV: copies it from a source into blocks that are reserved here.

Owns a line (`engine.transfer.line`) to each start of a peer; one that has ended is made anew by the next pull.
Decides nothing: what follows a pull that failed is the fleet's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from engine.transfer.layout import KvLayout, Peer, Transport
from engine.transfer.line import ENDING, Line, Note, PullError, Queued, Side
from engine.transfer.pages import Pages

Reason = Literal["ok", "expired", "corrupt", "timeout", "refused", "unreachable", "failed"]


class PullJob(NamedTuple):
    """Copy positions `start` (a multiple of the block size) to `stop` of a request.

    `blocks` are those reserved here for the whole request: position p goes to `blocks[p // block_size]`.
    `kept_as` is the source's name of the request, where it has another.
    """

    request_id: str
    attempt: int
    peer: Peer
    start: int
    stop: int
    blocks: Sequence[int]
    kept_as: str | None = None


class PullResult(NamedTuple):
    """How a pull ended; nothing writes for it any more. `reason` is "ok" or one word why it does not count.

    `bytes` are those of a pull that counts, else 0; `seconds` since it was asked for. `detail` says more for a
    log, such as both values of a layout mismatch.
    """

    request_id: str
    attempt: int
    ok: bool
    reason: Reason
    bytes: int
    seconds: float
    transport: Transport
    detail: str = ""


class Faults(Protocol):
    """Faults on purpose: see `engine.faults.TransferFaults`."""

    @property
    def bytes_per_s(self) -> float | None:
        """A link this slow; None: as fast as it is."""
        ...

    @property
    def slower(self) -> float:
        """How many times as long every copy takes."""
        ...

    def draw(self) -> Literal["fail", "corrupt"] | None:
        """What is to happen to the next pull: fail halfway, or arrive with a byte changed."""
        ...


class Puller:
    """Carries pulls out, those of one peer in order on one thread. `done` is called on it, once a pull.

    A pull ends "timeout" after `timeout_s` without any progress; a link that moves is never too slow.
    """

    def __init__(
        self,
        pages: Pages,
        layout: KvLayout,
        *,
        secret: str,
        done: Callable[[PullResult], None],
        timeout_s: float = 5.0,
        faults: Faults | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._lines: dict[tuple[str, str], Line] = {}
        self._done = done
        self._side = Side(pages, layout, secret, self._ended, timeout_s, faults)

    def pull(self, job: PullJob) -> None:
        """Start a pull; returns at once. After `close` it has failed when this returns."""
        pull = Queued(job, time.perf_counter())
        if not self._put(job.peer, pull):
            self._ended(pull, PullError("failed", ENDING))

    def tell(self, peer: Peer, kept_as: str, *, still: bool) -> None:
        """Tell a source of another fleet whether its KV is still wanted; returns at once, may be lost."""
        self._put(peer, Note(kept_as, still))

    def close(self) -> None:
        """End every pull ("failed") and wait until nothing writes. Idempotent."""
        with self._lock:
            self._closed = True
            lines = list(self._lines.values())
        for line in lines:
            line.end()

    def _put(self, peer: Peer, one: Queued | Note) -> bool:
        """Queue it on the line of its peer; False after `close`."""
        key = (peer.address, peer.nonce)
        with self._lock:
            if not self._closed:
                line = self._lines.get(key)
                if line is None or not line.put(one):
                    self._lines = {name: line for name, line in self._lines.items() if line.alive}
                    self._lines[key] = Line(self._side, peer, one)
            return not self._closed

    def _ended(self, pull: Queued, why: PullError | None) -> None:
        job = pull.job
        self._done(
            PullResult(
                job.request_id,
                job.attempt,
                ok=why is None,
                reason="ok" if why is None else why.reason,
                bytes=(job.stop - job.start) * job.peer.layout.bytes_per_token if why is None else 0,
                seconds=time.perf_counter() - pull.asked_s,
                transport=job.peer.transport,
                detail="" if why is None else str(why),
            )
        )
