"""One request on the wire: send it, stamp what comes back, say how it ended.

States of an exchange: unsent -> interrupted (sent, no outcome yet) -> one of the outcomes in `record.Status`.
A stamp is taken when bytes arrive, before they are parsed. Never waits for another request, never sends one
twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import aiohttp
import msgspec

from advisor.validation.record import Record, Status
from advisor.validation.sse import Event, EventReader

# Servers commonly close idle connections after 5 s (uvicorn's default). One that was idle for longer than this
# is not used again, so that a request never meets a connection that is just being closed.
_KEEPALIVE_S = 2.0
# A buffer of 64 KB held back streams of long prompts in another client (vllm issue 39963).
_READ_BUFFER = 2**20


@dataclass(slots=True)
class Exchange:
    """A request that is due, and what has been seen of it so far. Stamps are `time.monotonic_ns`."""

    row: int
    body: bytes = field(repr=False)
    due_ns: int
    want_in: int
    want_out: int
    status: Status = "unsent"
    send_ns: int | None = None
    conn_start_ns: int | None = None
    conn_ns: int = 0
    hdr_ns: int | None = None
    done_ns: int | None = None
    chunk_ns: list[int] = field(default_factory=list)
    tokens: int = 0
    has_token_ids: bool = False
    n_in: int | None = None
    n_cached: int | None = None
    n_usage: int | None = None
    finish_reason: str | None = None

    def take(self, event: Event, at_ns: int) -> None:
        """Count one event that arrived at `at_ns`."""
        tokens = event.tokens
        if tokens:
            self.chunk_ns.append(at_ns)
            self.tokens += tokens
            self.has_token_ids = self.has_token_ids or event.has_token_ids
        if event.usage is not None:
            self.n_in = event.usage.prompt_tokens
            self.n_usage = event.usage.completion_tokens
            self.n_cached = event.usage.cached_tokens
        self.finish_reason = event.finish_reason or self.finish_reason

    @property
    def n_out(self) -> tuple[int | None, Literal["usage", "token_ids", "chunks"] | None]:
        """Output tokens, and where the count comes from."""
        if self.n_usage is not None:
            return self.n_usage, "usage"
        if self.hdr_ns is None or self.status.startswith("http"):
            return None, None
        return self.tokens, "token_ids" if self.has_token_ids else "chunks"

    @property
    def has_wanted_length(self) -> bool:
        """Whether the usage, and the ids where there are any, both count `want_out` tokens."""
        return self.n_out[0] == self.want_out and (not self.has_token_ids or self.tokens == self.want_out)

    def record(self, start_ns: int) -> Record:
        """The record, in seconds after `start_ns`."""

        def seconds(stamp: int | None) -> float | None:
            return None if stamp is None else (stamp - start_ns) / 1e9

        n_out, source = self.n_out
        return Record(
            row=self.row,
            t_sched=(self.due_ns - start_ns) / 1e9,
            want_in=self.want_in,
            want_out=self.want_out,
            status=self.status,
            t_send=seconds(self.send_ns),
            t_conn=self.conn_ns / 1e9,
            t_hdr=seconds(self.hdr_ns),
            t_chunk=tuple((stamp - start_ns) / 1e9 for stamp in self.chunk_ns),
            t_done=seconds(self.done_ns),
            n_in=self.n_in,
            n_cached=self.n_cached,
            n_out=n_out,
            n_out_source=source,
            finish_reason=self.finish_reason,
        )


class Client:
    """Sends completions, any number at once. `open_client` makes one."""

    def __init__(self, session: aiohttp.ClientSession, url: str, timeout_s: float) -> None:
        self._session = session
        self._completions = url.rstrip("/") + "/v1/completions"
        self._timeout_s = timeout_s

    async def perform(self, exchange: Exchange) -> None:
        """Send the request now and follow it to its end; the outcome is in the exchange, nothing is raised.

        Times out `timeout_s` after now. A cancelled exchange stays `interrupted`.
        """
        exchange.status = "interrupted"
        exchange.send_ns = time.monotonic_ns()  # replaced when the connection is open
        try:
            async with asyncio.timeout(self._timeout_s):
                exchange.status = await self._stream(exchange)
        except TimeoutError:
            exchange.status = "timeout"
        except (aiohttp.ClientError, OSError, msgspec.DecodeError, UnicodeDecodeError):
            exchange.status = "broken_stream"
        exchange.done_ns = time.monotonic_ns()

    async def _stream(self, exchange: Exchange) -> Status:
        async with self._session.post(
            self._completions, data=exchange.body, trace_request_ctx=exchange, allow_redirects=False
        ) as response:
            exchange.hdr_ns = time.monotonic_ns()
            if response.status != 200:
                return _http_status(response.status)
            reader = EventReader()
            async for data in response.content.iter_any():
                at_ns = time.monotonic_ns()
                for event in reader.feed(data):
                    if event.error is not None:
                        return "broken_stream"
                    exchange.take(event, at_ns)
        if not reader.done or not exchange.chunk_ns:
            return "broken_stream"
        return "ok" if exchange.has_wanted_length else "wrong_length"


@asynccontextmanager
async def open_client(
    url: str, *, api_key: str | None = None, timeout_s: float = 120.0
) -> AsyncIterator[Client]:
    """A client without a limit on connections; `timeout_s` is for one request, from its send to its end."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None),
        headers=authorization(api_key) | {"Content-Type": "application/json"},
        read_bufsize=_READ_BUFFER,
        trace_configs=[_stamps()],
    ) as session:
        yield Client(session, url, timeout_s)


def authorization(api_key: str | None) -> dict[str, str]:
    """The header that carries an API key, where there is one."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def _http_status(code: int) -> Status:
    if code == 429:
        return "http_429"
    return "http_5xx" if code >= 500 else "http_4xx"


def _stamps() -> aiohttp.TraceConfig:
    """Hooks that stamp the exchange where aiohttp opens a connection and where it begins to write."""

    async def sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
        context.trace_request_ctx.send_ns = time.monotonic_ns()

    async def connecting(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
        context.trace_request_ctx.conn_start_ns = time.monotonic_ns()

    async def connected(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
        exchange = context.trace_request_ctx
        exchange.conn_ns = time.monotonic_ns() - exchange.conn_start_ns

    hooks = aiohttp.TraceConfig()
    hooks.on_request_headers_sent.append(sent)
    hooks.on_connection_create_start.append(connecting)
    hooks.on_connection_create_end.append(connected)
    return hooks


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
