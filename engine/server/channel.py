"""Framed messages over a stream socket: four bytes of length, then MessagePack. No pickle.

Owns the framing and its limit at both ends: an instance's is blocking and written by several threads, the
router's lives in its event loop. The end of the stream is the death of the other side.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading

import msgspec

from engine.server.messages import Order, Report, Start

MAX_FRAME_BYTES = 64 << 20  # ours; the longest prompt is far below
_LENGTH = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode
_to_instance: msgspec.msgpack.Decoder[Start | Order] = msgspec.msgpack.Decoder(Start | Order)
_to_router: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def frame(message: Start | Order | Report) -> bytes:
    """The bytes of one message."""
    body = _encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(body)} bytes")
    return _LENGTH.pack(len(body)) + body


class InstanceChannel:
    """The instance's end. `send` from any thread, `receive` from one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._file = end.makefile("rb", buffering=1 << 16)
        self._lock = threading.Lock()

    def send(self, report: Report) -> None:
        """Write one message. Raises OSError where the router is gone."""
        data = frame(report)
        with self._lock:
            self._socket.sendall(data)

    def receive(self) -> Start | Order | None:
        """The next message; None once the router is gone. Raises ValueError, DecodeError for what is none."""
        head = self._file.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        body = self._file.read(_checked(head))
        return _to_instance.decode(body)


class RouterChannel:
    """The router's end of one instance."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> RouterChannel:
        """Take over a connected socket."""
        return cls(*await asyncio.open_connection(sock=end))

    def send(self, order: Start | Order) -> None:
        """Queue one message; nothing happens where the instance is gone."""
        if not self._writer.is_closing():
            self._writer.write(frame(order))

    async def receive(self) -> Report | None:
        """The next message; None once the instance is gone. Raises ValueError, DecodeError for what is none."""
        try:
            length = _checked(await self._reader.readexactly(_LENGTH.size))
            return _to_router.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None

    def close(self) -> None:
        """Nothing more is sent or received."""
        self._writer.close()


def _checked(head: bytes) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    return int(length)
