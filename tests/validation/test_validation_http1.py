"""Reading HTTP/1.1: the same answers as h11's, another implementation, however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.validation.http1 import ProtocolError, Response

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def read(pieces: list[bytes], ended: bool) -> tuple[int | None, bytes, bool]:
    """Status, body, and whether another request may follow."""
    response = Response()
    body = b"".join([response.feed(piece) for piece in pieces])
    if ended:
        response.end()
    assert response.complete
    return response.status, body, response.reusable


def read_by_h11(data: bytes, ended: bool) -> tuple[int | None, bytes, bool]:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=2**20)
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "a"), ("Content-Length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    if ended:
        connection.receive_data(b"")
    status, body = None, b""
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            break
        assert event is not h11.NEED_DATA
    return status, body, connection.their_state is h11.DONE and not connection.trailing_data[0]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)]


chunks = st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.sampled_from([b"", b";a=b", b'; q="x"'])))
places = st.lists(st.integers(0, 10**6), max_size=12)


@given(
    chunks,
    places,
    st.sampled_from([b"", b"Connection: close\r\n", b"connection: Keep-Alive\r\n"]),
    st.sampled_from([b"", b"X-Trailer: 1\r\nOther: 2\r\n"]),
    st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]),
    st.booleans(),
)
def test_chunked_bodies(
    parts: list[tuple[bytes, bytes]], at: list[int], extra: bytes, trailer: bytes, before: bytes, capitals: bool
) -> None:
    size = b"%X" if capitals else b"%04x"
    data = before + HEAD + extra + b"Transfer-Encoding: chunked\r\n\r\n"
    data += b"".join(size % len(part) + more + b"\r\n" + part + b"\r\n" for part, more in parts)
    data += b"0\r\n" + trailer + b"\r\n"
    assert read(cut(data, at), False) == read_by_h11(data, False)
    assert read(cut(data, at), False)[1] == b"".join(part for part, _ in parts)


@given(st.binary(max_size=60), places, st.sampled_from([b"HTTP/1.1", b"HTTP/1.0"]), st.booleans())
def test_bodies_of_a_length_and_bodies_that_end_with_the_connection(
    body: bytes, at: list[int], version: bytes, sized: bool
) -> None:
    length = b"Content-Length: %d\r\n" % len(body) if sized else b""
    data = version + b" 404 Not Found\r\n" + length + b"\r\n" + body
    assert read(cut(data, at), not sized)[:2] == read_by_h11(data, not sized)[:2] == (404, body)
    assert read(cut(data, at), not sized)[2] == (sized and version == b"HTTP/1.1")


def test_a_chunk_that_comes_whole_takes_the_short_way_to_the_same_bytes() -> None:
    response = Response()
    response.feed(CHUNKED)
    assert response.feed(b"5\r\nab\r\nc\r\n") == b"ab\r\nc"  # a line end within is data
    assert response.feed(b"2\r\nxy\r\n3\r\nz") == b"xyz"
    assert response.feed(b"zz\r\n") == b"zz"
    assert not response.complete
    assert response.feed(b"0\r\n\r\n") == b""
    assert response.complete
    assert response.reusable
    response.feed(b"HTTP/1.1 408")  # nobody asked
    assert not response.reusable


def test_answers_without_a_body_and_with_bytes_after_it() -> None:
    assert read([b"HTTP/1.1 204 No Content\r\n\r\n"], False) == (204, b"", True)
    assert read([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], False) == (200, b"", True)
    assert read([b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy"], False) == (200, b"x", False)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nSpace : 1\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        CHUNKED + b"x\r\n",
        CHUNKED + b"-5\r\nabcde\r\n",
        CHUNKED + b"1_0\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"3\r\nabcd\r\n",
        CHUNKED + b"5;" + b"x" * 5000,
        CHUNKED + b"0\r\n" + b"a: b\r\n" * 1000,
    ],
)
def test_what_is_malformed_or_has_no_bound_is_refused(data: bytes) -> None:
    step = 1 if len(data) < 1000 else 1000
    for pieces in ([data], [data[i : i + step] for i in range(0, len(data), step)]):
        with pytest.raises(ProtocolError):
            read(pieces, False)


@pytest.mark.parametrize(
    "data", [b"", b"HTTP/1.1 200 OK\r\n", CHUNKED + b"5\r\nab", HEAD + b"Content-Length: 5\r\n\r\nab"]
)
def test_an_end_within_a_response_is_an_error(data: bytes) -> None:
    response = Response()
    response.feed(data)
    with pytest.raises(ProtocolError):
        response.end()
