"""Connections to a server in this process: too slow, too many, ahead of time, gone, or no HTTP at all."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import pytest
from helpers.server import client, eventually, fake_engine, leave_open

from engine.server import connection
from engine.server.connection import MAX_CONNECTIONS, HttpServer


async def plain_app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body, then answers its length; /open answers without an end, /early before the body."""
    length = 0
    while scope["path"] != "/early":
        message = await receive()
        length += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/open":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    await send({"type": "http.response.body", "body": str(length).encode()})


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def with_server(talk: Talk, app: Any = plain_app) -> None:
    """Run `talk` on a connection to a server in this process."""

    async def run() -> None:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        ready = asyncio.Event()
        server = HttpServer(app, ready.set)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await ready.wait()
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            async with asyncio.timeout(20):
                await talk(reader, writer)
        finally:
            writer.close()
            server.should_exit = True
            await serving

    asyncio.run(run())


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "READ_TIMEOUT_S", 0.2)
    monkeypatch.setattr(connection, "ROUTE_FIRST_S", 0.0)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n123",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\n123\r\n",
    ],
)
@pytest.mark.usefixtures("hurried")
def test_a_request_that_stays_incomplete_is_408_and_closed(sent: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")

    with_server(talk)


@pytest.mark.usefixtures("hurried")
def test_dripping_bytes_do_not_win_time() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = asyncio.create_task(reader.read())
        while not answer.done():
            writer.write(b"G" if writer.transport.get_write_buffer_size() == 0 else b"")
            await asyncio.sleep(0.02)
        assert (await answer).startswith(b"HTTP/1.1 408 ")

    with_server(talk)


@pytest.mark.usefixtures("hurried")
def test_a_connection_that_says_nothing_is_closed() -> None:
    async def talk(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""

    with_server(talk)


@pytest.mark.usefixtures("hurried")
def test_a_connection_in_use_is_not_cut() -> None:
    """Three requests on one connection, with pauses within the idle time, and an answer that takes longer."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n123")
            assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            await asyncio.sleep(0.3)

    async def slow_app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.3)
        await plain_app(scope, receive, send)

    with_server(talk, slow_app)


def test_two_requests_in_one_write_get_two_answers() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        one = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n123"
        writer.write(one + one)
        await writer.drain()
        writer.write(one)
        for _ in range(3):
            assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    with_server(talk)


@pytest.mark.parametrize("ahead", [b"", b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"G"])
def test_leaving_is_noticed_whatever_was_sent_ahead(ahead: bytes) -> None:
    """Bytes of a next request must not stop the reading that notices the end (sglang#36876)."""
    left = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await plain_app(scope, receive, send)
        left.set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /open HTTP/1.1\r\nhost: a\r\n\r\n" + ahead)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ahead)
        await writer.drain()
        writer.close()
        await left.wait()

    with_server(talk, app)


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http_is_400_in_the_error_form(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"x-request-id: " in head
        assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}

    with caplog.at_level(logging.INFO):
        with_server(talk)
    assert not [record for record in caplog.records if record.exc_info]


def test_the_rest_of_an_answered_body_is_read_off_but_not_without_end(caplog: pytest.LogCaptureFixture) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST /early HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(ConnectionError):
            await endless(writer)

    async def endless(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)

    with_server(talk)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_client_that_does_not_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_S", 0.2)
    cut = asyncio.Event()

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        watcher = asyncio.create_task(receive())
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
            if watcher.done():
                cut.set()
                return
        watcher.cancel()

    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n")
        await cut.wait()

    with_server(talk, app)


def test_connections_over_the_limit_get_503_and_others_go_on() -> None:
    with fake_engine() as engine, client(engine) as http, ExitStack() as stack:
        assert http.get("/health").status_code == 200
        for _ in range(MAX_CONNECTIONS - 1):
            stack.enter_context(leave_open(engine.url, prompt="x", max_tokens=1))
        with client(engine) as another:
            answer = another.get("/health/live")
            assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        assert http.get("/health").status_code == 200
        stack.close()

        def comes_through() -> bool:
            with client(engine) as another:
                return another.get("/health/live").status_code == 200

        eventually(comes_through, "there is room again")
