"""The client against servers of raw bytes on real sockets: what each answer is called, and what is asked."""

from __future__ import annotations

import asyncio
import errno
import shutil
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from advisor.validation import wire
from advisor.validation.client import Exchange, open_client
from advisor.validation.loop import loop_kind, new_event_loop
from engine.errors import InputError, MachineError

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
TWO = (
    b'data: {"choices":[{"text":"a","token_ids":[1]}]}\n\n'
    b'data: {"choices":[{"text":"b","token_ids":[2],"finish_reason":"length"}]}\n\n'
)
DONE = b"data: [DONE]\n\n"


def sized(body: bytes, status: bytes = b"200 OK", extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, extra, len(body), body)


class RawServer(asyncio.Protocol):
    """Answers each whole request with the next of `left`."""

    def __init__(self, got: list[bytes], left: list[bytes | None], hang_up: bool = False) -> None:
        self.got, self.left, self.hang_up = got, left, hang_up
        self.data = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, gap, body = self.data.partition(b"\r\n\r\n")
        if not gap or len(body) < int(head.rpartition(b"Content-Length: ")[2]):
            return
        self.got.append(self.data)
        self.data = b""
        answer = self.left.pop(0)
        if answer is not None:
            self.transport.write(answer)
        if self.hang_up:
            self.transport.close()


def loops() -> list[Any]:
    """Both kinds where both are there."""
    new_event_loop().close()
    return [new_event_loop, asyncio.new_event_loop]


def ask(
    answers: list[bytes | None],
    *,
    hang_up: bool = False,
    timeout_s: float = 5.0,
    path: str = "/v1/completions",
    api_key: str | None = None,
    prefix: str = "",
    factory: Any = asyncio.new_event_loop,
) -> tuple[list[Exchange], list[bytes], int]:
    """One request after the other; what became of each, what the server read, and how many connections it had.

    An answer of None never comes; with `hang_up` the connection ends after each.
    """
    got: list[bytes] = []
    left = list(answers)
    connections: list[RawServer] = []

    def serve() -> RawServer:
        connections.append(RawServer(got, left, hang_up))
        return connections[-1]

    async def main() -> list[Exchange]:
        server = await asyncio.get_running_loop().create_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{prefix}"
        exchanges = [Exchange(i, b'{"n":%d}' % i, time.monotonic_ns(), 3, 2) for i in range(len(answers))]
        async with open_client(url, path, api_key=api_key, timeout_s=timeout_s) as client:
            for exchange in exchanges:
                await client.perform(exchange)
        server.close()
        return exchanges

    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main()), got, len(connections)


@pytest.mark.parametrize("factory", loops(), ids=["fastest", "asyncio"])
def test_a_stream_is_followed_and_its_connection_used_again(factory: Any) -> None:
    chunked = SSE + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(TWO + DONE), TWO + DONE)
    exchanges, got, connections = ask([chunked, sized(TWO + DONE), chunked], factory=factory)
    assert [exchange.status for exchange in exchanges] == ["ok"] * 3
    assert connections == 1
    first = exchanges[0]
    assert first.conn_ns > 0
    assert exchanges[1].conn_ns == 0
    assert first.send_ns <= first.hdr_ns <= first.any_ns <= first.chunk_ns[0] <= first.done_ns
    assert (first.tokens, first.finish_reason) == (2, "length")
    assert [request.endswith(b'\r\n\r\n{"n":%d}' % i) for i, request in enumerate(got)] == [True] * 3


def test_what_is_asked() -> None:
    _, (request,), _ = ask([sized(TWO)], path="/v1/chat/completions", api_key="k-1", prefix="/proxy/")
    lines = request.split(b"\r\n")
    assert lines[0] == b"POST /proxy/v1/chat/completions HTTP/1.1"
    assert lines[1].startswith(b"Host: 127.0.0.1:")
    assert {b"Authorization: Bearer k-1", b"Content-Type: application/json", b"Content-Length: 7"} <= set(lines)


@pytest.mark.parametrize(
    ("answer", "status", "connections"),
    [
        (sized(b"{}", b"500 Oops"), "http_5xx", 1),
        (sized(b"{}", b"503 Busy", b"Connection: close\r\n"), "http_5xx", 2),
        (sized(b"{}", b"429 Slow down"), "http_429", 1),
        (sized(b"{}", b"400 No"), "http_4xx", 1),
        (sized(b"", b"307 Elsewhere", b"Location: http://127.0.0.1:9/\r\n"), "http_4xx", 1),
        (SSE.replace(b"1.1", b"1.0") + b"\r\n" + TWO, "timeout", 2),  # its end is that of the connection
        (sized(b"data: {oops}\n\n"), "broken_stream", 2),
        (sized(TWO + b'data: {"error":{"message":"out of memory"}}\n\n'), "broken_stream", 2),
        (sized(b"data: [DONE]\n\n"), "broken_stream", 1),  # no token
        (sized(TWO.split(b"\n\n")[0] + b"\n\n"), "broken_stream", 1),  # ends politely, without its end
        (sized(TWO.split(b"\n\n")[0] + b"\n\n" + DONE), "wrong_length", 1),
        (sized(TWO), "ok", 1),  # a finish reason is an end too
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "broken_stream", 2),
        (SSE + b"Content-Length: 500\r\n\r\n" + TWO, "timeout", 2),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\n", "http_5xx", 2),  # the code counts, come what may
        (None, "timeout", 2),
    ],
)
def test_what_an_answer_is_called_and_whether_its_connection_goes_on(
    answer: bytes | None, status: str, connections: int
) -> None:
    exchanges, _, opened = ask([answer, sized(TWO)], timeout_s=0.3)
    assert [exchange.status for exchange in exchanges] == [status, "ok"]
    assert opened == connections
    assert all(exchange.done_ns is not None for exchange in exchanges)


