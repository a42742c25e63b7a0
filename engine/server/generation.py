"""The answer to one ticket: streamed or whole, and aborted when its client is gone.

Owns the order of what a client sees: status and headers with the first token, one chunk a token, the reason of
the end, the usage if asked for, `[DONE]`. What fails before the first token is a plain HTTP error, after it an
error event.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.server.bodies import ApiError, GenerationBody
from engine.server.codec import TextCodec, TextStream
from engine.server.loop import EngineLoop
from engine.server.shapes import DONE, Dialect, Usage, event
from engine.server.ticket import Ending, Ticket

_JSON = (b"content-type", b"application/json")
_SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Generation(Response):
    """An ASGI response that waits for the engine."""

    def __init__(
        self, engine: EngineLoop, codec: TextCodec, ticket: Ticket, dialect: Dialect, body: GenerationBody
    ) -> None:
        self._engine = engine
        self._codec = codec
        self._ticket = ticket
        self._dialect = dialect
        self._body = body

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and leave nothing running behind."""
        watcher = asyncio.create_task(self._abort_on_disconnect(receive))
        try:
            await (self._stream(send) if self._body.stream else self._whole(send))
        finally:
            watcher.cancel()
            self._engine.abort(self._ticket)

    async def _abort_on_disconnect(self, receive: Receive) -> None:
        # The body has been read, so the next message can only be the disconnect.
        await receive()
        self._engine.abort(self._ticket)

    async def _whole(self, send: Send) -> None:
        ending = await self._ticket.ended()
        error = _error_of(ending)
        if error is not None:
            await _send_error(send, error)
            return
        tokens = self._ticket.tokens
        ids = tokens if self._body.return_token_ids else UNSET
        text = self._codec.decode(tokens)
        await _send_whole(send, 200, self._dialect.whole(text, ids, ending.reason, self._usage(ending)))

    async def _stream(self, send: Send) -> None:
        text, started = self._codec.stream(), False
        async for tokens in self._ticket.batches():
            chunks = b"".join([self._token(text, token) for token in tokens])
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": _SSE})
                chunks, started = self._dialect.opening() + chunks, True
            if chunks:
                await send({"type": "http.response.body", "body": chunks, "more_body": True})
        ending = await self._ticket.ended()
        error = _error_of(ending)
        if error is None:
            last = self._last_chunks(text.flush(), ending)
        elif started:
            last = event(error.body()) + DONE
        else:
            await _send_error(send, error)
            return
        await send({"type": "http.response.body", "body": last})

    def _token(self, text: TextStream, token: int) -> bytes:
        """The chunk of one token; a client that asked for token ids gets it even while the text is empty."""
        piece = text.push(token)
        if self._body.return_token_ids:
            return self._dialect.token(piece, [token])
        return self._dialect.token(piece, UNSET) if piece else b""

    def _last_chunks(self, tail: str, ending: Ending) -> bytes:
        # The tail belongs to tokens whose ids are out already.
        ids: list[int] | UnsetType = [] if self._body.return_token_ids else UNSET
        chunks = [self._dialect.token(tail, ids)] if tail else []
        chunks.append(self._dialect.closing(ending.reason))
        if self._body.include_usage:
            chunks.append(self._dialect.usage(self._usage(ending)))
        return b"".join([*chunks, DONE])

    def _usage(self, ending: Ending) -> Usage:
        return Usage.of(len(self._ticket.request.prompt), len(self._ticket.tokens), ending.cached_tokens)


def _error_of(ending: Ending) -> ApiError | None:
    if ending.reason == "error":
        return ApiError(500, "the engine failed while this request ran", code="engine_error")
    if ending.reason == "abort":
        return ApiError(503, "the request was aborted: the server is shutting down", code="aborted")
    return None


async def _send_error(send: Send, error: ApiError) -> None:
    await _send_whole(send, error.status, msgspec.json.encode(error.body()))


async def _send_whole(send: Send, status: int, body: bytes) -> None:
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
