"""What surrounds every route: the request id, the size of the head, the Host header, the API key, a log line.

A loopback server may have no key, so it answers only to loopback names: a web page that points its own name at
127.0.0.1 (DNS rebinding) gets 400. Only `GET /health/live` needs neither. A client's request id is an opaque
label: it is given back and logged, and means nothing else.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
import secrets
from collections.abc import Awaitable

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.errors import ApiError
from engine.server.limits import MAX_HEAD_BYTES

LIVE_PATH = "/health/live"
_log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def new_request_id() -> str:
    """A label for a request whose client gave none."""
    return secrets.token_hex(8)


class Guard:
    """An ASGI application in front of another."""

    def __init__(self, app: ASGIApp, *, api_key: str | None, loopback: bool) -> None:
        self._app = app
        self._key = None if api_key is None else api_key.encode()
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else new_request_id()
        state = scope.setdefault("state", {})

        # No coroutine of its own: it is called for every chunk of a stream.
        def labelled(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                if message["status"] >= 400 or "answer_id" in state:
                    _log.info("request %s: %s %s", request_id, message["status"], state.get("answer_id", "-"))
            return send(message)

        error = self._refusal(scope, headers)
        if error is None:
            await self._app(scope, receive, labelled)
            return
        body = msgspec.json.encode(error.body())
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        head += [(name.encode(), value.encode()) for name, value in error.headers.items()]
        await labelled({"type": "http.response.start", "status": error.status, "headers": head})
        await labelled({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> ApiError | None:
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        size += len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if size > MAX_HEAD_BYTES:
            message = f"the head of the request is over {MAX_HEAD_BYTES} bytes"
            return ApiError(431, message, code="head_too_large", headers={"connection": "close"})
        if scope["path"] == LIVE_PATH:
            return None
        if self._loopback and not is_loopback(_host_name(headers.get(b"host", b""))):
            return ApiError(400, "this server answers to loopback names only", param="host")
        if self._key is not None:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            # Compared in constant time, so that an answer's delay tells nothing about the key.
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._key):
                challenge = {"www-authenticate": "Bearer"}
                return ApiError(401, "a valid API key is needed", code="invalid_api_key", headers=challenge)
        return None


def _host_name(header: bytes) -> str:
    text = header.decode("latin-1")
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdigit() else text
