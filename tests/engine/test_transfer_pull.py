"""Source and puller over real sockets and real memory: what arrives, what does not count, and what is left."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

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
    Sides,
    content,
    filled,
    keep_all,
)

from engine.errors import InputError
from engine.faults import TransferFaults
from engine.transfer import source
from engine.transfer.connection import MAX_FRAME_BYTES
from engine.transfer.held import Held
from engine.transfer.layout import KvLayout, Peer, Transport
from engine.transfer.pages import HostPages, Offer
from engine.transfer.protocol import Ask, Hello, Proven, proof
from engine.transfer.puller import Puller, PullJob, PullResult

either = pytest.mark.parametrize("transport", TRANSPORTS)


@dataclass
class Watched:
    """Pages that call `between` before each piece that is read, for the `n`th reading."""

    inner: HostPages
    between: Callable[[int], None]
    readings: int = 0

    @property
    def layout(self) -> KvLayout:
        return self.inner.layout

    @property
    def transports(self) -> tuple[Transport, ...]:
        return self.inner.transports

    def read(self, blocks: Sequence[int], start: int, stop: int) -> Iterator[memoryview]:
        self.readings += 1
        for piece in self.inner.read(blocks, start, stop):
            self.between(self.readings)
            yield piece

    def offer(self) -> Offer:
        return self.inner.offer()


def watched(between: Callable[[int], None]) -> HostPages:
    return Watched(filled(), between)  # type: ignore[return-value]  # what a source needs of Pages


def behind(seconds: float, copy: Callable[..., Iterator[int]]) -> Callable[..., Iterator[int]]:
    """A copy that takes so much longer."""

    def slowed(*place: Any) -> Iterator[int]:
        time.sleep(seconds)
        yield from copy(*place)

    return slowed


@either
@pytest.mark.parametrize(("start", "stop"), [(0, TOKENS), (0, 1), (400, TOKENS), (996, 1000), (1000, 1001)])
def test_what_was_kept_arrives_bit_by_bit_and_no_more_than_was_asked_for(
    tmp_path: Path, transport: Transport, start: int, stop: int
) -> None:
    with Sides(tmp_path, transport) as sides:
        before = content(sides.ours, OURS, 0, start)
        result = sides.pull(start=start, stop=stop)
        assert (result.ok, result.reason, result.transport) == (True, "ok", transport)
        # 3 layers, keys and values, 2 ranks of 2 heads of 8 float32 a position.
        assert result.bytes == (stop - start) * 3 * 2 * 2 * 2 * 8 * 4
        assert sides.same(start, stop)
        assert content(sides.ours, OURS, 0, start) == before, "what is cached here must not change"
        rest = content(sides.ours, OURS, stop, -(-stop // 4) * 4)
        assert not any(rest)


@either
def test_pulls_of_several_requests_end_in_order_each_once(tmp_path: Path, transport: Transport) -> None:
    with Sides(tmp_path, transport) as sides:
        for number in range(1, 20):
            sides.start("r" if number % 3 else "nobody's", attempt=number)
        results = [sides.results.get(timeout=20) for _ in range(1, 20)]
        assert [one.attempt for one in results] == list(range(1, 20))
        assert [one.reason for one in results] == ["ok" if n % 3 else "expired" for n in range(1, 20)]
        assert sides.same()


@either
def test_a_slow_puller_holds_no_other_up_and_ends_when_it_is_told(tmp_path: Path, transport: Transport) -> None:
    with Sides(tmp_path, transport, faults=TransferFaults(bytes_per_s=1e4)) as sides:
        sides.start()
        results: SimpleQueue[PullResult] = SimpleQueue()
        other = Puller(filled(seed=9), LAYOUT, secret=SECRET, done=results.put)
        other.pull(PullJob("r", 1, sides.peer, 0, TOKENS, OURS))
        assert results.get(timeout=SOON_S).ok
        other.close()
        assert sides.results.empty()
        sides.puller.close()
        assert sides.results.get(timeout=SOON_S).reason == "failed"
        assert sides.pull().reason == "failed", "it is closed"


@either
def test_a_link_that_moves_is_never_too_slow(tmp_path: Path, transport: Transport) -> None:
    """Bytes, and the checksum of the source's pages, take far longer than any silence may."""
    slow = watched(lambda _: time.sleep(0.1))  # 12 pieces, read twice
    with Sides(tmp_path, transport, theirs=slow, timeout_s=0.8) as sides:
        result = sides.pull()
        assert result.ok
        assert result.seconds > 1.2
    with Sides(tmp_path, transport, faults=TransferFaults(bytes_per_s=6e5), timeout_s=0.3) as sides:
        result = sides.pull()
        assert result.ok
        assert result.seconds > 0.6


