"""A server process that serves reaches nobody: no connection, no datagram, no name asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.embedded import embedded_folder
from helpers.outbound import Outbound
from helpers.server import client, fake_engine

from advisor.deploy.local import RunningEngine, start_engine
from engine.config import EngineConfig, PoolConfig, ServerConfig


@pytest.fixture
def outbound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Outbound:
    guard = Outbound(tmp_path)
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(guard.folder), inherited])))
    return guard


def ask_all(engine: RunningEngine) -> None:
    """A request of every kind, with all that an attacker might have fetched for him."""
    urls = {
        "image_url": "http://127.0.0.1:9/x",
        "metadata": {"url": "http://127.0.0.1:9/"},
        "user": "http://127.0.0.1:9/",
    }
    image = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/cat.png"}}]
    headers = {
        "x-request-id": "http://127.0.0.1:9/",
        "forwarded": "for=127.0.0.1:9",
        "x-forwarded-for": "127.0.0.1",
    }
    with client(engine, **headers) as http:
        body = {"prompt": "see http://127.0.0.1:9/ and localhost", "max_tokens": 4} | urls
        for stream in (False, True):
            assert http.post("/v1/completions", json=body | {"stream": stream}).is_success
            chat = {
                "messages": [{"role": "user", "content": "http://127.0.0.1:9/"}],
                "max_tokens": 4,
                "stream": stream,
            }
            assert http.post("/v1/chat/completions", json=chat).is_success
        assert http.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": image}]}
        ).is_client_error
        assert http.post("/v1/completions", content=b"{").is_client_error
        for path in ("/v1/models", "/health", "/metrics", "/nowhere"):
            http.get(path)


def test_the_guard_sees_what_a_process_tries(outbound: Outbound) -> None:
    tries = [
        "import socket; socket.socket().connect_ex(('127.0.0.1', 9))",
        "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
        "import socket; socket.getaddrinfo('localhost', 80)",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/')",
        "import uvloop; uvloop.run(uvloop.new_event_loop().create_connection(object, '127.0.0.1', 9))",
    ]
    for number, code in enumerate(tries, 1):
        before = len(outbound.attempts())
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        assert len(outbound.attempts()) > before, code
        assert len(outbound.watched()) == number


def test_a_server_connects_to_nobody(outbound: Outbound) -> None:
    with fake_engine() as engine:
        assert engine.info.pid in outbound.watched()
        started = outbound.attempts()
        ask_all(engine)
        assert outbound.attempts() == started
    # Before it serves it looks its own address up, to bind it; and it says no goodbye to anybody.
    assert all(line.startswith("socket.getaddrinfo ('127.0.0.1'") for line in outbound.attempts())


@pytest.mark.slow
def test_a_server_with_a_model_connects_to_nobody(outbound: Outbound) -> None:
    embedded_folder()
    before = outbound.attempts()
    config = EngineConfig(pools=(PoolConfig(kv_tokens=2048),), server=ServerConfig(port=0, drain_s=5.0))
    with start_engine(config) as engine:
        assert engine.info.pid in outbound.watched()
        ask_all(engine)
    after = outbound.attempts()[len(before) :]
    assert all(line.startswith("socket.getaddrinfo ('127.0.0.1'") for line in after), after
