"""Two HTTP servers that write down what a router asks of them, and answer as a split's two sides do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

# Carried as they are, whatever they are: what vLLM's connector gives, and a field of nobody's.
GIVEN = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "e1",
    "remote_block_ids": [],
    "remote_host": None,
    "remote_port": None,
    "advise": "A-_=",
    "unknown": {"a": [1, None, 2**60]},
}


class Call(NamedTuple):
    """One request: `server` is prefill or decode."""

    server: str
    path: str
    headers: dict[str, str]
    body: Any


@contextmanager
def recording(calls: list[Call]) -> Iterator[tuple[str, str]]:
    """The URLs of both, while they run."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(name, calls)) for name in ("prefill", "decode")]
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    try:
        prefill, decode = (f"http://127.0.0.1:{server.server_port}" for server in servers)
        yield prefill, decode
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(name: str, calls: list[Call]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            calls.append(Call(name, self.path, dict(self.headers), None))
            self._answer(200 if self.path == "/health" else 404, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            calls.append(Call(name, self.path, dict(self.headers), body))
            choice = {"index": 0, "text": name, "finish_reason": "length"}
            answer = {"id": name, "object": "text_completion", "choices": [choice]}
            if name == "prefill":
                answer["kv_transfer_params"] = GIVEN
            self._answer(404 if self.path.endswith("/render") else 200, answer)

        def _answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
