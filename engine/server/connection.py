"""One HTTP connection within limits, and uvicorn's server around it.

Owns how many connections there are, how large a head may be and how long a client may take over a head, a body,
or reading its answer; what breaks these or is no HTTP gets an answer in the error form where one can still be
sent. uvicorn alone has no time limits but for idle connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import sys
from collections.abc import Callable, Iterator
from socket import socket
from typing import Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from engine.server.errors import ApiError
from engine.server.guard import new_request_id
from engine.server.limits import MAX_BODY_BYTES, MAX_HEAD_BYTES, READ_TIMEOUT_S

MAX_CONNECTIONS = 1024
IDLE_S = 60
ROUTE_FIRST_S = 1.0  # a route has the same limit for its body, and can say more
_CLOSE_S = 5  # what connections get to take their last bytes
_MAX_AHEAD_BYTES = 64 * 1024
_MESSAGES = {431: f"the head of the request is over {MAX_HEAD_BYTES} bytes", 501: "not implemented"}
_log = logging.getLogger(__name__)


class Connection(H11Protocol):
    """A connection of `HttpServer`.

    While a request is answered, what the client sends ahead is kept back and read on, so that its leaving is
    noticed: h11 would have reading paused.
    """

    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _ahead = b""
    _surplus = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or refuse it where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(503, "too many connections")
        else:
            self._restart_timer(READ_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, or we closed."""
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.DONE:
            self._keep_back(data)
            return
        before = self.conn.their_state
        if before is h11.IDLE and self._timer is None:
            self._restart_timer(READ_TIMEOUT_S)
        if before is h11.SEND_BODY and self.cycle.response_complete and not self._may_be_read_off(data):
            return
        super().data_received(data)
        self._after_reading(before)

    def on_response_complete(self) -> None:
        """The answer is out; what was sent ahead is the next request."""
        super().on_response_complete()
        self._after_reading(h11.IDLE)
        ahead, self._ahead = self._ahead, b""
        if ahead and not self.transport.is_closing():
            self.data_received(ahead)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - as uvicorn calls it
        """h11 refused what came."""
        hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
        self._refuse(hint, _MESSAGES.get(hint, "this is not valid HTTP"))

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(IDLE_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _after_reading(self, before: Any) -> None:
        state = self.conn.their_state
        if state is h11.IDLE and before is not state:  # a body was read off
            self._stop_timer()
        elif state is h11.DONE:
            self._stop_timer()
            self._surplus = 0
            # A second request may have come with the first: h11 holds its bytes, and uvicorn stopped reading.
            self.flow.resume_reading()
        elif state is h11.SEND_BODY and before is not state:
            self._restart_timer(READ_TIMEOUT_S + ROUTE_FIRST_S)

    def _keep_back(self, data: bytes) -> None:
        self._ahead += data
        if len(self._ahead) > _MAX_AHEAD_BYTES:
            self.transport.abort()

    def _may_be_read_off(self, data: bytes) -> bool:
        """The rest of a body whose request is answered; it is read as long as it is not endless."""
        self._surplus += len(data)
        if self._surplus > MAX_BODY_BYTES:
            self.transport.close()
        return self._surplus <= MAX_BODY_BYTES

    def _restart_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.close()
        else:
            self._refuse(408, f"the request took over {READ_TIMEOUT_S:g} s")

    def _refuse(self, status: int, message: str) -> None:
        """Answer if nothing of an answer is out yet, and close."""
        request_id = new_request_id()
        _log.info("request %s: %d -", request_id, status)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            body = msgspec.json.encode(ApiError(status, message).body())
            head = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            head += f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + body)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


class HttpServer(uvicorn.Server):
    """uvicorn, less its signal handling, which would end the process by the signal and not with status 0."""

    def __init__(self, app: Any, on_ready: Callable[[], None]) -> None:
        settings = uvicorn.Config(
            app,
            http=Connection,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        super().__init__(settings)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's."""
        yield

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self._on_ready()
