"""A fake OpenAI completion server with programmed latencies and faults, in its own process.

Latencies are programmed absolutely from the arrival of a request, so they do not drift. Requests are counted in
order of arrival without the first, which is the client's probe; faults name the counts they fall on.
Run as a script with one JSON argument (the fields of `Program`); prints its port.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from aiohttp import web


@dataclass
class Program:
    """What the server does. A fault falls on request i where i % 10 is in its list."""

    ttft_s: float = 0.1
    tpot_s: float = 0.02
    tokens_per_chunk: int = 1
    error_on: list[int] = field(default_factory=list)  # 500
    busy_on: list[int] = field(default_factory=list)  # 429
    cut_on: list[int] = field(default_factory=list)  # cut after half the tokens; every other one ends politely
    short_on: list[int] = field(default_factory=list)  # one token less than asked
    hang_on: list[int] = field(default_factory=list)  # never answers
    slow_first_on: list[int] = field(default_factory=list)  # TTFT x 10
    slow_rest_on: list[int] = field(default_factory=list)  # TPOT x 10
    freeze_at: int | None = None  # the whole process stands still when this request comes
    freeze_s: float = 0.0
    refuse: bool = False  # 400 to every completion
    health: dict = field(default_factory=lambda: {"status": "ok"})
    metrics: list[str] = field(default_factory=list)  # the pages, one a look, the last again and again
    max_model_len: int = 8192
    vocab_size: int = 49152


class _Server:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.count = -1

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/v1/completions", self.completions)
        return app

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response(self.program.health)

    async def metrics(self, _: web.Request) -> web.Response:
        pages = self.program.metrics
        if not pages:
            return web.Response(status=404)
        return web.Response(text=pages.pop(0) if len(pages) > 1 else pages[0])

    async def models(self, _: web.Request) -> web.Response:
        model = {"id": "fake", "object": "model", "max_model_len": self.program.max_model_len}
        return web.json_response({"data": [model | {"vocab_size": self.program.vocab_size}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        arrived = time.monotonic()
        body = json.loads(await request.read())
        index, program = self.count, self.program
        self.count += 1
        last_digit = index % 10 if index >= 0 else None
        if index == program.freeze_at:
            time.sleep(program.freeze_s)
        if program.refuse:
            return web.json_response({"error": {"message": "no"}}, status=400)
        if last_digit in program.error_on:
            return web.json_response({"error": {"message": "broken"}}, status=500)
        if last_digit in program.busy_on:
            return web.json_response({"error": {"message": "busy"}}, status=429)
        if last_digit in program.hang_on:
            await asyncio.sleep(3600)
        return await self.stream(request, body, arrived, index)

    async def stream(self, request: web.Request, body: dict, arrived: float, index: int) -> web.StreamResponse:
        program = self.program
        last_digit = index % 10 if index >= 0 else None
        ttft = program.ttft_s * (10 if last_digit in program.slow_first_on else 1)
        tpot = program.tpot_s * (10 if last_digit in program.slow_rest_on else 1)
        tokens = body["max_tokens"] - (last_digit in program.short_on)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent = 0
        while sent < tokens:
            if last_digit in program.cut_on and sent >= tokens / 2:
                if index % 20 < 10:
                    request.transport.abort()
                return response
            take = min(program.tokens_per_chunk, tokens - sent)
            # A chunk comes when its last token is ready.
            due = arrived + ttft + (sent + take - 1) * tpot
            # A timer of the loop is up to 1 ms late; the first token is made exact by turns of the loop.
            early = 0.001 if sent == 0 else 0.0
            while (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(max(wait - early, 0))
            await response.write(_event({"choices": [{"text": "x", "token_ids": [7] * take}]}))
            sent += take
        await response.write(_event({"choices": [{"text": "", "finish_reason": "length"}]}))
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens}
        details = {"prompt_tokens_details": {"cached_tokens": 0}}
        await response.write(_event({"choices": [], "usage": usage | details}) + b"data: [DONE]\n\n")
        return response


def _event(body: dict) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


@contextmanager
def fake_server(program: Program) -> Iterator[str]:
    """Run the server in a process of its own; gives its URL."""
    argv = [sys.executable, str(Path(__file__).resolve()), json.dumps(asdict(program))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def _main() -> None:
    program = Program(**json.loads(sys.argv[1]))
    runner = web.AppRunner(_Server(program).app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201 - the port is this script's output
    await asyncio.sleep(float("inf"))


if __name__ == "__main__":
    asyncio.run(_main())
