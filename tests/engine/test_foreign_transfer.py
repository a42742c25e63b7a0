"""What a puller may say to a source of another fleet: take it under your own name, keep it, let it go."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.emulated_backend import hash_layout
from engine.transfer.held import Held
from engine.transfer.layout import Peer, Transport
from engine.transfer.pages import HostPages
from engine.transfer.puller import Puller, PullJob, PullResult
from engine.transfer.source import KvServer

SECRET = "s" * 32
BLOCKS = (3, 1, 2)
TOKENS = 40
LEASE_S = 30.0


class Sides:
    """A source that keeps one request as `theirs`, and a puller of another launch with the same secret."""

    def __init__(self, folder: Path, transport: Transport) -> None:
        self.now = 0.0
        layout = hash_layout(16)
        self.theirs, self.ours = HostPages.create(layout, 8), HostPages.create(layout, 8)
        self.theirs.array(0)[:] = np.random.default_rng(0).integers(0, 256, self.theirs.array(0).shape)
        self.held = Held(LEASE_S)
        self.held.keep("theirs", BLOCKS, TOKENS, self.now)
        self.let_go: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.ended: queue.SimpleQueue[PullResult] = queue.SimpleQueue()
        self.server = KvServer(
            self.held,
            self.theirs,
            layout,
            nonce="a" * 32,
            secret=SECRET,
            folder=folder,
            transport=transport,
            clock=lambda: self.now,
            let_go=self.let_go.put,
        )
        self.puller = Puller(self.ours, layout, secret=SECRET, done=self.ended.put)

    def pull(self, kept_as: str | None = "theirs") -> PullResult:
        self.puller.pull(PullJob("ours", 1, self.server.peer, 0, TOKENS, (5, 6, 7), kept_as))
        return self.ended.get(timeout=10)

    def close(self) -> None:
        self.puller.close()
        self.server.close()
        self.theirs.close()
        self.ours.close()


@pytest.fixture(params=["shared_memory", "tcp"])
def sides(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Sides]:
    sides = Sides(tmp_path, request.param)
    yield sides
    sides.close()


def test_it_is_pulled_under_the_name_that_its_source_has_for_it(sides: Sides) -> None:
    result = sides.pull()
    assert (result.ok, result.request_id, result.attempt) == (True, "ours", 1)
    got = b"".join(bytes(piece) for piece in sides.ours.read((5, 6, 7), 0, TOKENS))
    assert got == b"".join(bytes(piece) for piece in sides.theirs.read(BLOCKS, 0, TOKENS))
    assert sides.pull(kept_as=None).reason == "expired", "nothing is kept as `ours`"


def test_a_lease_is_renewed_for_who_still_wants_it(sides: Sides) -> None:
    sides.now = 20.0
    sides.puller.tell(sides.server.peer, "theirs", still=True)
    assert sides.pull().ok  # behind it on the same line
    assert sides.held.next_expiry_s == 20.0 + LEASE_S
    assert sides.let_go.empty()


def test_it_is_let_go_by_its_owner_when_told_and_whatever_else_is_said_is_ignored(sides: Sides) -> None:
    peer = sides.server.peer
    other_start = Peer(transport=peer.transport, nonce="b" * 32, address=peer.address, layout=peer.layout)
    sides.puller.tell(other_start, "theirs", still=False)
    sides.puller.tell(peer, "unknown", still=False)
    sides.puller.tell(peer, "theirs", still=False)
    assert sides.let_go.get(timeout=10) == "theirs"
    assert len(sides.held) == 1, "its blocks are the driver's: it drops the entry before it frees them"
    sides.held.drop("theirs")
    sides.puller.tell(peer, "theirs", still=False)
    assert sides.pull().reason == "expired"
    assert sides.let_go.empty()


def test_a_note_to_a_source_that_is_gone_harms_nobody(sides: Sides) -> None:
    peer = sides.server.peer
    sides.server.close()
    sides.puller.tell(peer, "theirs", still=False)
    assert sides.pull().reason == "unreachable"
    sides.puller.close()
    sides.puller.tell(peer, "theirs", still=False)
