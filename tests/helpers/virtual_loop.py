"""An event loop whose clock moves only when everybody waits, and a server inside it that speaks HTTP in memory.

The real client and the real replay run on it unchanged; only `create_connection` gives a pipe in memory instead
of a socket. A run of minutes takes a moment, times are exact and the same on every machine: what a self-test
measures is the code, not the machine.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from advisor.validation.null_server import HEAD, NullProtocol, Pace, answer_end, chunk, token_event

TURN_NS = 20_000  # what one turn of the loop takes; without it, waiting in turns would never end


class _Selector(selectors.SelectSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits and nothing is due: this run would never end")
        self.loop.now_ns += max(math.ceil(timeout * 1e9), TURN_NS)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. `serve` is asked for the server's protocol of each connection."""

    def __init__(self, serve: Callable[[], asyncio.Protocol]) -> None:
        selector = _Selector()
        selector.loop = self
        self.now_ns = 1_000_000_000
        self.connections = 0
        self._serve = serve
        super().__init__(selector)

    def time(self) -> float:
        return self.now_ns / 1e9

    def clock(self) -> int:
        return self.now_ns

    async def getaddrinfo(self, _: Any, port: Any, **__: Any) -> list[Any]:
        return [(2, 1, 6, "", ("10.0.0.1", port))]

    async def create_connection(self, factory: Any, *_: Any, **__: Any) -> Any:
        here, there = factory(), self._serve()
        ends = [MemoryTransport(self, here), MemoryTransport(self, there)]
        ends[0].peer, ends[1].peer = ends[1], ends[0]
        for end in ends:
            end.protocol.connection_made(end)
        self.connections += 1
        return ends[0], here


class MemoryTransport(asyncio.Transport):
    """One end of a pipe. What is written comes out at the other end in the next turn of the loop."""

    peer: MemoryTransport

    def __init__(self, loop: VirtualLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.loop = loop
        self.protocol = protocol
        self.closed = False

    def write(self, data: Any) -> None:
        if not self.closed:
            self.loop.call_soon(self.peer.receive, bytes(data))

    def receive(self, data: bytes) -> None:
        if not self.closed:
            self.protocol.data_received(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.loop.call_soon(self.lost)
            self.loop.call_soon(self.peer.lost)

    abort = close

    def lost(self) -> None:
        if not self.closed:
            self.closed = True
            self.protocol.connection_lost(None)


@dataclass
class Script:
    """What the server does; requests are counted in order of arrival from 0."""

    ttft_s: Callable[[int], float] = lambda _: 0.1
    gap_s: float = 0.02
    packed: int = 1  # tokens in a chunk after the first, which holds one
    error_on: Callable[[int], int | None] = lambda _: None  # an HTTP status
    cut_on: Callable[[int], bool] = lambda _: False  # after half of its tokens
    hang_on: Callable[[int], bool] = lambda _: False
    freeze: tuple[float, float] = (0.0, 0.0)  # the loop's times from and to which the server stands still
    asked: list[float] = field(default_factory=list)  # when each request came

    def thawed(self, at_s: float) -> float:
        """When something due at `at_s` is done."""
        return self.freeze[1] if self.freeze[0] <= at_s < self.freeze[1] else at_s


class ScriptedProtocol(NullProtocol):
    """One connection to a server that follows a script."""

    def __init__(self, script: Script) -> None:
        super().__init__(Pace())
        self.script = script

    def stream(self, request: bytes) -> None:
        loop, script = asyncio.get_running_loop(), self.script
        number, now = len(script.asked), loop.time()
        script.asked.append(now)
        status = script.error_on(number)
        if script.hang_on(number):
            return
        if status is not None:
            self.write(b"HTTP/1.1 %d Sorry\r\nContent-Length: 2\r\n\r\n{}" % status)
            return
        tokens, end = answer_end(request)
        self.write(HEAD)
        cut_at = tokens // 2 if script.cut_on(number) else tokens
        first, sent = script.thawed(now) + script.ttft_s(number), 0
        while sent < cut_at:
            take = min(script.packed if sent else 1, tokens - sent)
            sent += take
            due = script.thawed(first + (sent - 1) * script.gap_s)
            loop.call_at(due, self.write, chunk(token_event(take)) + (end if sent == tokens else b""))
        if cut_at < tokens:
            loop.call_at(script.thawed(first + sent * script.gap_s), self.hang_up)


def on_virtual_clock(
    main: Callable[[VirtualLoop], Coroutine[Any, Any, Any]], serve: Callable[[], asyncio.Protocol]
) -> Any:
    """Run `main(loop)` there and give what it returns."""
    loop = VirtualLoop(serve)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop))
