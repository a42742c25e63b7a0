"""KV for transfers: pools of random bytes, what positions hold, and a source in a process of its own.

`python -m helpers.transfer TRANSPORT FOLDER NONCE` is that process: it keeps `BLOCKS` of `filled(LAYOUT, 1)` as
request "r", prints where, and ends with its stdin.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from random import Random
from types import TracebackType

import msgspec
import numpy as np

from engine.transfer.held import Held
from engine.transfer.layout import KvLayout, Peer, Transport
from engine.transfer.pages import HostPages, Pages
from engine.transfer.puller import Faults, Puller, PullJob, PullResult
from engine.transfer.source import KvServer

SECRET = "of this launch"  # noqa: S105
NUM_BLOCKS = 400
LAYOUT = KvLayout(model="digest", dtype="float32", block_size=4, layers=3, kv_heads=2, head_dim=8, ranks=2)
TOKENS = 1001  # the last block holds one
BLOCKS = tuple(Random(0).sample(range(1, NUM_BLOCKS), 251))
OURS = tuple(Random(1).sample(range(1, NUM_BLOCKS), 251))
SOON_S = 20.0
TRANSPORTS: tuple[Transport, ...] = ("shared_memory", "tcp")


def filled(layout: KvLayout = LAYOUT, seed: int = 1, num_blocks: int = NUM_BLOCKS) -> HostPages:
    """A pool of random bytes."""
    pages = HostPages.create(layout, num_blocks)
    random = np.random.default_rng(seed)
    for rank in range(layout.ranks):
        array = pages.array(rank)
        array[:] = random.integers(0, 256, array.shape, dtype=np.uint8)
    return pages


def content(pages: HostPages, blocks: Sequence[int], start: int, stop: int) -> bytes:
    """The bytes of positions, gathered one at a time: ranks, then layers, keys before values, positions."""
    layout = pages.layout
    return b"".join(
        pages.array(rank)[layer, kv, blocks[p // layout.block_size], p % layout.block_size].tobytes()
        for rank in range(layout.ranks)
        for layer in range(layout.layers)
        for kv in (0, 1)
        for p in range(start, stop)
    )


def keep_all(duration_s: float = 1e9) -> Held:
    """Request "r" is kept in BLOCKS."""
    held = Held(duration_s)
    held.keep("r", BLOCKS, TOKENS, time.monotonic())
    return held


class Sides:
    """A source and a puller in this process. `pull` waits for the result."""

    def __init__(
        self,
        folder: Path,
        transport: Transport,
        *,
        theirs: Pages | None = None,
        ours: HostPages | None = None,
        held: Held | None = None,
        secret: str = SECRET,
        layout: KvLayout | None = None,
        timeout_s: float = 5.0,
        faults: Faults | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.theirs = theirs or filled()
        self.ours = ours or filled(layout or LAYOUT, seed=2)
        self.held = held or keep_all()
        self.source = KvServer(
            self.held,
            self.theirs,
            self.theirs.layout,
            nonce="1" * 32,
            secret=SECRET,
            folder=folder,
            transport=transport,
            clock=clock,
        )
        self.results: SimpleQueue[PullResult] = SimpleQueue()
        self.puller = Puller(
            self.ours,
            self.ours.layout,
            secret=secret,
            done=self.results.put,
            timeout_s=timeout_s,
            faults=faults,
        )
        self.peer = self.source.peer

    def start(self, name: str = "r", start: int = 0, stop: int = TOKENS, attempt: int = 1) -> None:
        self.puller.pull(PullJob(name, attempt, self.peer, start, stop, OURS))

    def pull(self, name: str = "r", start: int = 0, stop: int = TOKENS, attempt: int = 1) -> PullResult:
        self.start(name, start, stop, attempt)
        result = self.results.get(timeout=SOON_S)
        assert (result.request_id, result.attempt) == (name, attempt)
        return result

    def same(self, start: int = 0, stop: int = TOKENS) -> bool:
        """Whether what the source keeps is here, bit by bit."""
        assert isinstance(self.theirs, HostPages)
        return content(self.ours, OURS, start, stop) == content(self.theirs, BLOCKS, start, stop)

    def close(self) -> None:
        self.puller.close()
        self.source.close()
        assert self.results.empty(), "a pull ended twice"

    def __enter__(self) -> Sides:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SourceProcess:
    """A source that real signals can be sent to."""

    def __init__(self, process: subprocess.Popen[bytes], peer: Peer) -> None:
        self._process, self.peer = process, peer

    def signal(self, number: signal.Signals) -> None:
        """Send it, and for SIGKILL and SIGSTOP wait until it has worked."""
        self._process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)
        if number is signal.SIGKILL:
            self._process.wait()


@contextmanager
def source_process(transport: Transport, folder: Path, nonce: str = "2" * 32) -> Iterator[SourceProcess]:
    """`python -m helpers.transfer`, killed at the end."""
    argv = [sys.executable, "-m", "helpers.transfer", transport, str(folder), nonce]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        try:
            assert process.stdout is not None
            yield SourceProcess(process, msgspec.json.decode(process.stdout.readline(), type=Peer))
        finally:
            process.kill()


def main() -> None:
    transport, folder, nonce = sys.argv[1:]
    pages = filled()
    server = KvServer(
        keep_all(),
        pages,
        LAYOUT,
        nonce=nonce,
        secret=SECRET,
        folder=Path(folder),
        transport=msgspec.convert(transport, Transport),
        clock=time.monotonic,
    )
    sys.stdout.buffer.write(msgspec.json.encode(server.peer) + b"\n")
    sys.stdout.buffer.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