def test_connections_that_end() -> None:
    until_end = SSE.replace(b"1.1", b"1.0") + b"\r\n"
    exchanges, _, connections = ask(
        [until_end + TWO, until_end + TWO[:20], SSE + b"Content-Length: 500\r\n\r\n" + TWO, b""], hang_up=True
    )
    assert [one.status for one in exchanges] == ["ok", "broken_stream", "broken_stream", "broken_stream"]
    assert connections == 4


def test_nobody_listens() -> None:
    async def main() -> Exchange:
        exchange = Exchange(0, b"{}", time.monotonic_ns(), 3, 2)
        async with open_client("http://127.0.0.1:9") as client:
            await client.perform(exchange)
        return exchange

    exchange = asyncio.run(main())
    assert (exchange.status, exchange.hdr_ns) == ("broken_stream", None)


def test_a_machine_without_room_is_no_miss_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(wire.Pool, "_connect_to", full)

    async def main() -> None:
        async with open_client("http://127.0.0.1:9") as client:
            await client.perform(Exchange(0, b"{}", time.monotonic_ns(), 3, 2))

    with pytest.raises(MachineError, match="room") as caught:
        asyncio.run(main())
    assert caught.value.hint == "advise doctor --client"


def test_an_address_that_refuses_is_left_out_while_another_answers() -> None:
    """As of `localhost`, where a server listens on one of ::1 and 127.0.0.1 only."""

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: RawServer([], []), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        pool = wire.Pool(wire.Site("localhost", ("127.0.0.2", "127.0.0.1"), port), time.monotonic_ns)
        for _ in range(3):
            connection, _ = await pool.take()
            pool.put(connection, reusable=False)
        left = list(pool._addresses)
        pool.close()
        server.close()
        return left

    assert asyncio.run(main()) == ["127.0.0.1"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
@pytest.mark.parametrize("factory", loops(), ids=["fastest", "asyncio"])
def test_an_encrypted_server_must_prove_who_it_is(
    factory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    argv += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(argv, check=True, capture_output=True)

    async def main() -> list[str]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        loop = asyncio.get_running_loop()
        answers: list[bytes | None] = [sized(TWO)]
        server = await loop.create_server(lambda: RawServer([], answers), "127.0.0.1", 0, ssl=context)
        port, statuses = server.sockets[0].getsockname()[1], []
        for trusted in (False, True):
            if trusted:
                monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            exchange = Exchange(0, b"{}", time.monotonic_ns(), 3, 2)
            async with open_client(f"https://localhost:{port}") as client:
                await client.perform(exchange)
            statuses.append(exchange.status)
        server.close()
        return statuses

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.get_loop().set_exception_handler(lambda *_: None)  # the server's words on the refusal
        assert runner.run(main()) == ["broken_stream", "ok"]


@pytest.mark.parametrize("url", ["ftp://a/", "127.0.0.1:8000", "http://", "http://a:b/"])
def test_what_is_no_address_is_refused(url: str) -> None:
    async def main() -> None:
        async with open_client(url):
            pass

    with pytest.raises(InputError, match="no HTTP address"):
        asyncio.run(main())


def test_a_key_with_a_line_break_is_refused() -> None:
    async def main() -> None:
        async with open_client("http://127.0.0.1:9", api_key="k\r\nX: y"):
            pass

    with pytest.raises(InputError, match="line break"):
        asyncio.run(main())


def test_ctrl_c_ends_a_run_on_the_fastest_loop_too() -> None:
    code = (
        "import os, signal\n"
        "from advisor.validation.client import body_of, open_client\n"
        "from advisor.validation.loop import run\n"
        "from advisor.validation.null_server import null_server, Pace\n"
        "from advisor.validation.replay import Due, replay\n"
        "def interrupt(record):\n"
        "    if record.status == 'ok': os.kill(os.getpid(), signal.SIGINT)\n"
        "    return False\n"
        "schedule = [Due(i, i / 20, body_of('null', [1], 2), 1, 2) for i in range(600)]\n"
        "async def main(url):\n"
        "    async with open_client(url) as client:\n"
        "        return await replay(schedule, client, tick=lambda _: None, ended=interrupt)\n"
        "with null_server(Pace(0.01, 0.01)) as url:\n"
        "    outcome = run(main(url))\n"
        "print(outcome.end, len(outcome.records), outcome.records[0].status, outcome.records[-1].status)\n"
    )
    root = Path(__file__).resolve().parents[2]
    told = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert told.stdout.split() == ["interrupted", "600", "ok", "unsent"]


def test_the_loop_says_what_it_is() -> None:
    loop = asyncio.new_event_loop()
    assert loop_kind(loop) == "asyncio"
    loop.close()
