"""The HTTP routes: check a request, hand it to the engine loop, answer.

Owns nothing that outlives a request but the counter of ids and whether the server is draining. It never touches
the engine core; the engine loop does.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import InputError
from engine.kv.identity import namespace
from engine.request import Request as EngineRequest
from engine.request import SamplingParams
from engine.server.bodies import ApiError, ChatBody, CompletionBody, GenerationBody, parse
from engine.server.codec import TextCodec
from engine.server.generation import Generation
from engine.server.guard import Guard
from engine.server.loop import EngineLoop
from engine.server.metrics import Metrics
from engine.server.shapes import ChatDialect, TextDialect

MAX_BODY_BYTES = 16 * 1024 * 1024
_BODY_TIMEOUT_S = 15.0
_DEFAULT_MAX_TOKENS = 16
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Served:
    """What one server serves. `max_len` is prompt plus output, tokens, that model and KV cache both hold."""

    model: str
    max_len: int
    vocab_size: int
    max_queued: int


class Api:
    """The routes over one engine loop."""

    def __init__(self, served: Served, engine: EngineLoop, codec: TextCodec, metrics: Metrics) -> None:
        self._served = served
        self._engine = engine
        self._codec = codec
        self._metrics = metrics
        self._ids = itertools.count(1)
        self.draining = False

    def application(self, *, api_key: str | None, loopback: bool) -> Guard:
        """The ASGI application, with the checks that come before any route."""
        routes = [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        handlers: dict[Any, Any] = {ApiError: _api_error, HTTPException: _http_error, Exception: _server_error}
        app = Starlette(routes=routes, exception_handlers=handlers)
        return Guard(app, api_key=api_key, loopback=loopback)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        self._refuse_when_closed()
        body = parse(CompletionBody, await _read(request))
        prompt = body.prompt
        if isinstance(prompt, str):
            # In a thread: a long prompt takes tens of milliseconds, in which other streams want their tokens.
            prompt = tuple(await asyncio.to_thread(self._codec.encode, prompt))
        return self._answer(body, prompt, body.max_tokens, _DEFAULT_MAX_TOKENS, TextDialect)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        self._refuse_when_closed()
        body = parse(ChatBody, await _read(request))
        messages = [message.plain() for message in body.messages]
        try:
            prompt = tuple(await asyncio.to_thread(self._codec.encode_chat, messages))
        except InputError as error:
            raise ApiError(400, error.message, param="messages") from None
        asked = body.max_completion_tokens or body.max_tokens
        return self._answer(body, prompt, asked, self._served.max_len, ChatDialect)

    async def models(self, _request: Request) -> Response:
        """GET /v1/models."""
        served = self._served
        model = {"id": served.model, "object": "model", "created": 0, "owned_by": "advise"}
        model |= {"max_model_len": served.max_len, "vocab_size": served.vocab_size}
        return _json(200, {"object": "list", "data": [model]})

    async def health(self, _request: Request) -> Response:
        """GET /health: 200 while new requests are taken."""
        state = "failed" if self._engine.failure else "draining" if self.draining else "ready"
        return _json(200 if state == "ready" else 503, {"status": state})

    async def metrics(self, _request: Request) -> Response:
        """GET /metrics."""
        return Response(self._metrics.exposition(), media_type=_METRICS_TYPE)

    def _refuse_when_closed(self) -> None:
        if self.draining or self._engine.failure:
            self._metrics.rejected.labels("draining").inc()
            raise ApiError(503, "the server is shutting down", code="draining", headers={"retry-after": "5"})

    def _answer(
        self,
        body: GenerationBody,
        prompt: tuple[int, ...],
        asked_tokens: int | None,
        default_tokens: int,
        kind: type[TextDialect | ChatDialect],
    ) -> Response:
        sampling = self._sampling(body, prompt, asked_tokens, default_tokens)
        self._refuse_when_closed()  # again: reading and tokenizing took time
        if self._engine.waiting >= self._served.max_queued:
            self._metrics.rejected.labels("queue_full").inc()
            raise ApiError(429, "the queue is full", code="queue_full", headers={"retry-after": "1"})
        request_id = f"{kind.id_prefix}-{next(self._ids)}"
        dialect = kind(request_id, int(time.time()), self._served.model, include_usage=body.include_usage)
        scope = namespace(self._served.model, scope=body.cache_salt)
        ticket = self._engine.add(EngineRequest(request_id, prompt, sampling, scope), stream=body.stream)
        return Generation(self._engine, self._codec, ticket, dialect, body)

    def _sampling(
        self, body: GenerationBody, prompt: tuple[int, ...], asked: int | None, default: int
    ) -> SamplingParams:
        """Check what needs the model's sizes. Raises ApiError 400, 404."""
        served = self._served
        if body.model not in (None, served.model):
            raise ApiError(404, f"no such model; this is {served.model}", param="model", code="model_not_found")
        if not prompt:
            raise ApiError(400, "the prompt is empty", param="prompt")
        if max(prompt) >= served.vocab_size or min(prompt) < 0:
            raise ApiError(400, f"token ids go from 0 to {served.vocab_size - 1}", param="prompt")
        room = served.max_len - len(prompt)
        if room < (asked or 1):
            wanted = f"{len(prompt)} prompt tokens and {asked or 1} output tokens"
            message = f"this model holds {served.max_len} tokens; {wanted} were asked for"
            raise ApiError(400, message, param="prompt", code="context_length_exceeded")
        max_tokens = asked or min(default, room)
        if body.min_tokens > max_tokens:
            raise ApiError(400, f"min_tokens is over max_tokens, {max_tokens}", param="min_tokens")
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=body.min_tokens,
            temperature=body.temperature,
            top_k=max(body.top_k, 0),
            top_p=body.top_p,
            seed=secrets.randbits(63) if body.seed is None else body.seed % 2**63,
            ignore_eos=body.ignore_eos,
        )


async def _read(request: Request) -> bytes:
    """The body, within limits of size and time. Raises ApiError 413, 408, 400."""
    too_large = ApiError(413, f"the body is over {MAX_BODY_BYTES} bytes", code="body_too_large")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"the body took over {_BODY_TIMEOUT_S:g} s") from None
    except ClientDisconnect:
        raise ApiError(400, "the client went away") from None
    return bytes(body)


def _json(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def _api_error(_request: Request, error: ApiError) -> Response:
    return _json(error.status, error.body(), error.headers)


async def _http_error(_request: Request, error: HTTPException) -> Response:
    """Routes that do not exist, methods that they do not take."""
    return _json(error.status_code, ApiError(error.status_code, error.detail).body())


async def _server_error(_request: Request, _error: Exception) -> Response:
    return _json(500, ApiError(500, "internal error").body())
