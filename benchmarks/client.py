"""How good is the replay client? Its error on known latencies, what it carries, a peer and the limit beside it.

Run from a checkout: `python benchmarks/client.py`. The servers run in processes of their own on this machine:
every figure includes their own sleep and scheduling errors, so it is an upper bound of the client's error. The
peer is aiohttp's client as benchmark scripts use it (a task a request, no limit on connections, a JSON decoded
a line, stamps where the task reads). The limit is a reader that looks for the end of an answer and nothing
else. All three send the same schedules to the same null server on the same kind of event loop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.fake_server import Program, fake_server  # noqa: E402 - needs the path above

from advisor.validation.client import body_of, open_client  # noqa: E402
from advisor.validation.loop import allow_connections, run  # noqa: E402
from advisor.validation.metrics import tpot_s, ttft_s  # noqa: E402
from advisor.validation.null_server import MODEL, Pace, null_server  # noqa: E402
from advisor.validation.record import Record  # noqa: E402
from advisor.validation.replay import Due, replay  # noqa: E402
from advisor.validation.roofline import LAG_LIMIT_S, lines, measure_client  # noqa: E402

TTFT_S, TPOT_S = 0.100, 0.020
TOKENS, GAP_S = 64, 0.025
STREAM_S, JUDGED_S = TOKENS * GAP_S, 1.5
KEPT = 0.95  # of the chunks that are due on average; how many fall in the judged time is chance
RATES = (80, 160, 320, 640)  # requests/s; 320 are 512 streams and 20,480 chunks/s


def schedule_of(rate: float, seconds: float, tokens: int) -> list[Due]:
    """Poisson arrivals of prompts of 200 tokens.

    At equal distances, arrivals and tokens of all streams would fall on the same instants and queue up.
    """
    body = body_of(MODEL, list(range(1000, 1200)), tokens)
    arrivals = np.cumsum(np.random.default_rng(0).exponential(size=int(rate * seconds)))
    return [
        Due(i, float(at_s), body, 200, tokens) for i, at_s in enumerate(arrivals * (seconds / arrivals[-1]))
    ]


def replayed(url: str, schedule: list[Due]) -> tuple[Record, ...]:
    """The records of our own client."""

    async def inside() -> tuple[Record, ...]:
        async with open_client(url) as client:
            return (await replay(schedule, client, tick=lambda _: None)).records

    return run(inside())


def accuracy() -> None:
    """Bias and P99 error at 50 requests/s. Targets: bias 2 ms, P99 error 5 ms."""
    with fake_server(Program(ttft_s=TTFT_S, tpot_s=TPOT_S)) as url:
        records = replayed(url, schedule_of(50, 10, 50))
    good = sum(record.status == "ok" for record in records)
    print(f"accuracy at 50 req/s of 50 tokens, TTFT 100 ms and TPOT 20 ms: {good} of {len(records)} ok")
    _print_error("TTFT", records, ttft_s, TTFT_S)
    _print_error("TPOT", records, tpot_s, TPOT_S)


def _print_error(
    name: str, records: tuple[Record, ...], metric: Callable[[Record], float | None], truth_s: float
) -> None:
    values = [value for record in records if (value := metric(record)) is not None]
    error_ms = (np.array(values) - truth_s) * 1e3
    p99, worst = np.percentile(np.abs(error_ms), 99), np.abs(error_ms).max()
    print(f"  {name}: bias {error_ms.mean():+.2f} ms, P99 error {p99:.2f} ms, worst {worst:.2f} ms")


@dataclass
class Sent:
    """What a client saw of one request: seconds after the start."""

    due_s: float
    send_s: float
    chunk_s: list[float]


@dataclass
class Seen:
    """What it saw of all, and the CPU time it took."""

    sent: list[Sent]
    cpu_s: float


def ours(url: str, schedule: list[Due]) -> Seen:
    """The replay client."""
    began = time.process_time()
    records = replayed(url, schedule)
    assert all(record.status == "ok" for record in records)
    sent = [Sent(record.t_sched, record.t_send or 0.0, list(record.t_chunk)) for record in records]
    return Seen(sent, time.process_time() - began)


def aiohttp_client(url: str, schedule: list[Due]) -> Seen:
    """The peer."""

    async def inside() -> list[Sent]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=60)
        ) as session:

            async def send(body: bytes, stamps: list[float]) -> None:
                async with session.post(f"{url}/v1/completions", data=body) as response:
                    async for line in response.content:
                        if line.startswith(b"data: {"):
                            at = time.perf_counter()
                            choices = json.loads(line[6:])["choices"]
                            if choices and choices[0]["token_ids"]:
                                stamps.append(at)

            return await _open_loop(schedule, send)

    began = time.process_time()
    return Seen(run(inside()), time.process_time() - began)


class _Raw(asyncio.Protocol):
    stamps: list[float]
    ended: asyncio.Future[None]

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.stamps.append(time.perf_counter())
        if data.endswith(b"0\r\n\r\n") and not self.ended.done():
            self.ended.set_result(None)


def raw_reader(url: str, schedule: list[Due]) -> Seen:
    """The limit: stamps what it reads, parses nothing."""
    parts = urlsplit(url)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"

    async def inside() -> list[Sent]:
        loop, idle = asyncio.get_running_loop(), list[_Raw]()

        async def send(body: bytes, stamps: list[float]) -> None:
            if idle:
                connection = idle.pop()
            else:
                _, connection = await loop.create_connection(_Raw, parts.hostname, parts.port)
            connection.stamps, connection.ended = stamps, loop.create_future()
            connection.transport.write(head % len(body) + body)
            await connection.ended
            del stamps[0]  # the head of the answer
            idle.append(connection)

        return await _open_loop(schedule, send)

    began = time.process_time()
    return Seen(run(inside()), time.process_time() - began)


async def _open_loop(schedule: list[Due], send: Callable[[bytes, list[float]], Awaitable[None]]) -> list[Sent]:
    start = time.perf_counter() + 0.2
    sent: list[Sent] = []

    async def one(due: Due) -> None:
        stamps: list[float] = []
        begun = time.perf_counter()
        await send(due.body, stamps)
        sent.append(Sent(due.at_s, begun - start, [stamp - start for stamp in stamps]))

    tasks = []
    for due in schedule:
        while (left := start + due.at_s - time.perf_counter()) > 0:
            await asyncio.sleep(max(left - 0.001, 0))
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    return sent


CLIENTS = {"ours": ours, "aiohttp": aiohttp_client, "limit": raw_reader}


def beside() -> None:
    """Ours, the peer and the limit at rising rates of paced chunks."""
    print(f"streams of {TOKENS} tokens {GAP_S * 1e3:.0f} ms apart, judged once they have built up:")
    held, per_chunk = dict.fromkeys(CLIENTS, 0.0), dict.fromkeys(CLIENTS, 0.0)
    with null_server(Pace(GAP_S, GAP_S)) as url:
        for rate in RATES:
            schedule = schedule_of(rate, STREAM_S + JUDGED_S, TOKENS)
            for name, client in CLIENTS.items():
                seen = client(url, schedule)
                chunks_per_s, lag_s, error_s = _judged(seen)
                per_chunk[name] = seen.cpu_s / (rate * (STREAM_S + JUDGED_S) * TOKENS)
                if lag_s <= LAG_LIMIT_S and chunks_per_s >= KEPT * rate * TOKENS:
                    held[name] = max(held[name], chunks_per_s)
                print(
                    f"  {rate:4d} req/s, {chunks_per_s:6.0f} chunks/s, {name:8s} "
                    f"lag P99 {lag_s * 1e3:7.2f} ms, gap error P99 {error_s * 1e3:6.2f} ms, "
                    f"CPU {per_chunk[name] * 1e6:5.1f} us a chunk"
                )
    for name in CLIENTS:
        print(
            f"  {name:8s} {held[name]:6.0f} chunks/s at send lag P99 <= {LAG_LIMIT_S * 1e3:.0f} ms, "
            f"CPU a chunk {per_chunk[name] / per_chunk['limit']:.2f} x the limit's"
        )


def _judged(seen: Seen) -> tuple[float, float, float]:
    """Chunks/s, P99 of send lag, P99 of what gaps are off by; of the time after the streams have built up."""
    begin_s, end_s = STREAM_S, STREAM_S + JUDGED_S
    chunks = sum(begin_s <= stamp <= end_s for one in seen.sent for stamp in one.chunk_s)
    lags = [one.send_s - one.due_s for one in seen.sent if one.due_s >= begin_s]
    gaps = np.concatenate([np.diff(one.chunk_s) for one in seen.sent if one.due_s >= begin_s])
    return chunks / JUDGED_S, float(np.percentile(lags, 99)), float(np.percentile(np.abs(gaps - GAP_S), 99))


if __name__ == "__main__":
    allow_connections()
    accuracy()
    print("\n".join(lines(measure_client())))
    beside()