@either
def test_a_link_that_is_slower_takes_so_many_times_as_long(tmp_path: Path, transport: Transport) -> None:
    """Writing here takes 0.2 s of its own, so four times that is 0.8 s, and no checksum is any slower."""
    with Sides(tmp_path, transport, faults=TransferFaults(slower=4.0)) as sides:
        for name in ("write", "copy"):
            setattr(sides.ours, name, behind(0.2, getattr(sides.ours, name)))
        result = sides.pull()
        assert result.ok
        assert result.seconds >= 0.8
        assert sides.same()


@either
@pytest.mark.parametrize("when", ["before", "while it is copied", "while it is summed"])
def test_kv_that_is_let_go_at_any_moment_is_not_believed(
    tmp_path: Path, transport: Transport, when: str
) -> None:
    """vllm#52232, aws-do-eks#84: a read that lands after the lease. The blocks have another owner by then."""
    held = keep_all()

    def let_go(reading: int) -> None:
        # Over shared memory the source itself reads only for the checksum.
        summing = reading == (2 if transport == "tcp" else 1)
        if summing == (when == "while it is summed"):
            held.drop("r")

    with Sides(tmp_path, transport, theirs=watched(let_go), held=held) as sides:
        if when == "before" or (when == "while it is copied" and transport == "shared_memory"):
            held.drop("r")
        result = sides.pull()
        assert (result.ok, result.reason, result.bytes) == (False, "expired", 0)


@either
def test_kv_that_is_kept_anew_under_the_same_id_is_not_what_was_found(
    tmp_path: Path, transport: Transport
) -> None:
    """Its request came back to the source while the old blocks were read: same id, same bytes even."""
    with Sides(tmp_path, transport, faults=TransferFaults(bytes_per_s=1e5)) as sides:
        sides.start()
        time.sleep(0.3)
        sides.held.keep("r", BLOCKS, TOKENS, time.monotonic())
        sides.puller._side.faults.bytes_per_s = 1e12  # type: ignore[union-attr,misc]
        assert sides.results.get(timeout=SOON_S).reason == "expired"


@either
def test_the_sources_own_clock_ends_a_lease(tmp_path: Path, transport: Transport) -> None:
    now = [0.0]
    held = Held(30.0)
    held.keep("r", BLOCKS, TOKENS, now[0])
    with Sides(tmp_path, transport, held=held, clock=lambda: now[0]) as sides:
        now[0] = 29.9
        assert sides.pull().ok
        now[0] = 30.0
        assert sides.pull().reason == "expired"


@either
def test_pages_that_changed_while_they_were_kept_are_noticed(tmp_path: Path, transport: Transport) -> None:
    with Sides(tmp_path, transport) as sides:
        pages = sides.theirs
        assert isinstance(pages, HostPages)
        # The last byte of the last position, between the copy and the question: by a fault of ours here.
        sides.ours.write = flip_after(sides.ours.write, pages)  # type: ignore[method-assign]
        assert sides.pull().reason == "corrupt"


def flip_after(write: Callable[..., Iterator[int]], pages: HostPages) -> Callable[..., Iterator[int]]:
    def flipping(*place: Any) -> Iterator[int]:
        yield from write(*place)
        pages.array(1)[2, 1, BLOCKS[-1], 0, -1] ^= 0x80

    return flipping


@either
@pytest.mark.parametrize(("fault", "reason"), [("fail", "failed"), ("corrupt", "corrupt")])
def test_every_faulty_pull_is_noticed_and_the_next_is_right(
    tmp_path: Path, transport: Transport, fault: str, reason: str
) -> None:
    faults = TransferFaults(**{fault: 0.5}, seed=3)  # type: ignore[arg-type]
    with Sides(tmp_path, transport, faults=faults) as sides:
        wrong = 0
        for number in range(40):
            start = 4 * (number % 9)
            stop = start + 1 + 7 * number
            for rank in range(LAYOUT.ranks):
                sides.ours.array(rank)[:] = 0xFF
            result = sides.pull(start=start, stop=stop)
            assert sides.same(start, stop) == result.ok
            if not result.ok:
                assert result.reason == reason
                wrong += 1
        assert wrong == faults.counts[fault]  # type: ignore[index]
        assert 10 <= wrong <= 30


