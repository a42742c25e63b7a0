"""A source in a process of its own, and what really happens to processes: they die, stop, and are replaced."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import msgspec
import pytest
from helpers.transfer import (
    BLOCKS,
    LAYOUT,
    OURS,
    SECRET,
    SOON_S,
    TOKENS,
    TRANSPORTS,
    SourceProcess,
    content,
    filled,
    source_process,
)

from engine.faults import TransferFaults
from engine.transfer.layout import Peer, Transport
from engine.transfer.pages import HostPages
from engine.transfer.puller import Puller, PullJob, PullResult

either = pytest.mark.parametrize("transport", TRANSPORTS)
SILENCE_S = 0.7


class Ours:
    """The decode side."""

    def __init__(self, faults: TransferFaults) -> None:
        self.pages = filled(seed=2)
        self.faults = faults
        self.results: SimpleQueue[PullResult] = SimpleQueue()
        self.puller = Puller(
            self.pages, LAYOUT, secret=SECRET, done=self.results.put, timeout_s=SILENCE_S, faults=faults
        )

    def start(self, peer: Peer, attempt: int = 1) -> None:
        self.puller.pull(PullJob("r", attempt, peer, 0, TOKENS, OURS))

    def result(self) -> PullResult:
        return self.results.get(timeout=SOON_S)

    def pull(self, peer: Peer) -> PullResult:
        self.start(peer)
        return self.result()

    def mapped(self) -> int:
        """How often memory of KV is mapped in this process: its own, and that of sources."""
        return Path("/proc/self/maps").read_text().count("memfd:advise-kv")


@contextmanager
def ours(bytes_per_s: float = 1e12) -> Iterator[Ours]:
    side = Ours(TransferFaults(bytes_per_s=bytes_per_s))
    try:
        yield side
    finally:
        side.puller.close()
        assert side.results.empty(), "a pull ended twice"
        side.pages.close()


def begun(pages: HostPages) -> bool:
    """Whether some of the KV has been written."""
    theirs = filled(seed=1)
    same = bool((pages.array(0)[0, 0, OURS[0]] == theirs.array(0)[0, 0, BLOCKS[0]]).all())
    theirs.close()
    return same


def wait_until_begun(side: Ours) -> None:
    end = time.monotonic() + SOON_S
    while not begun(side.pages):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert side.results.empty()


@either
def test_kv_of_another_process_arrives_bit_by_bit(transport: Transport, tmp_path: Path) -> None:
    with source_process(transport, tmp_path) as source, ours() as side:
        assert side.pull(source.peer).ok
        assert content(side.pages, OURS, 0, TOKENS) == content(filled(seed=1), BLOCKS, 0, TOKENS)


@either
def test_a_source_that_is_killed_in_the_middle_of_a_pull_ends_it_and_all_behind_it(
    transport: Transport, tmp_path: Path
) -> None:
    with source_process(transport, tmp_path) as source, ours(bytes_per_s=5e5) as side:
        for attempt in (1, 2, 3):
            side.start(source.peer, attempt)
        wait_until_begun(side)
        source.signal(signal.SIGKILL)
        results = [side.result() for _ in range(3)]
        assert [(one.attempt, one.reason) for one in results] == [(n, "unreachable") for n in (1, 2, 3)]
        assert side.pull(source.peer).reason == "unreachable"


def test_the_memory_of_a_source_that_died_is_let_go_without_another_pull(tmp_path: Path) -> None:
    """It is as large as that of its replacement, which needs the room."""
    with source_process("shared_memory", tmp_path) as source, ours() as side:
        own = side.mapped()
        assert side.pull(source.peer).ok
        assert side.mapped() == own + LAYOUT.ranks
        source.signal(signal.SIGKILL)
        end = time.monotonic() + SOON_S
        while side.mapped() > own:
            assert time.monotonic() < end
            time.sleep(0.01)


@either
def test_a_stopped_source_holds_nobody_longer_than_its_silence_may_be(
    transport: Transport, tmp_path: Path
) -> None:
    with source_process(transport, tmp_path) as source, ours() as side:
        assert side.pull(source.peer).ok
        source.signal(signal.SIGSTOP)
        began = time.monotonic()
        for attempt in (1, 2, 3):
            side.start(source.peer, attempt)
        assert [side.result().reason for _ in range(3)] == ["timeout"] * 3
        # The kernel takes connections of a stopped process.
        assert side.pull(source.peer).reason == "timeout"
        assert time.monotonic() - began < 2 * SILENCE_S + SOON_S / 4
        source.signal(signal.SIGCONT)
        assert side.pull(source.peer).ok


@either
def test_a_source_that_is_stopped_for_less_than_that_is_not_given_up(
    transport: Transport, tmp_path: Path
) -> None:
    with source_process(transport, tmp_path) as source, ours() as side:
        assert side.pull(source.peer).ok
        source.signal(signal.SIGSTOP)
        side.start(source.peer)
        time.sleep(SILENCE_S / 3)
        assert side.results.empty()
        source.signal(signal.SIGCONT)
        assert side.result().ok


def replaced(source: SourceProcess, old: Peer, transport: Transport) -> Peer:
    """The old peer, at whose address another process listens now."""
    if transport != "tcp":
        Path(old.address).unlink(missing_ok=True)
        Path(source.peer.address).rename(old.address)
        return old
    return msgspec.structs.replace(old, address=source.peer.address)


@either
def test_another_process_at_the_same_address_does_not_pass_for_the_one_that_kept_the_kv(
    transport: Transport, tmp_path: Path
) -> None:
    """sglang#34289: its KV of the same id is somebody else's, though it would arrive without a fault."""
    with ours() as side:
        with source_process(transport, tmp_path, nonce="a" * 32) as source:
            old = source.peer
            assert side.pull(old).ok
            source.signal(signal.SIGKILL)
        with source_process(transport, tmp_path, nonce="b" * 32) as source:
            fresh = source.peer
            peer = replaced(source, old, transport)
            assert side.pull(peer).reason == "expired"
            if transport == "tcp":
                assert side.pull(fresh).ok


@either
def test_what_a_killed_source_leaves_in_the_folder_keeps_no_successor_out(
    transport: Transport, tmp_path: Path
) -> None:
    with ours() as side:
        for nonce in ("c" * 32, "d" * 32):
            with source_process(transport, tmp_path, nonce) as source:
                assert side.pull(source.peer).ok
                source.signal(signal.SIGKILL)
