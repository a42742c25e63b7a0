"""What the request log costs the router: a row of a prompt of 1,000, 8,000 and 32,000 tokens.

`put` is what the router's own thread does, `row` what the log's thread does for it (digests, JSON, the write),
beside `parse`: what the same request costs the router anyway, to read its body of token ids. Medians of many,
in turns; microseconds of processor time. `python -m benchmarks.request_log`
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec

from engine.request_log import Ended, RequestLog, Rows
from engine.server.bodies import CompletionBody, parse

LENGTHS = (1_000, 8_000, 32_000)
ROUNDS = 60


def prompts_of(length: int) -> list[tuple[int, ...]]:
    """Prompts of which each shares a half with all others."""
    rng = random.Random(0)
    shared = [rng.randrange(32_000) for _ in range(length // 2)]
    return [tuple(shared + [rng.randrange(32_000) for _ in range(length // 2)]) for _ in range(ROUNDS)]


def processor_us(work: Callable[[], object]) -> float:
    """Processor time of this thread, microseconds."""
    start = time.thread_time()
    work()
    return (time.thread_time() - start) * 1e6


def measure(length: int, folder: Path) -> tuple[float, float, float]:
    """Medians of put, row and parse."""
    rows, encode = Rows("model", wall_s=time.time()), msgspec.json.Encoder().encode
    log = RequestLog(folder / f"{length}.jsonl", "model", clock=time.monotonic)
    put, row, read = [], [], []
    with (folder / f"{length}.rows").open("ab", buffering=0) as file:
        for prompt in prompts_of(length):
            ended = Ended(prompt, "m", 1.0, "ok", outputs=100, cached_tokens=0, ttft_s=0.1, e2e_s=1.0)
            body = msgspec.json.encode({"prompt": prompt, "max_tokens": 100})
            read.append(processor_us(lambda body=body: parse(CompletionBody, body)))  # type: ignore[misc]
            row.append(processor_us(lambda ended=ended: file.write(encode(rows.make(ended)) + b"\n")))  # type: ignore[misc]
            put.append(processor_us(lambda ended=ended: log.put(ended)))  # type: ignore[misc]
    log.close()
    return median(put), median(row), median(read)


def main() -> None:
    """Print the table."""
    print("| prompt tokens | put, µs | row, µs | parse, µs |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for length in LENGTHS:
            put, row, read = measure(length, Path(folder))
            print(f"| {length:,} | {put:.0f} | {row:,.0f} | {read:,.0f} |")


if __name__ == "__main__":
    main()
