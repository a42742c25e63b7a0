"""What is checked before any route: the API key, and on a loopback server the Host header.

A loopback server has no key, so it answers only to loopback names: a web page that points its own name at
127.0.0.1 (DNS rebinding) gets 400. `/health` needs neither.
"""

from __future__ import annotations

import hmac
import ipaddress

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.server.bodies import ApiError


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """An ASGI application in front of another."""

    def __init__(self, app: ASGIApp, *, api_key: str | None, loopback: bool) -> None:
        self._app = app
        self._key = None if api_key is None else api_key.encode()
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope) if scope["type"] == "http" and scope["path"] != "/health" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": msgspec.json.encode(error.body())})

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = dict(scope["headers"])
        if self._loopback and not is_loopback(_host_name(headers.get(b"host", b""))):
            return ApiError(400, "this server answers to loopback names only", param="host")
        if self._key is not None:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            # Compared in constant time, so that an answer's delay tells nothing about the key.
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._key):
                return ApiError(401, "a valid API key is needed", code="invalid_api_key")
        return None


def _host_name(header: bytes) -> str:
    text = header.decode("latin-1")
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdigit() else text
