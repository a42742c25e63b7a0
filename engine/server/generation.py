"""The answer to one call: streamed or whole, of one or more choices, and aborted when its client is gone.

Owns the order of what a client sees: status and headers with the first token, one chunk a token, the reason of
each choice's end, the usage if asked for, `[DONE]`. What fails before the first token is a plain HTTP error,
after it an error event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import UNSET
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.server.bodies import GenerationBody
from engine.server.codec import TextCodec
from engine.server.errors import ApiError
from engine.server.front import Front
from engine.server.output import Output, Piece
from engine.server.shapes import DONE, Dialect, Finished, Usage, event
from engine.server.ticket import Ticket
from engine.server.two_call import KvOffer

_FAILURES = {
    "error": ApiError(500, "the engine failed while this request ran", code="engine_error"),
    "abort": ApiError(503, "the request was aborted: the server is shutting down", code="aborted"),
}
_UNAVAILABLE = "unavailable"
_JSON = (b"content-type", b"application/json")
_SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Generation(Response):
    """An ASGI response that waits for the engine. The tickets, one a choice in order, share their `wake`.

    `offer` says at the end where the KV is, of the first of two calls.
    """

    def __init__(
        self,
        engine: Front,
        codec: TextCodec,
        tickets: Sequence[Ticket],
        dialect: Dialect,
        body: GenerationBody,
        offer: Callable[[], KvOffer | None] | None = None,
    ) -> None:
        self._engine = engine
        self._wake = tickets[0].wake
        self._outputs = [Output(ticket, codec, body) for ticket in tickets]
        self._dialect = dialect
        self._body = body
        self._offer = offer
        self._shows_ids = body.return_token_ids

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and leave nothing running behind."""
        watcher = asyncio.create_task(self._abort_on_disconnect(receive))
        try:
            await (self._stream(send) if self._body.stream else self._whole(send))
        finally:
            watcher.cancel()
            self._abort()

    async def _abort_on_disconnect(self, receive: Receive) -> None:
        # The body has been read, so the next message can only be the disconnect.
        await receive()
        self._abort()

    def _abort(self) -> None:
        for output in self._outputs:
            self._engine.abort(output.ticket)

    async def _whole(self, send: Send) -> None:
        finished: list[Finished | None] = [None] * len(self._outputs)
        while True:
            for index, output in enumerate(self._outputs):
                if finished[index] is None:
                    finished[index] = output.finish()
                    self._end_stopped(output)
            error = self._error()
            if error is not None:
                await _send_error(send, error)
                return
            choices = [one for one in finished if one is not None]
            if len(choices) == len(finished):
                transfer = UNSET if self._offer is None else self._offer()
                await _send_whole(send, 200, self._dialect.whole(choices, self._usage(), transfer))
                return
            await self._next()

    async def _stream(self, send: Send) -> None:
        started = False
        while True:
            chunks = b"".join([self._chunks(index, output) for index, output in enumerate(self._outputs)])
            error = self._error()
            if not started and any(output.taken for output in self._outputs):
                await send({"type": "http.response.start", "status": 200, "headers": _SSE})
                opening = [self._dialect.opening(index) for index in range(len(self._outputs))]
                chunks, started = b"".join([*opening, chunks]), True
            if error is not None and not started:
                await _send_error(send, error)
                return
            over = error is not None or all(output.reason is not None for output in self._outputs)
            if over:
                chunks += self._last(error)
            if chunks:
                await send({"type": "http.response.body", "body": chunks, "more_body": not over})
            if over:
                return
            await self._next()

    async def _next(self) -> None:
        """Wait until something happened; what came while a chunk was sent counts."""
        await self._wake.wait()
        self._wake.clear()

    def _chunks(self, index: int, output: Output) -> bytes:
        """The chunks of one choice since the last call, with the reason of its end where it has ended."""
        if output.reason is not None:
            return b""
        chunks = [self._chunk(index, piece) for piece in output.pieces()]
        self._end_stopped(output)
        if output.reason is not None and output.reason not in (*_FAILURES, _UNAVAILABLE):
            chunks.append(self._dialect.closing(index, output.reason))
        return b"".join(chunks)

    def _chunk(self, index: int, piece: Piece) -> bytes:
        """The chunk of one token; a client that asked for ids or logprobs gets it even while it has no text."""
        text, token, scored = piece
        if self._shows_ids:
            return self._dialect.token(index, text, [] if token is None else [token], scored)
        return self._dialect.token(index, text, UNSET, scored) if text or scored else b""

    def _end_stopped(self, output: Output) -> None:
        if output.stopped:
            self._engine.finish(output.ticket)

    def _last(self, error: ApiError | None) -> bytes:
        if error is not None:
            return event(error.body()) + DONE
        return (self._dialect.usage(self._usage()) if self._body.include_usage else b"") + DONE

    def _usage(self) -> Usage:
        first = [output.ticket for output in self._outputs[:: self._body.n]]
        prompt = sum(len(ticket.request.prompt) for ticket in first)
        cached = sum(ticket.cached_tokens for ticket in first)
        return Usage.of(prompt, sum(output.taken for output in self._outputs), cached)

    def _error(self) -> ApiError | None:
        for output in self._outputs:
            if output.reason in _FAILURES:
                return _FAILURES[output.reason]
            if output.reason == _UNAVAILABLE:
                return _unavailable(output.ticket)
        return None


def _unavailable(ticket: Ticket) -> ApiError:
    """No instance may serve it, for a reason that the fleet gives."""
    why = ticket.ending.why if ticket.ending else None
    return ApiError(503, f"no instance can serve this: {why}", code="unavailable", headers={"retry-after": "5"})


async def _send_error(send: Send, error: ApiError) -> None:
    await _send_whole(send, error.status, msgspec.json.encode(error.body()), error.headers)


async def _send_whole(send: Send, status: int, body: bytes, more: Mapping[str, str] | None = None) -> None:
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in (more or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
