"""Raw bytes at a server's socket: no unplanned 5xx, no death, and the next good client is served.

A case sends its pieces and takes what comes back until the server has nothing more to say for a moment; half of
all cases hang up then, some before. Planned of 5xx are 503, and 501 for a transfer coding that nobody here
understands (RFC 9112, section 6.1).
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections import Counter
from itertools import islice
from typing import cast
from urllib.parse import urlsplit

import pytest
from helpers.raw_requests import INJECTED, Case, cases
from helpers.server import blocks, client, eventually, fake_engine, metrics

from advisor.deploy.local import RunningEngine

QUIET_S = 0.03  # ours: so long without a byte, and the server has said what it will
STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3})", re.MULTILINE)
EVERY = 100
LEAKS = re.compile(rb"Traceback|0x[0-9a-f]{6,}|/site-packages/|\.py\b|root:")


def send(address: tuple[str, int], case: Case) -> bytes:
    """Carry out one case; returns what the server said."""
    said = b""
    connection = socket.create_connection(address, timeout=5)
    with connection, contextlib.suppress(OSError):  # the server may hang up at any time
        for piece in case.pieces:
            connection.sendall(piece)
            time.sleep(case.pause_s)
        if case.reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return said
        connection.settimeout(QUIET_S)
        while part := connection.recv(65536):
            said += part
    return said


def attack(engine: RunningEngine, number: int, seed: int) -> None:
    where = urlsplit(engine.url)
    address = cast(tuple[str, int], (where.hostname, where.port))
    statuses: Counter[bytes] = Counter()
    kinds: Counter[str] = Counter()
    wrong = []
    with client(engine) as http:
        for index, case in enumerate(islice(cases(seed), number)):
            said = send(address, case)
            found = STATUS.findall(said) or [b"none"]
            statuses.update(found)
            kinds[case.kind] += 1
            planned = {b"503", b"501"} if case.kind == "chunks" else {b"503"}
            if any(b"500" <= status < b"600" and status not in planned for status in found):
                wrong.append((index, case.kind, found, case.pieces[0][:200]))
            if LEAKS.search(said) or INJECTED in said.lower():
                wrong.append((index, case.kind, said[:300], case.pieces[0][:200]))
            assert engine.exit_status is None, case
            if index % EVERY == EVERY - 1:
                answer = http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 4})
                assert answer.status_code == 200
        print(dict(kinds), dict(statuses))  # noqa: T201 - the figure that is asked for
        assert not wrong, "\n".join(map(str, wrong[:10]))
        assert min(kinds.values()) >= number // 13
        assert statuses[b"200"] > number / 50
        assert statuses[b"400"] > number / 10
        eventually(lambda: blocks(metrics(http))["used"] == 0, "every block is back")
        assert http.get("/health").is_success


def test_150_raw_connections_do_no_harm() -> None:
    with fake_engine("sleep:0.0005") as engine:
        attack(engine, 150, seed=5)


def test_a_connection_that_ends_behind_any_byte_of_a_request_does_no_harm() -> None:
    whole = (
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 15\r\n\r\n" + b'{"prompt": "a"}'
    )
    with fake_engine() as engine, client(engine) as http:
        where = urlsplit(engine.url)
        for end in range(len(whole) + 1):
            case = Case("cut", (whole[:end],), reset=True)
            send(cast(tuple[str, int], (where.hostname, where.port)), case)
        eventually(lambda: blocks(metrics(http))["used"] == 0, "every block is back")
        assert http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 4}).status_code == 200


@pytest.mark.slow
def test_1_000_raw_connections_do_no_harm() -> None:
    with fake_engine("sleep:0.0005") as engine:
        attack(engine, 1_000, seed=6)
