"""A chat service in memory behind a recorder, what to ask it, and the rows that are left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from advisor.logs.recorder import Recorder

CANARY = "canary-7f3a"
CHAT = "/v1/chat/completions"
Handler = Callable[[Request], Any]


def words_of(body: dict[str, Any]) -> int:
    """Words of all messages."""
    return sum(len(message["content"].split()) for message in body["messages"])


async def answer(request: Request) -> Response:
    """A chat completion whose usage counts words; a stream where asked, with usage where asked."""
    body = await request.json()
    usage = {"prompt_tokens": words_of(body), "completion_tokens": 3, "total_tokens": words_of(body) + 3}
    if not body.get("stream"):
        message = {"role": "assistant", "content": f"{CANARY} one two"}
        return JSONResponse({"model": body["model"], "choices": [{"message": message}], "usage": usage})

    async def events() -> AsyncIterator[str]:
        yield event({"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": None})
        await asyncio.sleep(0.02)
        for word in (CANARY, "one", "two"):
            yield event({"choices": [{"delta": {"content": word}}], "usage": None})
        if (body.get("stream_options") or {}).get("include_usage"):
            yield event({"choices": [], "usage": usage})
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def event(document: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(document)}\n\n"


def service(path: Path, handler: Handler = answer, **options: Any) -> tuple[Starlette, Recorder]:
    """The application behind a recorder, with the recorder."""
    app = Starlette(routes=[Route(CHAT, handler, methods=["POST"]), Route("/health", lambda _: Response("up"))])
    recorder = Recorder(app, path, **options)
    return app, recorder


def ask(recorder: Recorder, *bodies: Any, headers: dict[str, str] | None = None) -> list[httpx2.Response]:
    """Send requests one after another, and close the recorder."""

    async def send() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(app=recorder, raise_app_exceptions=False)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            return [
                await client.post(
                    CHAT, content=body if isinstance(body, bytes) else json.dumps(body), headers=headers
                )
                for body in bodies
            ]

    responses = asyncio.run(send())
    recorder.writer.close()
    return responses


def chat(text: str, **more: Any) -> dict[str, Any]:
    """A request of one message."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def rows(path: Path) -> list[dict[str, Any]]:
    """What was written."""
    return [json.loads(line) for line in path.read_text().splitlines()]
