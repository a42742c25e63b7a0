"""The ASGI middleware: watches requests to an OpenAI-compatible service go in and answers come out.

It changes no message and adds no wait: bodies are kept as they pass, times are taken, and the rest happens in
another thread. Whatever goes wrong here is counted, never raised.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from advisor.logs.recorder.exchange import TOKEN_BEARING, Exchange
from advisor.logs.recorder.writer import TraceWriter
from advisor.logs.text import TextEncoder

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

ROUTES = ("/chat/completions", "/completions", "/responses", "/messages")
_HEAD_BYTES = 8 << 10  # of a stream: some count the prompt in the first event
_TAIL_BYTES = 64 << 10  # ... and all count the output in one of the last
_KEYS = (b"authorization", b"x-api-key", b"api-key")


class Recorder:
    """Records the requests of the application behind it to `path`.

    `tokenizer` makes prefix blocks exact, at its price; without one they are found on bytes. `session_header`
    names a session. `most_body_bytes` is the largest request whose prompt is looked at, `most_units` how many
    units of 32 bytes are remembered (about 130 bytes of memory each), `most_file_bytes` and `daily` when a new
    file begins.
    """

    def __init__(
        self,
        app: App,
        path: str | Path = "trace.jsonl",
        *,
        tokenizer: TextEncoder | None = None,
        session_header: str = "x-session-id",
        most_body_bytes: int = 4 << 20,
        most_units: int = 2_000_000,
        most_file_bytes: int = 256 << 20,
        daily: bool = True,
    ) -> None:
        self.app = app
        self.writer = TraceWriter(
            path,
            tokenizer=tokenizer,
            most_units=most_units,
            most_file_bytes=most_file_bytes,
            daily=daily,
        )
        self._session_header = session_header.lower().encode("latin-1")
        self._most_body_bytes = most_body_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass everything through."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, self._until_shutdown(send))
            return
        watch = self._watch(scope)
        if watch is None:
            await self.app(scope, receive, send)
            return
        try:
            await self.app(scope, watch.receiving(receive), watch.sending(send))
        except Exception:
            watch.status = watch.status or "error"
            raise
        except BaseException:  # cancelled
            watch.status = "aborted"
            raise
        finally:
            watch.finish()

    def _watch(self, scope: Message) -> _Watch | None:
        """Who watches this request; None where it is none that is recorded."""
        try:
            if scope["type"] != "http" or scope["method"] != "POST":
                return None
            path = scope["path"]
            route = next((name for name in ROUTES if path.endswith(name)), None)
            if route is None:
                return None
            return _Watch(self.writer, "/v1" + route, scope, self._session_header, self._most_body_bytes)
        except Exception as error:
            self.writer.lose(error)
            return None

    def _until_shutdown(self, send: Send) -> Send:
        async def sending(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                self.writer.close()
            await send(message)

        return sending


class _Watch:
    """One request on its way."""

    def __init__(
        self, writer: TraceWriter, route: str, scope: Message, session_header: bytes, most_body_bytes: int
    ) -> None:
        self.status = ""  # what went wrong outside of the answer
        self._writer = writer
        self._route = route
        self._headers = scope.get("headers", ())
        self._session_header = session_header
        self._most_body_bytes = most_body_bytes
        self._arrival_ns = time.time_ns()
        self._start_s = time.perf_counter()
        self._body: list[bytes] | None = []
        self._body_bytes = 0
        self._code = 0
        self._streamed = False
        self._readable = True
        self._answer = bytearray()
        self._head = b""
        self._ttft_s: float | None = None
        self._e2e_s: float | None = None

    def receiving(self, receive: Receive) -> Receive:
        async def received() -> Message:
            message = await receive()
            try:
                self._take_request(message)
            except Exception as error:
                self._writer.lose(error)
            return message

        return received

    def sending(self, send: Send) -> Send:
        async def sent(message: Message) -> None:
            now = time.perf_counter()
            try:
                await send(message)
            except Exception:
                self.status = "aborted"  # the client is gone
                raise
            try:
                self._take_answer(message, now)
            except Exception as error:
                self._writer.lose(error)

        return sent

    def finish(self) -> None:
        """Hand over what was seen."""
        try:
            self._writer.put(self._exchange())
        except Exception as error:
            self._writer.lose(error)

    def _take_request(self, message: Message) -> None:
        if message["type"] == "http.disconnect" and self._e2e_s is None:
            self.status = "aborted"
        if message["type"] != "http.request" or self._body is None:
            return
        chunk = message.get("body", b"")
        self._body_bytes += len(chunk)
        if self._body_bytes > self._most_body_bytes:
            self._body = None
        else:
            self._body.append(chunk)

    def _take_answer(self, message: Message, now: float) -> None:
        if message["type"] == "http.response.start":
            self._code = message["status"]
            headers = {name.lower(): value for name, value in message.get("headers", ())}
            self._streamed = headers.get(b"content-type", b"").startswith(b"text/event-stream")
            self._readable = headers.get(b"content-encoding", b"identity") == b"identity"
        elif message["type"] == "http.response.body":
            chunk = message.get("body", b"")
            if self._streamed:
                self._take_chunk(chunk, now)
            elif self._readable and len(self._answer) + len(chunk) <= self._most_body_bytes:
                self._answer += chunk
            else:
                self._readable = False
            if not message.get("more_body", False):
                self._e2e_s = now - self._start_s

    def _take_chunk(self, chunk: bytes, now: float) -> None:
        if self._ttft_s is None and (not self._readable or TOKEN_BEARING.search(chunk)):
            self._ttft_s = now - self._start_s
        self._answer += chunk
        if len(self._answer) > 2 * _TAIL_BYTES:
            self._head = self._head or bytes(self._answer[:_HEAD_BYTES])
            del self._answer[:-_TAIL_BYTES]

    def _exchange(self) -> Exchange:
        status = self.status or ("ok" if self._code < 400 else f"http {self._code}")
        if status == "aborted" and self._e2e_s is not None:
            status = "ok"  # the client left after the last byte
        if not self._code and status == "ok":
            status = "error"  # the application said nothing
        head = self._head.rpartition(b"\n")[0] + b"\n" if self._head else b""
        return Exchange(
            route=self._route,
            arrival_ns=self._arrival_ns,
            body=None if self._body is None else b"".join(self._body),
            status=status,
            answer=head + bytes(self._answer) if self._readable else b"",
            streamed=self._streamed,
            ttft_s=self._ttft_s,
            e2e_s=self._e2e_s,
            client=self._digest(*_KEYS),
            session=self._digest(self._session_header),
        )

    def _digest(self, *names: bytes) -> int | None:
        """A digest of the first of these headers that is there, in place of its value."""
        for name, value in self._headers:
            if name in names and value:
                return hash((name, value))
        return None
