"""How good is the replay client? Its error on a server with known latencies, and how much it can carry.

Run from a checkout: `python benchmarks/client.py`. The servers run in processes of their own on this machine:
every figure includes their own sleep and scheduling errors, so it is an upper bound of the client's error.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from helpers.fake_server import Program, fake_server  # noqa: E402 - needs the path above

from advisor.validation.client import body_of, open_client  # noqa: E402
from advisor.validation.metrics import tpot_s, ttft_s  # noqa: E402
from advisor.validation.record import Record  # noqa: E402
from advisor.validation.replay import Due, replay  # noqa: E402

TTFT_S, TPOT_S = 0.100, 0.020
LAG_TARGET_S = 0.005


def run(url: str, rate: float, seconds: float, output_tokens: int) -> tuple[Record, ...]:
    """An open-loop run of prompts of 200 tokens with Poisson arrivals.

    At equal distances, arrivals and tokens of all streams would fall on the same instants and queue up.
    """
    body = body_of("fake", list(range(1000, 1200)), output_tokens)
    arrivals = np.cumsum(np.random.default_rng(0).exponential(size=int(rate * seconds)))
    arrivals *= seconds / arrivals[-1]
    schedule = [Due(i, float(at_s), body, 200, output_tokens) for i, at_s in enumerate(arrivals)]

    async def inside() -> tuple[Record, ...]:
        async with open_client(url) as client:
            return (await replay(schedule, client, tick=lambda _: None)).records

    return asyncio.run(inside())


def accuracy() -> None:
    """Bias and P99 error at 50 requests/s. Targets: bias 2 ms, P99 error 5 ms."""
    with fake_server(Program(ttft_s=TTFT_S, tpot_s=TPOT_S)) as url:
        records = run(url, rate=50, seconds=10, output_tokens=50)
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


def capacity(name: str, program: Program, output_tokens: int, rates: tuple[int, ...]) -> None:
    """Send lag at rising rates, and the largest rate at which its P99 is within 5 ms."""
    print(f"capacity, {name}:")
    held = 0
    with fake_server(program) as url:
        for rate in rates:
            records = run(url, rate, seconds=5, output_tokens=output_tokens)
            lag_s = np.percentile([(record.t_send or np.inf) - record.t_sched for record in records], 99)
            chunks = sum(len(record.t_chunk) for record in records) / max(r.t_done or 0.0 for r in records)
            print(f"  {rate:4d} req/s, {chunks:6.0f} chunks/s: send lag P99 {lag_s * 1e3:.2f} ms")
            held = rate if lag_s <= LAG_TARGET_S else held
    print(f"  largest rate with send lag P99 <= 5 ms: {held} req/s")


if __name__ == "__main__":
    accuracy()
    capacity("one token, answered at once", Program(0, 0), 1, (100, 300, 500, 700, 900, 1100))
    capacity("64 tokens, answered at once", Program(0, 0), 64, (50, 100, 200, 300, 400, 500, 600))
    capacity("64 tokens, 5 ms apart", Program(0, 0.005), 64, (25, 50, 75, 100, 150, 200))
