"""A fake OpenAI completion server with programmed latencies and faults, in its own process.

Latencies are programmed absolutely from the arrival of a request, so they do not drift. Requests are counted in
order of arrival without the client's probes, the first request where none says that it is one; faults name the
counts they fall on.
Run as a script with one JSON argument (the fields of `Program`); prints its port.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
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
    # What other servers are like.
    card: dict = field(default_factory=dict)  # over the model's entry in /v1/models; null takes a field away
    more_models: list[dict] = field(default_factory=list)
    pages: dict[str, dict] = field(default_factory=dict)  # further GET paths
    server: str | None = None  # the Server header
    api_key: str | None = None
    no_ids: bool = False  # 400 to a prompt of token ids, as Ollama
    no_completions: bool = False  # 404 there
    chat: bool = False  # /v1/chat/completions exists
    template_tokens: int = 0  # that chat adds
    long_word: int | None = None  # words with more letters are two tokens
    refuses: list[str] = field(default_factory=list)  # 400 to these fields
    names_refused: bool = True
    echoes: bool = False  # the whole request in the refusal, as FastAPI's validation does
    streams: bool = True
    usage: bool = True
    counts: int | None = None  # prompt tokens of every usage, whatever was sent
    cached: str = "always"  # in usage; "hits": only where not zero, as vLLM; "never"
    ids: bool = True  # of the answer
    forces_length: bool = True  # else chat ends by itself after 3 tokens


class _Server:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.count = -1
        self.seen: set[str] = set()  # prompts, for `cached`

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        for path, content in self.program.pages.items():
            app.router.add_get(path, _page(content))
        app.on_response_prepare.append(self.name)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        if not self.program.no_completions:
            app.router.add_post("/v1/completions", self.completions)
        if self.program.chat:
            app.router.add_post("/v1/chat/completions", self.completions)
        return app

    async def name(self, _: web.Request, response: web.StreamResponse) -> None:
        if self.program.server is not None:
            response.headers["Server"] = self.program.server

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response(self.program.health)

    async def metrics(self, request: web.Request) -> web.Response:
        pages = self.program.metrics
        if not pages:
            return web.Response(status=404)
        takes = len(pages) > 1 and not _is_probe(request)
        return web.Response(text=pages.pop(0) if takes else pages[0])

    async def models(self, request: web.Request) -> web.Response:
        if not self.knows(request):
            return web.json_response({"error": {"message": "who?"}}, status=401)
        model = {"id": "fake", "object": "model", "max_model_len": self.program.max_model_len}
        model |= {"vocab_size": self.program.vocab_size} | self.program.card
        model = {key: value for key, value in model.items() if value is not None}
        return web.json_response({"data": [model, *self.program.more_models]})

    def knows(self, request: web.Request) -> bool:
        key = self.program.api_key
        return key is None or request.headers.get("Authorization") == f"Bearer {key}"

    async def completions(self, request: web.Request) -> web.StreamResponse:
        arrived = time.monotonic()
        body = json.loads(await request.read())
        if _is_probe(request):
            self.count = max(self.count, 0)
            return await self.probed(request, body, arrived)
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

    async def probed(self, request: web.Request, body: dict, arrived: float) -> web.StreamResponse:
        program = self.program
        refused = [name for name in program.refuses if name in body]
        if not self.knows(request):
            return web.json_response({"error": {"message": "who?"}}, status=401)
        if program.refuse or (program.no_ids and isinstance(body.get("prompt"), list)):
            return web.json_response({"error": {"message": "no"}}, status=400)
        if refused:
            message = f"Unrecognized arguments: {', '.join(refused)}" if program.names_refused else "no"
            message += json.dumps(body) if program.echoes else ""
            return web.json_response({"error": {"message": message}}, status=400)
        if not program.streams:
            return web.json_response({"choices": [{"text": "x"}]})
        return await self.stream(request, body, arrived, -1)

    async def stream(self, request: web.Request, body: dict, arrived: float, index: int) -> web.StreamResponse:
        program = self.program
        last_digit = index % 10 if index >= 0 else None
        ttft = program.ttft_s * (10 if last_digit in program.slow_first_on else 1)
        tpot = program.tpot_s * (10 if last_digit in program.slow_rest_on else 1)
        tokens = (body.get("max_tokens") or body["max_completion_tokens"]) - (last_digit in program.short_on)
        is_chat = "messages" in body
        if is_chat and not program.forces_length:
            tokens = min(tokens, 3)
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
            choice = {"delta": {"content": "x"}} if is_chat else {"text": "x"}
            ids = {"token_ids": [7] * take} if program.ids else {}
            await response.write(_event({"choices": [choice | ids]}))
            sent += take
        await response.write(_event({"choices": [{"text": "", "finish_reason": "length"}]}))
        usage = b""
        if program.usage and "stream_options" not in program.refuses:
            counts = {"prompt_tokens": self.prompt_tokens(body), "completion_tokens": tokens}
            usage = _event({"choices": [], "usage": counts | self.cached(body)})
        await response.write(usage + b"data: [DONE]\n\n")
        return response

    def prompt_tokens(self, body: dict) -> int:
        if self.program.counts is not None:
            return self.program.counts
        if isinstance(body.get("prompt"), list):
            return len(body["prompt"])
        is_chat = "messages" in body
        text = body["messages"][0]["content"] if is_chat else body["prompt"]
        longest = 10**9 if self.program.long_word is None else self.program.long_word
        words = sum(1 + (len(word) > longest) for word in text.split())
        return words + (self.program.template_tokens if is_chat else 0)

    def cached(self, body: dict) -> dict:
        how, hit = self.program.cached, 0
        if how == "hits":
            prompt = json.dumps(body.get("prompt") or body["messages"])
            hit = self.prompt_tokens(body) - 1 if prompt in self.seen else 0
            self.seen.add(prompt)
        if how == "never" or (how == "hits" and not hit):
            return {}
        return {"prompt_tokens_details": {"cached_tokens": hit}}


def _is_probe(request: web.Request) -> bool:
    """Whether it is not of the load: the advisor's probes say so."""
    return request.headers.get("User-Agent") == "advise-probe"


def _page(content: dict) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(content)

    return answer


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


@asynccontextmanager
async def serving(program: Program) -> AsyncIterator[str]:
    """Run the server in this event loop, for tests that measure no time; gives its URL."""
    runner = web.AppRunner(_Server(program).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _main() -> None:
    async with serving(Program(**json.loads(sys.argv[1]))) as url:
        print(url.rpartition(":")[2], flush=True)  # noqa: T201 - the port is this script's output
        await asyncio.sleep(float("inf"))


if __name__ == "__main__":
    asyncio.run(_main())