@either
def test_another_secret_is_refused_on_both_sides(tmp_path: Path, transport: Transport) -> None:
    with Sides(tmp_path, transport, secret=SECRET[1:]) as sides:
        result = sides.pull()
        assert (result.reason, result.bytes) == ("refused", 0)
        assert "secret" in result.detail


def test_a_source_that_only_pretends_to_know_the_secret_gets_nothing_of_it(tmp_path: Path) -> None:
    """Whoever took a dead source's port."""
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            with listener.accept()[0] as end:
                end.sendall(bytes(32))
                heard.extend(end.recv(1 << 16))
                answer = msgspec.msgpack.encode(Proven(bytes(32)))
                end.sendall(len(answer).to_bytes(4, "big") + answer)
                end.recv(1)

        thread = threading.Thread(target=pretend)
        thread.start()
        with Sides(tmp_path, "tcp") as sides:
            sides.peer = msgspec.structs.replace(sides.peer, address=f"127.0.0.1:{listener.getsockname()[1]}")
            result = sides.pull()
            assert (result.reason, "secret" in result.detail) == ("refused", True)
        thread.join()
    assert len(heard) == 64


@either
@pytest.mark.parametrize(
    ("field", "value"), [("dtype", "bfloat16"), ("block_size", 8), ("ranks", 1), ("model", "x")]
)
def test_another_layout_is_refused_with_both_values(
    tmp_path: Path, transport: Transport, field: str, value: object
) -> None:
    other = msgspec.structs.replace(LAYOUT, **{field: value})
    with Sides(tmp_path, transport, layout=other) as sides:
        result = sides.pull(stop=8)
        assert result.reason == "refused"
        assert all(str(part) in result.detail for part in (field, value, getattr(LAYOUT, field)))


@either
@pytest.mark.parametrize(("start", "stop"), [(0, TOKENS + 1), (0, 0), (8, 4), (2, 8)])
def test_positions_that_are_not_kept_are_refused_and_the_next_pull_works(
    tmp_path: Path, transport: Transport, start: int, stop: int
) -> None:
    with Sides(tmp_path, transport) as sides:
        assert sides.pull(start=start, stop=stop).reason == "refused"
        assert sides.pull().ok


@either
def test_a_replaced_source_is_known_by_its_nonce(tmp_path: Path, transport: Transport) -> None:
    """sglang#34289: another process behind the same address, with KV under the same id."""
    with Sides(tmp_path, transport) as sides:
        sides.peer = msgspec.structs.replace(sides.peer, nonce="0" * 32)
        assert sides.pull().reason == "expired"


@either
def test_a_source_that_is_closed_cannot_be_reached_and_its_pullers_let_go_of_it(
    tmp_path: Path, transport: Transport
) -> None:
    with Sides(tmp_path, transport) as sides:
        assert sides.pull().ok
        sides.source.close()
        eventually(lambda: not any(line.alive for line in sides.puller._lines.values()))
        assert sides.pull().reason == "unreachable"


@either
def test_nothing_is_left_when_both_sides_are_closed(tmp_path: Path, transport: Transport) -> None:
    before, threads = open_fds(), threading.active_count()
    folder = tmp_path / "sockets"
    folder.mkdir()
    sides = Sides(folder, transport)
    assert sides.pull().ok
    sides.pull("nobody's")
    assert list(folder.iterdir()) == ([Path(sides.peer.address)] if transport != "tcp" else [])
    sides.close()
    sides.close()
    sides.ours.close()
    assert isinstance(sides.theirs, HostPages)
    sides.theirs.close()
    assert (open_fds(), threading.active_count(), list(folder.iterdir())) == (before, threads, [])


def test_only_this_user_reaches_the_socket(tmp_path: Path) -> None:
    with Sides(tmp_path, "shared_memory") as sides:
        assert Path(sides.peer.address).stat().st_mode & 0o777 == 0o600


