"""What may arrive at a socket that is no good request: from a seed, as pieces of bytes to send one by one.

Broken request lines and headers, lengths and chunks that lie, requests behind each other, other protocols,
junk, and good requests that are cut at any byte. A case names its kind, so that a failing one can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

BODY = b'{"prompt": "hello", "max_tokens": 4}'
HOST = b"Host: 127.0.0.1\r\n"
INJECTED = b"x-injected"


@dataclass(frozen=True)
class Case:
    """`pieces` are sent with `pause_s` between them; `reset`: the socket then closes with RST, answer or
    none."""

    kind: str
    pieces: tuple[bytes, ...]
    pause_s: float = 0.0
    reset: bool = False


def request(
    body: bytes = BODY, *, method: bytes = b"POST", path: bytes = b"/v1/completions", headers: bytes = b""
) -> bytes:
    """A good request, but for what is given."""
    length = b"Content-Length: %d\r\n" % len(body)
    return method + b" " + path + b" HTTP/1.1\r\n" + HOST + headers + length + b"\r\n" + body


def cases(seed: int) -> Iterator[Case]:
    """One case after the other, without end; every kind comes once in each round."""
    random = Random(seed)
    kinds = [
        request_line,
        method,
        header,
        huge,
        chunks,
        length,
        pipeline,
        cut,
        slow,
        junk,
        other_protocol,
        host,
    ]
    while True:
        for kind in random.sample(kinds, len(kinds)):
            yield kind(random)


def request_line(random: Random) -> Case:
    line = random.choice(
        [b"GET", b"GET ", b"GET /", b"GET / HTTP", b"GET / HTTP/9.9", b"GET / HTTP/0.9", b"GET / HTTP/1.1 x",
         b"GET  /  HTTP/1.1",
         b"\r\n\r\nGET /health HTTP/1.1", b"GET http://169.254.169.254/ HTTP/1.1", b"GET //health HTTP/1.1",
         b"GET * HTTP/1.1",
         b"OPTIONS * HTTP/1.1", b"CONNECT 10.0.0.1:22 HTTP/1.1", b"GET /%00 HTTP/1.1", b"GET /%zz HTTP/1.1",
         b"GET /\xff\xfe HTTP/1.1",
         b"GET /../../etc/passwd HTTP/1.1", b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1",
         b"GET /health\x00 HTTP/1.1",
         b"GET /health#x HTTP/1.1", b"GET /health?" + b"a=" * random.choice([1, 5000]) + b" HTTP/1.1",
         b" GET / HTTP/1.1"]
    )  # fmt: skip
    return Case("request line", (line + b"\r\n" + HOST + b"\r\n",))


def method(random: Random) -> Case:
    names = [
        b"get",
        b"BREW",
        b"PRI",
        b"TRACE",
        b"PUT",
        b"DELETE",
        b"PATCH",
        b"HEAD",
        b"A" * 10_000,
        b"P\x00ST",
        b"\xc3\xa9",
        b"",
    ]
    path = random.choice([b"/v1/completions", b"/health", b"/metrics", b"/v1/models", b"/nowhere"])
    return Case("method", (request(method=random.choice(names), path=path),))


def header(random: Random) -> Case:
    lines = [b"no colon\r\n", b": no name\r\n", b"a b: c\r\n", b"x: a\x00b\r\n", b"x: \xff\xfe\r\n",
             b"x:y\rz\r\n", b"\tfolded: x\r\n",
             b"x: y\r\n folded\r\n", b"x: y\n" + INJECTED + b": 1\n",
             b"X-Request-Id: a\r\n" + INJECTED + b": 1\r\n",
             b"X-Request-Id: http://10.0.0.1/\r\n", b"X-Request-Id: " + b"r" * 5000 + b"\r\n",
             b"X-Request-Id: \xff\x01\r\n",
             b"Authorization: Bearer \xff\r\n", b"Authorization: Basic\r\n", b"Authorization:\r\n",
             b"Expect: 100-continue\r\n",
             b"Expect: nothing\r\n", b"Content-Type: \x7f\r\n", b"Content-Encoding: gzip\r\n",
             b"Accept: \xf0\r\n",
             b"Connection: close, keep-alive, upgrade\r\n", b"Connection: \r\n",
             b"Forwarded: for=1\r\nX-Forwarded-Host: x\r\n",
             b"Origin: http://evil.example\r\n", b"Cookie: " + b"a=b;" * 300 + b"\r\n"]  # fmt: skip
    chosen = b"".join(random.sample(lines, random.choice([1, 1, 2, 4])))
    return Case("header", (request(headers=chosen),))


def huge(random: Random) -> Case:
    size = random.choice([9_000, 17_000, 70_000, 1_000_000])
    headers = random.choice(
        [b"x: " + b"y" * size + b"\r\n", b"x: y\r\n" * (size // 6), b"y" * size + b": x\r\n"]
    )
    path = random.choice([b"/v1/completions", b"/v1/completions", b"/" + b"p" * size])
    return Case("huge", (request(headers=headers, path=path),))


def chunks(random: Random) -> Case:
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST
    coding = random.choice(
        [b"chunked", b"chunked", b"CHUNKED", b"gzip, chunked", b"chunked, gzip", b"identity", b"xchunked"]
    )
    head += b"Transfer-Encoding: " + coding + b"\r\n"
    head += random.choice([b"", b"", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"]) + b"\r\n"
    size = b"%x" % len(BODY)
    good = size + b"\r\n" + BODY + b"\r\n0\r\n\r\n"
    body = random.choice(
        [good, size + b";ext=1\r\n" + BODY + b"\r\n0\r\nTrailer: x\r\n\r\n", b"g\r\n" + BODY, b"-1\r\n" + BODY,
         b"ffffffffffffffff\r\n" + BODY,
         b"ffffffffffffffffffff\r\n" + BODY, size + b"\r\n" + BODY + b"0\r\n\r\n",
         size + b"\n" + BODY + b"\n0\n\n", b"0\r\n\r\n",
         b"5\r\n" + BODY + b"\r\n0\r\n\r\n", b"\r\n" + good, size + b"\r\n" + BODY,
         b"1\r\n{\r\n" * 50 + b"0\r\n\r\n",
         size + b";" + b"e" * 20_000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n"]
    )  # fmt: skip
    return Case("chunks", (head, body))


def length(random: Random) -> Case:
    value = random.choice(
        [b"0", b"5", b"36 ", b"+36", b"-1", b"0x24", b"36, 36", b"36, 5", b"1e3", b"", b"99999999999999999999",
         b"17000000", b"4000000000",
         b"36\r\nContent-Length: 36", b"36\r\nContent-Length: 5", b"\xb2", b"36;x"]
    )  # fmt: skip
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Content-Length: " + value + b"\r\n\r\n"
    return Case("length", (head + BODY,))


def pipeline(random: Random) -> Case:
    ones = [request(), request(b"{}"), request(b'{"prompt": "a", "stream": true}'),
            b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n",
            request(path=b"/nowhere"), b"junk\r\n\r\n"]  # fmt: skip
    sent = b"".join(random.choices(ones, k=random.choice([2, 3, 10, 40])))
    return Case("pipeline", (sent,), reset=random.random() < 0.3)


def cut(random: Random) -> Case:
    """A good request, then the end of the connection behind any byte of it, or at once behind all."""
    whole = request(random.choice([BODY, b'{"prompt": "hello", "max_tokens": 200, "stream": true}']))
    return Case("cut", (whole[: random.randrange(len(whole) + 1)],), reset=random.random() < 0.5)


def slow(random: Random) -> Case:
    whole = request()
    size = random.choice([1, 3, 20])
    start = random.randrange(len(whole))
    pieces = [
        whole[:start],
        *(whole[i : i + size] for i in range(start, min(len(whole), start + 20 * size), size)),
    ]
    return Case("slow", tuple(pieces), pause_s=0.002)


def junk(random: Random) -> Case:
    data = random.randbytes(random.choice([1, 10, 100, 5000, 200_000]))
    return Case(
        "junk", (random.choice([b"", b"GET / HTTP/1.1\r\n", b"\x00" * 64]) + data,), reset=random.random() < 0.3
    )


def other_protocol(random: Random) -> Case:
    upgrade = b"Connection: Upgrade\r\nUpgrade: %s\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    frame = b"\x81\x85\x00\x00\x00\x00hello"
    return Case(
        "other protocol",
        random.choice(
            [
                (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
                (request(b"", method=b"GET", headers=upgrade % b"websocket"), frame),
                (request(b"", method=b"GET", path=b"/health", headers=upgrade % b"websocket"), frame),
                (request(headers=upgrade % b"h2c" + b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"),),
                (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.randbytes(200),),
                (b"SSH-2.0-OpenSSH_9.6\r\n",),
                (b"\x05\x01\x00",),
                (b"*1\r\n$4\r\nPING\r\n",),
                (b"EHLO x\r\n", b"QUIT\r\n"),
                (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + request(),),
                (b'{"jsonrpc": "2.0"}\n',),
            ]
        ),
    )


def host(random: Random) -> Case:
    names = [b"", b"evil.example", b"127.0.0.1.evil.example", b"127.0.0.1@evil", b"[::1",
             b"localhost:99999999", b"127.0.0.1:x", b"\xff",
             b"127.0.0.1\r\nHost: evil.example", b"0x7f000001", b"a" * 5000]  # fmt: skip
    line = random.choice([b"", b"Host: " + random.choice(names) + b"\r\n"])
    return Case("host", (b"GET /v1/models HTTP/1.1\r\n" + line + b"\r\n",))
