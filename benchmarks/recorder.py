"""What the recorder costs a service: the same application with and without it, in turns, in one run.

For prompts of 1, 10 and 100 kB: the median and P99 time of a request through the application alone and through
the recorder in front of it, and the processor time that the recorder takes in all, with the thread that hashes
and writes. Requests go straight into the application, so that no network hides the difference; its answer takes
no time to make. One arrives every millisecond and the thread works meanwhile, as in a busy service.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from advisor.logs.recorder import Recorder

SIZES = (1_000, 10_000, 100_000)
BATCH = 100  # requests one way, then the other
ROUNDS = 10
PAUSE_S = 1e-3
CHAT = "/v1/chat/completions"


async def answer(request: Request) -> Response:
    """A chat completion, as a gateway gives it: the request is parsed, the answer counts its tokens."""
    body = await request.json()
    length = sum(len(message["content"]) for message in body["messages"]) // 4
    usage = {"prompt_tokens": length, "completion_tokens": 20, "total_tokens": length + 20}
    return JSONResponse({"model": "m", "choices": [{"message": {"content": "x" * 80}}], "usage": usage})


def make_bodies(size: int) -> list[bytes]:
    """Chats of `size` bytes of text; half of each is a system prompt that all share."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5000)]

    def text(count: int) -> str:
        return " ".join(rng.choices(words, k=count // 4))[:count]

    system = text(size // 2)
    return [
        json.dumps(
            {
                "model": "m",
                "messages": [
                    {"role": "system", "content": system},
                    {"role": "user", "content": text(size // 2)},
                ],
            }
        ).encode()
        for _ in range(BATCH)
    ]


async def call(app: Any, body: bytes) -> float:
    """One request through an application; its time in seconds."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    headers = [(b"authorization", b"Bearer key"), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": "POST", "path": CHAT, "root_path": "", "scheme": "http", "query_string": b"",
        "headers": headers, "client": ("here", 1), "server": ("here", 80), "http_version": "1.1",
    }  # fmt: skip
    start = time.perf_counter()
    await app(scope, receive, send)
    return time.perf_counter() - start


def run(app: Any, bodies: list[bytes], recorder: Recorder | None) -> tuple[list[float], float]:
    """Seconds of each request, and processor seconds of a request until the last row is written."""

    async def all_of_them() -> list[float]:
        times = []
        for body in bodies:
            times.append(await call(app, body))
            await asyncio.sleep(PAUSE_S)
        return times

    start = time.process_time()
    times = asyncio.run(all_of_them())
    if recorder is not None:
        recorder.writer.close(60.0)
    return times, (time.process_time() - start) / len(bodies)


def main() -> None:
    """Print a row for each size."""
    print("microseconds a request      alone P50 / P99   recorded P50 / P99   processor in all   bytes written")
    for size in SIZES:
        bodies = make_bodies(size)
        app = Starlette(routes=[Route(CHAT, answer, methods=["POST"])])
        times: tuple[list[float], list[float]] = ([], [])
        used = [0.0, 0.0]
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(ROUNDS):
                recorder = Recorder(app, Path(folder) / "trace.jsonl")
                for place, target in enumerate((app, recorder)):
                    taken, processor = run(target, bodies, recorder if place else None)
                    times[place].extend(taken)
                    used[place] += processor / ROUNDS
            written = sum(file.stat().st_size for file in Path(folder).iterdir()) / (ROUNDS * BATCH)
        alone, recorded = (np.percentile(taken, (50, 99)) * 1e6 for taken in times)
        in_all = (used[1] - used[0]) * 1e6
        figures = (
            f"{alone[0]:>10.0f} / {alone[1]:<6.0f}{recorded[0]:>10.0f} / {recorded[1]:<9.0f}{in_all:>12.0f}"
        )
        print(f"{size:>7,} bytes of prompt {figures}{written:>16.0f}")


if __name__ == "__main__":
    main()
