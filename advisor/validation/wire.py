"""Connections to one server, kept open and used again: what is read is stamped at once and handed on later.

Owns the sockets and which of them are idle. States of a connection: busy (one exchange has it) -> idle -> busy
..., or closed. A stamp is taken when bytes are read. They are parsed when every socket that was ready has been
read, so that no stream's parsing delays another's stamp, and in slices, so that sends come between. Opens as
many connections as are asked for; never asks twice; knows nothing of what it carries.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from engine.errors import MachineError

# Servers commonly close idle connections after 5 s (uvicorn's default). One that was idle for longer than this
# is not used again, so that a request never meets a connection that is just being closed.
KEEP_NS = 2_000_000_000
_SLICE = 64  # pieces that are parsed between two turns of the loop: well under a millisecond
_PATIENCE_S = 5.0  # for a connection to one of several addresses
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)

Clock = Callable[[], int]


class Reader(Protocol):
    """Whoever a connection is busy for. Exceptions are bugs."""

    def feed(self, data: bytes, at_ns: int) -> None:
        """Bytes that were read at `at_ns`."""
        ...

    def lost(self, at_ns: int) -> None:
        """The connection has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Site:
    """Where to connect to. `host` is for TLS, `addresses` are what it resolves to."""

    host: str
    addresses: tuple[str, ...]
    port: int
    tls: ssl.SSLContext | None = None


class Inbox:
    """What was read and is not parsed yet, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[tuple[Connection, int, bytes | None]] = deque()
        self._due = False

    def put(self, connection: Connection, at_ns: int, data: bytes | None) -> None:
        """`data` of None is the end of the connection."""
        self._items.append((connection, at_ns, data))
        if not self._due:
            self._due = True
            self._loop.call_soon(self._parse)

    def _parse(self) -> None:
        items = self._items
        for _ in range(min(len(items), _SLICE)):
            connection, at_ns, data = items.popleft()
            connection.take(data, at_ns)
        self._due = bool(items)
        if self._due:
            self._loop.call_soon(self._parse)


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, inbox: Inbox, clock: Clock) -> None:
        self._inbox = inbox
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._reader: Reader | None = None
        self.idle_since_ns = 0

    @property
    def usable(self) -> bool:
        """Whether a request can be written."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without being derived from it

    def data_received(self, data: bytes) -> None:
        """Called by the loop: stamp now, parse later."""
        self._inbox.put(self, self._clock(), data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the loop's signature
        """Called by the loop: ended, after everything that was read before."""
        self._inbox.put(self, self._clock(), None)

    def ask(self, request: bytes, reader: Reader) -> None:
        """Write the request; what comes back goes to `reader`."""
        self._reader = reader
        if self._transport is not None:
            self._transport.write(request)

    def take(self, data: bytes | None, at_ns: int) -> None:
        """Called by the inbox."""
        reader = self._reader
        if data is None:
            self._transport = self._reader = None
            if reader is not None:
                reader.lost(at_ns)
        elif reader is not None:
            reader.feed(data, at_ns)
        else:
            self.close()  # nobody asked for anything: what comes next could not be told from it

    def release(self, now_ns: int) -> None:
        """The exchange is over, the connection is idle."""
        self._reader = None
        self.idle_since_ns = now_ns

    def close(self) -> None:
        """Close at once; what is still to come is dropped."""
        self._reader = None
        if self._transport is not None:
            self._transport.abort()


class Pool:
    """Connections to one site."""

    def __init__(self, site: Site, clock: Clock) -> None:
        self._site = site
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(self._loop)
        self._addresses = deque(site.addresses)
        self._idle: deque[Connection] = deque()  # the one that was used last on the right
        self._open: set[Connection] = set()

    async def take(self) -> tuple[Connection, int]:
        """A connection, and how long it took to open, nanoseconds: 0 for one that was idle. Raises OSError."""
        while self._idle and self._clock() - self._idle[0].idle_since_ns > KEEP_NS:
            self._forget(self._idle.popleft())
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection, 0
            self._forget(connection)
        began_ns = self._clock()
        try:
            connection = await self._connect()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                raise MachineError(
                    "this machine has no room for another connection",
                    why=f"{error.strerror}; {len(self._open)} are open",
                    hint="advise doctor --client",
                ) from error
            raise
        self._open.add(connection)
        return connection, self._clock() - began_ns

    def put(self, connection: Connection, *, reusable: bool) -> None:
        """Give it back."""
        if reusable and connection.usable:
            connection.release(self._clock())
            self._idle.append(connection)
        else:
            self._forget(connection)

    def close(self) -> None:
        """Close every connection."""
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._idle.clear()

    def _forget(self, connection: Connection) -> None:
        connection.close()
        self._open.discard(connection)

    async def _connect(self) -> Connection:
        """To each address in turn; one that fails is left out while there is another."""
        while True:
            address = self._addresses[0]
            self._addresses.rotate(-1)
            several = len(self._addresses) > 1
            try:
                async with asyncio.timeout(_PATIENCE_S if several else None):
                    return await self._connect_to(address)
            except OSError as error:  # a TimeoutError is one
                if not several or error.errno in _EXHAUSTED:
                    raise
                if address in self._addresses and len(self._addresses) > 1:
                    self._addresses.remove(address)

    async def _connect_to(self, address: str) -> Connection:
        tls = self._site.tls
        _, connection = await self._loop.create_connection(
            lambda: Connection(self._inbox, self._clock),
            address,
            self._site.port,
            ssl=tls,
            server_hostname=self._site.host if tls else None,
        )
        return connection


async def resolve(host: str, port: int) -> tuple[str, ...]:
    """The addresses of `host`, once each, so that no request waits for a name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))
