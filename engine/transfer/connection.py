"""A stream socket between puller and source: messages, descriptors and bytes, with limits on size and silence.

Every wait but those for the other side to begin ends so many seconds after the last byte that moved: a slow
link is not a broken one, a silent one is.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from engine.transfer.memory import close_all

MAX_FRAME_BYTES = 1 << 20  # ours; the longest is a block list: 131,072 tokens are about 25 KB
MAX_FDS = 64  # ours; one a rank
_LENGTH = struct.Struct(">I")
_CLOSED = "the other side closed the connection"
_encode = msgspec.msgpack.Encoder().encode
Message = TypeVar("Message")
Moved = TypeVar("Moved")


class BrokenLinkError(Exception):
    """The other side is gone, silent (`silent`), or does not speak as it should."""

    def __init__(self, why: str, *, silent: bool = False) -> None:
        super().__init__(why)
        self.silent = silent


class Wake:
    """Ends the wait of another thread, until it clears it."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        for end in (self._ours, self._theirs):
            end.setblocking(False)

    def fileno(self) -> int:
        """For a selector."""
        return self._theirs.fileno()

    def set(self) -> None:
        """End the wait of now, or the next."""
        with contextlib.suppress(OSError):  # full: it is set; closed: nobody waits
            self._ours.send(b"!")

    def clear(self) -> None:
        """Wait again."""
        with contextlib.suppress(BlockingIOError):
            self._theirs.recv(1 << 16)

    def close(self) -> None:
        """Nobody waits any more."""
        self._ours.close()
        self._theirs.close()


def wait_for(end: socket.socket, wake: Wake | None = None) -> bool:
    """Wait until there is something at `end`, or `wake` is set; whether there is."""
    with selectors.DefaultSelector() as selector:
        selector.register(end, selectors.EVENT_READ)
        if wake is not None:
            selector.register(wake, selectors.EVENT_READ)
        return any(key.fileobj is end for key, _ in selector.select())


class Connection:
    """One end of a socket. Used by one thread, but for `cut`. Its calls raise BrokenLinkError."""

    def __init__(self, end: socket.socket, silence_s: float) -> None:
        self._socket = end
        end.settimeout(silence_s)
        if end.family != socket.AF_UNIX:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connect(self, address: str | tuple[str, int]) -> None:
        """Reach a Unix socket's path, or a host and port."""
        _moved(lambda: self._socket.connect(address))

    def allow_silence(self, silence_s: float) -> None:
        """From now on silence of `silence_s` is what ends a wait."""
        self._socket.settimeout(silence_s)

    def send(self, message: msgspec.Struct, fds: tuple[int, ...] = ()) -> None:
        """Write one message, and descriptors with it."""
        body = _encode(message)
        data = _LENGTH.pack(len(body)) + body
        sent = _moved(lambda: socket.send_fds(self._socket, [data], list(fds))) if fds else 0
        self.send_bytes(data[sent:])

    def send_bytes(self, data: bytes | memoryview) -> None:
        """Write all of `data`."""
        left = memoryview(data)
        while left:
            # Not sendall: its timeout is for all of it, however well it moves.
            left = left[_moved(partial(self._socket.send, left)) :]

    def receive(self, decoder: msgspec.msgpack.Decoder[Message]) -> Message:
        """The next message."""
        return self._message(bytes(self.receive_bytes(_LENGTH.size)), decoder)

    def receive_with_fds(self, decoder: msgspec.msgpack.Decoder[Message]) -> tuple[Message, tuple[int, ...]]:
        """The next message and the descriptors sent with it, which are the caller's."""
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        head, fds, _, _ = _moved(lambda: socket.recv_fds(self._socket, _LENGTH.size, MAX_FDS, flags))
        try:
            if not head:
                raise BrokenLinkError(_CLOSED)
            head += bytes(self.receive_bytes(_LENGTH.size - len(head)))
            return self._message(head, decoder), tuple(fds)
        except BaseException:
            close_all(fds)
            raise

    def receive_bytes(self, size: int) -> memoryview:
        """Exactly `size` bytes."""
        data = left = memoryview(bytearray(size))
        while left:
            got = _moved(partial(self._socket.recv_into, left))
            if not got:
                raise BrokenLinkError(_CLOSED)
            left = left[got:]
        return data

    def wait(self, wake: Wake | None = None) -> bool:
        """Wait, however long, for something to read, the end, or `wake`; False where it is `wake` alone."""
        return wait_for(self._socket, wake)

    def cut(self) -> None:
        """From another thread: make every call fail, also one that waits now."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _message(self, head: bytes, decoder: msgspec.msgpack.Decoder[Message]) -> Message:
        (length,) = _LENGTH.unpack(head)
        if length > MAX_FRAME_BYTES:
            raise BrokenLinkError(f"a message of {length} bytes")
        try:
            return decoder.decode(self.receive_bytes(length))
        except msgspec.MsgspecError:
            raise BrokenLinkError("not a message of this protocol") from None


def _moved(call: Callable[[], Moved]) -> Moved:
    """What a call of a socket gives, its failures told apart."""
    try:
        return call()
    except TimeoutError:
        raise BrokenLinkError("the other side is silent", silent=True) from None
    except OSError as error:
        raise BrokenLinkError(error.strerror or str(error)) from None
