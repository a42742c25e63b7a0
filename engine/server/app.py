"""The HTTP routes: check a request, hand it to the front, answer.

Owns nothing that outlives a request but the counter of ids and whether the server is draining. It never talks
to an instance; the front does.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import InputError
from engine.kv.identity import namespace
from engine.request import Request as EngineRequest
from engine.server.bodies import B, ChatBody, CompletionBody, GenerationBody, parse
from engine.server.choices import Served, engine_requests, sampling_of
from engine.server.codec import TextCodec
from engine.server.errors import ApiError
from engine.server.front import Front
from engine.server.generation import Generation
from engine.server.guard import LIVE_PATH, Guard
from engine.server.limits import read_body
from engine.server.metrics import Metrics
from engine.server.openapi import document
from engine.server.shapes import ChatDialect, TextDialect
from engine.server.ticket import Origin, Ticket
from engine.server.two_call import Handoff, KvOffer, TwoCall, believes_token

SESSION_HEADER = "x-session-id"
"""Where a client may name the session of a request; only the request log knows of it."""
_DEFAULT_MAX_TOKENS = 16
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Api:
    """The routes over one front. `facts` are what /health says of this launch, beside how it is."""

    def __init__(
        self,
        served: Served,
        engine: Front,
        codec: TextCodec,
        metrics: Metrics,
        facts: Mapping[str, Any],
        two_call: TwoCall,
    ) -> None:
        self._served = served
        self._engine = engine
        self._facts = facts
        self._two_call = two_call
        self._codec = codec
        self._metrics = metrics
        self._ids = itertools.count(1)
        self._document = msgspec.json.encode(document())
        self.draining = False

    def application(self, *, api_key: str | None, loopback: bool) -> Guard:
        """The ASGI application, with the checks that come before any route."""
        routes = [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/health", self.health),
            Route("/health/ready", self.health),
            Route(LIVE_PATH, self.live),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.openapi),
        ]
        handlers: dict[Any, Any] = {ApiError: _api_error, HTTPException: _http_error, Exception: _server_error}
        app = Starlette(routes=routes, exception_handlers=handlers)
        return Guard(app, api_key=api_key, loopback=loopback)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = await self._body(CompletionBody, request)
        prompts = [prompt for prompt in body.prompt if not isinstance(prompt, str)]
        if len(prompts) < len(body.prompt):
            # In a thread: long texts take tens of milliseconds, in which other streams want their tokens.
            try:
                prompts = await asyncio.to_thread(self._encode, body)
            except InputError as error:
                raise ApiError(400, error.message, param="prompt") from None
        return self._answer(request, body, prompts, body.max_tokens, _DEFAULT_MAX_TOKENS, TextDialect)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = await self._body(ChatBody, request)
        messages = [message.plain() for message in body.messages]
        try:
            prompt = tuple(await asyncio.to_thread(self._codec.encode_chat, messages))
        except InputError as error:
            raise ApiError(400, error.message, param="messages") from None
        asked = body.max_completion_tokens or body.max_tokens
        return self._answer(request, body, [prompt], asked, self._served.max_len, ChatDialect)

    async def models(self, _request: Request) -> Response:
        """GET /v1/models."""
        served = self._served
        model = {"id": served.model, "object": "model", "created": 0, "owned_by": "advise"}
        model |= {"max_model_len": served.max_len, "vocab_size": served.vocab_size}
        return _json(200, {"object": "list", "data": [model]})

    async def health(self, _request: Request) -> Response:
        """GET /health: 200 while new requests are taken."""
        state = "failed" if self._engine.failure else "draining" if self.draining else "ready"
        instances = [
            {
                "name": member.name,
                "role": member.name.rpartition("-")[0],
                "state": member.state,
                "pid": member.pid,
                "restarts": member.restarts,
            }
            for member in self._engine.members
        ]
        body = {"status": state, "degraded": self._engine.degraded, **self._facts, "instances": instances}
        return _json(200 if state == "ready" else 503, body)

    async def live(self, _request: Request) -> Response:
        """GET /health/live: this process answers."""
        return _json(200, {"status": "live"})

    async def metrics(self, _request: Request) -> Response:
        """GET /metrics."""
        self._engine.observe()
        return Response(self._metrics.exposition(), media_type=_METRICS_TYPE)

    async def openapi(self, _request: Request) -> Response:
        """GET /openapi.json."""
        return Response(self._document, media_type="application/json")

    async def _body(self, kind: type[B], request: Request) -> B:
        self._refuse_when_closed()
        body = parse(kind, await read_body(request))
        if body.ignored_fields:
            self._metrics.ignored_fields.inc(body.ignored_fields)
        return body

    def _encode(self, body: CompletionBody) -> list[tuple[int, ...]]:
        return [tuple(self._codec.encode(p)) if isinstance(p, str) else p for p in body.prompt]

    def _refuse_when_closed(self) -> None:
        if self.draining or self._engine.failure:
            self._metrics.rejected.labels("draining").inc()
            raise ApiError(503, "the server is shutting down", code="draining", headers={"retry-after": "5"})

    def _answer(
        self,
        request: Request,
        body: GenerationBody,
        prompts: list[tuple[int, ...]],
        asked_tokens: int | None,
        default_tokens: int,
        kind: type[TextDialect | ChatDialect],
    ) -> Response:
        served = self._served
        keeps = self._two_call.keeps(body.kv_transfer_params)
        if keeps:
            body = _first_call(body, asked_tokens)
        sampling = [sampling_of(served, body, prompt, asked_tokens, default_tokens) for prompt in prompts]
        self._refuse_when_closed()  # again: reading and tokenizing took time
        answer_id = f"{kind.id_prefix}-{next(self._ids)}"
        request.state.answer_id = answer_id
        groups = engine_requests(
            answer_id, prompts, sampling, namespace(served.model, scope=body.cache_salt), body.n
        )
        origin = Origin(request.url.path, request.headers.get(SESSION_HEADER))
        self._refuse_when_full([one for group in groups for one in group], origin)
        if keeps and len(prompts) * body.n == 1:
            groups = [[replace(groups[0][0], keep_kv=True)]]
        tickets = self._tickets(body, groups, origin)
        created = int(time.time())
        dialect = kind(answer_id, created, served.model, self._codec, include_usage=body.include_usage)
        offer = partial(self._offer, tickets[0]) if keeps else None
        return Generation(self._engine, self._codec, tickets, dialect, body, offer)

    def _tickets(self, body: GenerationBody, groups: list[list[EngineRequest]], origin: Origin) -> list[Ticket]:
        """Hand the requests over, one group a prompt."""
        engine, wake, stream = self._engine, asyncio.Event(), body.stream or bool(body.stop)
        handoff = self._two_call.handoff(body.kv_transfer_params, [one for group in groups for one in group])
        if handoff is None:
            return [
                t for group in groups for t in engine.add_choices(group, wake, stream=stream, origin=origin)
            ]
        [[request]] = groups
        if believes_token(request):
            return [engine.adopt(request, handoff, wake, stream=stream, origin=origin)]
        engine.decline(handoff)
        return engine.add_choices([request], wake, stream=stream, origin=origin)

    def _offer(self, ticket: Ticket) -> KvOffer | None:
        """Where the KV of a first call is; None where there is none for a second."""
        if ticket.kept_at is None:
            return None
        scored = ticket.logprobs[0] if ticket.logprobs else None
        handoff = Handoff(ticket.request.id, ticket.kept_at, ticket.tokens[0], ticket.cached_tokens, scored)
        return self._two_call.offer(ticket.request, handoff)

    def _refuse_when_full(self, requests: list[EngineRequest], origin: Origin) -> None:
        """All choices of a request go into the queue, or none."""
        choices = len(requests)
        if choices > self._served.max_queued:
            raise ApiError(400, f"the queue holds {self._served.max_queued} requests, one a choice", param="n")
        if self._engine.waiting + choices > self._served.max_queued:
            self._metrics.rejected.labels("queue_full").inc()
            self._engine.refused(requests, origin)
            raise ApiError(429, "the queue is full", code="queue_full", headers={"retry-after": "1"})


def _first_call(body: GenerationBody, asked_tokens: int | None) -> GenerationBody:
    """What the first of two calls asks for; when its text ends is the second's."""
    if body.stream or asked_tokens != 1:
        what = "do_remote_decode goes with max_tokens: 1, not streamed"
        raise ApiError(400, what, param="kv_transfer_params")
    return body.model_copy(update={"stop": (), "min_tokens": 0})


def _json(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def _api_error(_request: Request, error: ApiError) -> Response:
    return _json(error.status, error.body(), error.headers)


async def _http_error(_request: Request, error: HTTPException) -> Response:
    """Routes that do not exist, methods that they do not take."""
    headers = dict(error.headers or {})
    return _json(error.status_code, ApiError(error.status_code, error.detail).body(), headers)


async def _server_error(_request: Request, _error: Exception) -> Response:
    return _json(500, ApiError(500, "internal error").body())
