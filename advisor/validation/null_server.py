"""A server that computes nothing: what a replay client reaches against it is the client's own limit.

`python -m advisor.validation.null_server [TTFT_S [GAP_S]]` prints its port and serves on 127.0.0.1 until its
standard input ends, so that none outlives who started it. It answers `/health`, with its own CPU seconds, and
`/v1/models`; any POST gets `max_tokens` chunks of one token, the first TTFT_S after the request and each next
GAP_S later (0: all in one write). Chunks are bytes made beforehand. Owns no state but its connections. For
this machine and measuring only: it reads requests as our own client writes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from advisor.validation.loop import allow_connections, new_event_loop

MODEL = "null"
_BACKLOG = 4096
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": *(\d+)')
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_USAGE = b'{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}'


def chunk(data: bytes) -> bytes:
    """`data` as a chunk of HTTP."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(json: bytes) -> bytes:
    return b"data: " + json + b"\n\n"


def token_event(tokens: int) -> bytes:
    """An event of so many tokens, with the fields of a vLLM chunk: as dear to read as elsewhere."""
    return _event(
        b'{"id":"cmpl-00000000000000000000000000000000","object":"text_completion","created":1700000000,'
        b'"model":"null","choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null,'
        b'"stop_reason":null,"token_ids":[%b]}],"usage":null}' % b",".join([b"7"] * tokens)
    )


_TOKEN = chunk(token_event(1))
_END = chunk(_event(b'{"choices":[{"index":0,"text":"","finish_reason":"length","token_ids":[]}]}'))
_DONE = chunk(_event(b"[DONE]")) + b"0\r\n\r\n"


def answer_end(request: bytes) -> tuple[int, bytes]:
    """How many tokens the request asks for, and what an answer with all of them ends with."""
    asked = _TOKENS.search(request)
    tokens, prompt = int(asked[1]) if asked else 1, _prompt_tokens(request)
    return tokens, _END + chunk(_event(_USAGE % (prompt, tokens, prompt + tokens))) + _DONE


@dataclass(frozen=True, slots=True)
class Pace:
    """When the chunks of an answer are due, seconds after its request."""

    ttft_s: float = 0.0
    gap_s: float = 0.0


class NullProtocol(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._got = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without being derived from it

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the loop's signature
        """Whoever asked has gone."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Answer once the request is whole."""
        self._got = self._got + data if self._got else data
        head_end = self._got.find(b"\r\n\r\n")
        if head_end < 0:
            return
        length = _LENGTH.search(self._got, 0, head_end)
        end = head_end + 4 + (int(length[1]) if length else 0)
        if len(self._got) < end:
            return
        request, self._got = self._got[:end], self._got[end:]
        self.answer(request)

    def answer(self, request: bytes) -> None:
        """Begin the answer to a whole request."""
        if request.startswith(b"GET /v1/models"):
            self._json(b'{"object":"list","data":[{"id":"null","object":"model","max_model_len":1048576}]}')
        elif request.startswith(b"GET"):
            self._json(b'{"status":"ok","cpu_s":%.6f}' % time.process_time())
        else:
            self.stream(request)

    def stream(self, request: bytes) -> None:
        """The tokens asked for, at their times."""
        tokens, tail = answer_end(request)
        if self._pace.ttft_s == self._pace.gap_s == 0:
            self.write(HEAD + _TOKEN * tokens + tail)
            return
        loop = asyncio.get_running_loop()
        first = loop.time() + self._pace.ttft_s
        self.write(HEAD)
        loop.call_at(first, self._token, loop, first, 0, tokens, tail)

    def _token(
        self, loop: asyncio.AbstractEventLoop, first: float, number: int, tokens: int, tail: bytes
    ) -> None:
        if number + 1 == tokens:
            self.write(_TOKEN + tail)
            return
        self.write(_TOKEN)
        if self._transport is not None:
            due = first + (number + 1) * self._pace.gap_s
            loop.call_at(due, self._token, loop, first, number + 1, tokens, tail)

    def write(self, data: bytes) -> None:
        """To the client, where it is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def hang_up(self) -> None:
        """Close the connection, whatever was promised."""
        if self._transport is not None:
            self._transport.abort()

    def _json(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.write(head + body)


def _prompt_tokens(request: bytes) -> int:
    """How many ids the prompt has; 0 where it is text."""
    start = request.find(b'"prompt":[')
    return 0 if start < 0 else request.count(b",", start, request.find(b"]", start)) + 1


@contextmanager
def null_server(pace: Pace | None = None) -> Iterator[str]:
    """One in a process of its own; gives its URL."""
    pace = pace or Pace()
    argv = [sys.executable, "-m", "advisor.validation.null_server", str(pace.ttft_s), str(pace.gap_s)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None  # noqa: S101 - as asked for above
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def _serve(pace: Pace) -> None:
    allow_connections()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: NullProtocol(pace), "127.0.0.1", 0, backlog=_BACKLOG)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.buffer.read)  # until who started it has gone


def main() -> None:
    """Serve until standard input ends."""
    pace = Pace(*(float(value) for value in sys.argv[1:]))
    with asyncio.Runner(loop_factory=new_event_loop) as runner, contextlib.suppress(KeyboardInterrupt):
        runner.run(_serve(pace))


if __name__ == "__main__":
    main()
