"""One request on the wire: send it, stamp what comes back, say how it ended.

Our own client and not aiohttp's, for two reasons that benchmarks/client.py prints: a stamp is taken when bytes
are read (aiohttp's streams give them to a task some turns of the loop later), and a chunk costs a fraction of
the CPU time. Never waits for another request, never sends one twice, follows no redirect.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import SplitResult, urlsplit

import msgspec

from advisor.validation.exchange import Exchange
from advisor.validation.http1 import ProtocolError, Response
from advisor.validation.loop import allow_connections
from advisor.validation.record import Status
from advisor.validation.sse import EventReader, StreamError
from advisor.validation.wire import Clock, Pool, Site, resolve
from engine.errors import InputError, MachineError

__all__ = ["Client", "Exchange", "authorization", "body_of", "open_client"]

COMPLETIONS = "/v1/completions"


class Client:
    """Sends requests of one path, any number at once. `open_client` makes one."""

    def __init__(self, pool: Pool, head: bytes, timeout_s: float, clock: Clock) -> None:
        self._pool = pool
        self._head = head
        self._timeout_s = timeout_s
        self._clock = clock

    async def perform(self, exchange: Exchange) -> None:
        """Send the request now and follow it to its end; the outcome is in the exchange.

        Times out `timeout_s` after now. A cancelled exchange stays `interrupted`. Raises only MachineError,
        where this machine and not the server is at its end.
        """
        exchange.status = "interrupted"
        exchange.send_ns = self._clock()  # replaced when the connection is open
        answer = _Answer(exchange, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(self._timeout_s):
                connection, exchange.conn_ns = await self._pool.take()
                try:
                    request = b"%b%d\r\n\r\n%b" % (self._head, len(exchange.body), exchange.body)
                    exchange.send_ns = self._clock()
                    connection.ask(request, answer)
                    await answer.ended
                finally:
                    self._pool.put(connection, reusable=answer.reusable)
            exchange.status = answer.status()
        except TimeoutError:
            exchange.status = answer.status(over="timeout")
        except OSError:
            exchange.status = "broken_stream"
        if exchange.done_ns is None:
            exchange.done_ns = self._clock()


class _Answer:
    """What comes back to one request: bytes in, stamps and an outcome out."""

    __slots__ = ("_broken", "_events", "_exchange", "_response", "ended")

    def __init__(self, exchange: Exchange, ended: asyncio.Future[None]) -> None:
        self.ended = ended
        self._exchange = exchange
        self._response = Response()
        self._events = EventReader()
        self._broken = False

    @property
    def reusable(self) -> bool:
        """Whether its connection may carry another request."""
        return self._response.complete and self._response.reusable and not self._broken

    def feed(self, data: bytes, at_ns: int) -> None:
        """Bytes that arrived at `at_ns`."""
        response, exchange = self._response, self._exchange
        if self.ended.done():
            return
        try:
            body = response.feed(data)
            if exchange.hdr_ns is None and response.status is not None:
                exchange.hdr_ns = at_ns
            if body and response.status == 200:
                for event in self._events.feed(body):
                    if event.error is not None:
                        raise StreamError("the server ended the stream with an error")
                    exchange.take(event, at_ns)
        except (ProtocolError, StreamError):
            self._broken = True
        if response.complete or self._broken:
            self._end(at_ns)

    def lost(self, at_ns: int) -> None:
        """The connection ended."""
        try:
            self._response.end()
        except ProtocolError:
            self._broken = True
        self._end(at_ns)

    def _end(self, at_ns: int) -> None:
        if not self.ended.done():
            self._exchange.done_ns = at_ns
            self.ended.set_result(None)

    def status(self, over: Status = "broken_stream") -> Status:
        """The outcome; `over` where the answer is not complete. A code other than 200 is one by itself."""
        code = self._response.status
        if code is not None and code != 200:
            return _http_status(code)
        if self._broken or not self._response.complete:
            return "broken_stream" if self._broken else over
        ended = self._events.done or self._exchange.finish_reason is not None
        if not ended or not self._exchange.chunk_ns:
            return "broken_stream"
        return "ok" if self._exchange.has_wanted_length else "wrong_length"


@asynccontextmanager
async def open_client(
    url: str,
    path: str = COMPLETIONS,
    *,
    api_key: str | None = None,
    timeout_s: float = 120.0,
    clock: Clock = time.monotonic_ns,
) -> AsyncIterator[Client]:
    """A client for POSTs to `url` + `path`, without a limit on connections beyond this machine's.

    `timeout_s` is for one request, from its send to its end; `clock` gives nanoseconds. Raises InputError for
    what is no HTTP URL, MachineError where the host's name has no address.
    """
    parts = urlsplit(url)
    site = await _site(url, parts)
    allow_connections()
    pool = Pool(site, clock)
    try:
        yield Client(pool, _head(parts, path, api_key), timeout_s, clock)
    finally:
        pool.close()


async def _site(url: str, parts: SplitResult) -> Site:
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError("this is no HTTP address", where=url, hint="--url http://127.0.0.1:8000")
    port = port or (443 if parts.scheme == "https" else 80)
    try:
        addresses = await resolve(host, port)
    except OSError as error:
        raise MachineError(f"no engine answers at {url}", why=str(error), hint="advise launch") from error
    return Site(host, addresses, port, ssl.create_default_context() if parts.scheme == "https" else None)


def _head(parts: SplitResult, path: str, api_key: str | None) -> bytes:
    """The head of every request, up to the number of its content length."""
    lines = [
        f"POST {parts.path.rstrip('/')}{path} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "User-Agent: advise",
        "Accept: text/event-stream",
        "Accept-Encoding: identity",  # a compressed stream would be held back by its compressor
        "Content-Type: application/json",
        *(f"{name}: {value}" for name, value in authorization(api_key).items()),
        "Content-Length: ",
    ]
    if any("\r" in line or "\n" in line for line in lines):
        raise InputError("the API key or the URL holds a line break", hint="export ADVISE_API_KEY=KEY")
    return "\r\n".join(lines).encode()


def authorization(api_key: str | None) -> dict[str, str]:
    """The header that carries an API key, where there is one."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def _http_status(code: int) -> Status:
    if code == 429:
        return "http_429"
    return "http_5xx" if code >= 500 else "http_4xx"


def body_of(model: str, prompt: list[int], output_tokens: int) -> bytes:
    """The request as bytes: exactly these prompt tokens, exactly this many output tokens, greedy, streamed."""
    return msgspec.json.encode(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
    )