def test_tcp_listens_on_loopback_unless_told_otherwise(tmp_path: Path) -> None:
    with Sides(tmp_path, "tcp") as sides:
        assert sides.peer.address.startswith("127.0.0.1:")


def test_memory_that_cannot_be_mapped_refuses_shared_memory_and_moves_by_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transfer.memory.new_fd", lambda: None)  # as on macOS
    pages = filled()
    with pytest.raises(InputError, match="shared_memory") as caught:
        Sides(tmp_path, "shared_memory", theirs=pages)
    assert "tcp" in str(caught.value.hint)
    with Sides(tmp_path, "tcp", theirs=pages) as sides:
        assert sides.pull().ok
        assert sides.same()


@pytest.mark.parametrize("transport", ["shared_memory", "cuda_ipc"])
def test_a_puller_never_takes_another_way_than_the_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: Transport
) -> None:
    """vllm#55906: a silent fallback to a slow one."""
    with Sides(tmp_path, "tcp") as sides:
        sides.peer = msgspec.structs.replace(sides.peer, transport=transport)
        if transport == "shared_memory":
            monkeypatch.setattr(HostPages, "transports", ("tcp",))
        result = sides.pull()
        assert (result.reason, result.transport) == ("refused", transport)
        assert transport in result.detail


class Stranger:
    """Someone who connects and says what he likes."""

    def __init__(self, peer: Peer) -> None:
        host, _, port = peer.address.rpartition(":")
        self.end = socket.create_connection((host, int(port)), timeout=SOON_S)
        self.challenge = self.read(32)

    def read(self, size: int) -> bytes:
        got = b""
        while len(got) < size and (more := self.end.recv(size - len(got))):
            got += more
        return got

    def prove(self) -> None:
        mine = bytes(range(32))
        self.end.sendall(mine + proof(SECRET, "puller", self.challenge + mine))

    def hear(self) -> bytes:
        return self.read(int.from_bytes(self.read(4), "big"))

    def say(self, data: bytes) -> None:
        self.end.sendall(len(data).to_bytes(4, "big") + data)

    def is_sent_away(self) -> bool:
        """Whether the connection ends, at most with a refusal."""
        heard = b""
        with self.end, contextlib.suppress(ConnectionResetError):
            heard = self.read(1 << 16)
        return not heard or b"Refusal" in heard


def test_whoever_does_not_know_the_secret_is_sent_away_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "HANDSHAKE_S", 0.3)
    with Sides(tmp_path, "tcp") as sides:
        for said in (b"GET / HTTP/1.1\r\n" + bytes(100), bytes(64), b"", bytes(63), bytes(1 << 20)):
            stranger = Stranger(sides.peer)
            with contextlib.suppress(OSError):
                stranger.end.sendall(said)
            assert stranger.is_sent_away()
        # What was said to one is worth nothing to another.
        first, second = Stranger(sides.peer), Stranger(sides.peer)
        mine = bytes(32)
        second.end.sendall(mine + proof(SECRET, "puller", first.challenge + mine))
        assert second.is_sent_away()
        first.end.sendall(mine + proof(SECRET, "source", first.challenge + mine))
        assert first.is_sent_away()
        assert sides.pull().ok


def test_frames_that_are_too_long_or_no_messages_end_the_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "HANDSHAKE_S", 2 * SOON_S)  # it is not silence that ends them
    hello = msgspec.msgpack.encode(Hello(LAYOUT))
    ask = msgspec.msgpack.encode(Ask("r", "1" * 32, 0, 4))
    with Sides(tmp_path, "tcp") as sides:
        for bad in (b"\xff" * 100, b"", ask[:-1], msgspec.msgpack.encode(["Ask"] * 1000), hello):
            stranger = Stranger(sides.peer)
            stranger.prove()
            stranger.hear()
            stranger.say(hello)
            stranger.hear()
            stranger.say(bad)
            assert stranger.is_sent_away()
        long = Stranger(sides.peer)
        long.prove()
        long.hear()
        long.end.sendall((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
        assert long.is_sent_away()
        assert sides.pull().ok


def test_an_unknown_id_of_any_form_is_no_harm(tmp_path: Path) -> None:
    with Sides(tmp_path, "tcp") as sides:
        for name in ("", "x" * 1000, "../../etc", "\x00"):
            assert sides.pull(name).reason == "expired"


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def open_fds() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))
