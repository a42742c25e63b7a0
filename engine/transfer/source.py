"""The side that holds KV: answers pullers of other instances. What is said is in `engine.transfer.protocol`.

Owns a listening socket, one thread that accepts, and one a connection. What it answers about a request is right
because of the order: it finds the blocks, they are read, and only then it is asked whether they were kept all
the time. No lock is held meanwhile; who frees blocks drops them from `Held` first.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine.errors import InputError, MachineError
from engine.transfer.connection import BrokenLinkError, Connection, Wake, wait_for
from engine.transfer.held import Held, Kept
from engine.transfer.layout import KvLayout, Peer, Transport, mismatch
from engine.transfer.pages import Offer, Pages, checksum
from engine.transfer.protocol import (
    CHALLENGE_BYTES,
    PROOF_BYTES,
    Ask,
    Busy,
    Confirm,
    Found,
    Gone,
    Hello,
    Proven,
    Question,
    Refusal,
    StillHeld,
    Wanted,
    Welcome,
    proof,
    proves,
)

STALL_S = 30.0
"""A puller that takes nothing for so long is given up: as long as KV is kept for it. Ours."""

HANDSHAKE_S = 5.0  # ours
MAX_PULLERS = 256  # ours; one connection an instance that pulls
_BACKLOG = 128
_BUSY_S = 0.5  # far less than any puller waits
_hellos = msgspec.msgpack.Decoder(Hello)
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_log = logging.getLogger(__name__)


class KvServer:
    """Serves what `held` holds of `pages`, from threads of its own, until `close`.

    `nonce` is random per process start, `secret` the launch's. `folder`, mode 0700, gets the Unix socket,
    `host` is for "tcp" to listen on. `clock` is the one that `held` is told times of. `let_go` is called, on
    some thread, with the id of a request whose KV another fleet wants no longer.

    Raises InputError where `transport` cannot move this memory on this system, MachineError where it cannot
    listen.
    """

    def __init__(
        self,
        held: Held,
        pages: Pages,
        layout: KvLayout,
        *,
        nonce: str,
        secret: str,
        folder: Path,
        transport: Transport,
        clock: Callable[[], float],
        host: str = "127.0.0.1",
        let_go: Callable[[str], None] = lambda _: None,
    ) -> None:
        if transport not in pages.transports:
            raise InputError(
                f"KV cannot be moved by {transport} here",
                where="router.transport",
                why=f"this memory, on this system, moves by {' or '.join(pages.transports)}",
                hint=f"transport: {pages.transports[0]}",
            )
        self._held, self._pages, self._secret, self._clock = held, pages, secret, clock
        self._let_go = let_go
        self._path = None if transport == "tcp" else folder / f"kv-{nonce[:16]}.sock"
        try:
            self._listener = _listen(self._path, host)
        except OSError as error:
            raise MachineError(
                "cannot listen for pulls of KV",
                why=error.strerror or str(error),
                hint="kv_host: 127.0.0.1, or an address of this machine",
            ) from None
        self._listener.setblocking(False)
        address = str(self._path or f"{host}:{self._listener.getsockname()[1]}")
        self._peer = Peer(transport=transport, nonce=nonce, address=address, layout=layout)
        self._lock = threading.Lock()
        self._closing = False
        self._pullers: dict[threading.Thread, Connection] = {}
        self._wake = Wake()
        self._accepting = threading.Thread(target=self._accept, name="kv-accept", daemon=True)
        self._accepting.start()

    @property
    def peer(self) -> Peer:
        """Where pullers find it."""
        return self._peer

    def close(self) -> None:
        """Stop answering; no thread, descriptor or file is left when this returns. Idempotent."""
        with self._lock:
            already, self._closing = self._closing, True
            pullers = dict(self._pullers)
        if already:
            return
        self._wake.set()
        self._accepting.join()
        for thread, connection in pullers.items():
            connection.cut()
            thread.join()
        self._listener.close()
        self._wake.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        """Until it is closed: a thread for whoever connects."""
        while wait_for(self._listener, self._wake):
            with contextlib.suppress(OSError):  # whoever it was is gone again
                end, _ = self._listener.accept()
                connection = Connection(end, HANDSHAKE_S)
                thread = threading.Thread(target=self._serve, args=(connection,), name="kv-source", daemon=True)
                with self._lock:
                    if self._closing or len(self._pullers) >= MAX_PULLERS:
                        connection.close()
                        continue
                    self._pullers[thread] = connection
                thread.start()

    def _serve(self, connection: Connection) -> None:
        """One puller, until its end of the connection closes."""
        try:
            if self._greet(connection):
                connection.allow_silence(STALL_S)
                while connection.wait():
                    self._answer(connection, connection.receive(_questions))
        except BrokenLinkError as error:
            _log.debug("a puller left: %s", error)
        except Exception:
            _log.exception("a puller could not be answered")
        finally:
            with self._lock:
                del self._pullers[threading.current_thread()]
            connection.close()

    def _greet(self, connection: Connection) -> bool:
        """The handshake; whether this puller may ask."""
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        connection.send_bytes(challenge)
        answer = bytes(connection.receive_bytes(CHALLENGE_BYTES + PROOF_BYTES))
        challenges = challenge + answer[:CHALLENGE_BYTES]
        if not proves(answer[CHALLENGE_BYTES:], self._secret, "puller", challenges):
            connection.send(Refusal("the secrets differ"))
            return False
        connection.send(Proven(proof(self._secret, "source", challenges)))
        why = mismatch(self._peer.layout, connection.receive(_hellos).layout)
        if why is not None:
            connection.send(Refusal(why))
            return False
        offer = Offer(0) if self._peer.transport == "tcp" else self._pages.offer()
        connection.send(Welcome(self._peer.nonce, offer.num_blocks, offer.handles), offer.fds)
        return True

    def _answer(self, connection: Connection, question: Question) -> None:
        kept = self._kept(question)
        if isinstance(question, Wanted):
            if kept is not None and question.still:
                self._held.renew(question.request_id, self._clock())
            elif kept is not None:
                self._let_go(question.request_id)
            return
        start, stop = question.start, question.stop
        if kept is None:
            connection.send(Gone())
        elif not 0 <= start < stop <= kept.tokens or start % self._peer.layout.block_size:
            connection.send(Refusal(f"positions {start} to {stop} of {kept.tokens} that are kept"))
        elif isinstance(question, Ask):
            over_tcp = self._peer.transport == "tcp"
            used = kept.blocks[: -(-stop // self._peer.layout.block_size)]
            connection.send(Found(kept.serial, () if over_tcp else used))
            if over_tcp:
                for piece in self._pages.read(kept.blocks, start, stop):
                    connection.send_bytes(piece)
        else:
            crc32 = checksum(self._pages, kept.blocks, start, stop, _busy_signs(connection))
            # Looked up again: blocks that were freed while they were read may be right by their checksum alone.
            connection.send(Gone() if self._kept(question) is None else StillHeld(crc32))

    def _kept(self, question: Question) -> Kept | None:
        """What the question is about; None where it is not kept, or not that any more."""
        kept = self._held.look(question.request_id, self._clock())
        if kept is None or question.nonce != self._peer.nonce:
            return None
        return kept if not isinstance(question, Confirm) or question.serial == kept.serial else None


def _listen(path: Path | None, host: str) -> socket.socket:
    """A listening Unix socket at `path` that only this user reaches; without one, TCP on a free port."""
    if path is None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, 0), family=family, backlog=_BACKLOG)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _busy_signs(connection: Connection) -> Callable[[], None]:
    """Called often, sends Busy now and then."""
    last = time.monotonic()

    def sign() -> None:
        nonlocal last
        if time.monotonic() - last >= _BUSY_S:
            connection.send(Busy())
            last = time.monotonic()

    return sign
