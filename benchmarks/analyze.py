"""How fast and in how little memory `advise analyze` measures large logs, beside bare parsing of the same file.

Three generated logs: (a) a million requests with 20 block ids each, half of them new, in Mooncake's form; (b)
1 GB of OpenAI-style chats; (c) 20,000 chats in a gateway's CSV, also profiled by llmtrafficlens where it is
installed (`--lens PROGRAM`). Times are of whole processes; memory is the peak of the summed resident sizes of
a process and its children. `python -m benchmarks.analyze [a] [b] [c]`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

START = 1_789_372_800  # 2026-09-14 08:00:00 UTC
BLOCK_ROWS = 1_000_000
CHAT_BYTES = 1_000_000_000
CSV_ROWS = 20_000
POLL_S = 0.05
READ = "import sys; from advisor.logs.read import read; read(sys.argv[1:])"


def block_log(path: Path) -> None:
    """Mooncake's form: 20 blocks a request, the first ten shared by all."""
    rng = random.Random(0)
    with path.open("w") as file:
        for i in range(BLOCK_ROWS):
            ids = [*range(10), *range(10 + 10 * i, 20 + 10 * i)]
            file.write(
                f'{{"timestamp": {i * 50}, "input_length": 10200, "output_length": {rng.randint(1, 500)}, '
            )
            file.write(f'"hash_ids": {ids}}}\n')


def chats(rng: random.Random) -> Iterator[list[dict[str, str]]]:
    """Messages of call after call: five system prompts, 200 chats at a time that grow by a turn a call."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(5000)]
    pool = " ".join(rng.choices(words, k=200_000))

    def text(least: int, most: int) -> str:
        length = rng.randint(least, most)
        start = rng.randrange(len(pool) - length)
        return pool[start : start + length]

    systems = [text(1500, 4000) for _ in range(5)]
    running: list[list[dict[str, str]]] = []
    while True:
        if len(running) < 200 or rng.random() < 0.2:
            running.append([{"role": "system", "content": rng.choice(systems)}])
            if len(running) > 200:
                running.pop(rng.randrange(200))
        messages = rng.choice(running)
        messages.append({"role": "user", "content": text(100, 900)})
        yield messages
        messages.append({"role": "assistant", "content": text(200, 1200)})


def usage(messages: list[dict[str, str]], rng: random.Random) -> dict[str, int]:
    """Counts as a model with four characters a token gives them."""
    characters = sum(len(message["content"]) for message in messages)
    return {"prompt_tokens": characters // 4 + 4 * len(messages), "completion_tokens": rng.randint(10, 300)}


def chat_log(path: Path) -> None:
    """Requests and responses, a line each."""
    rng = random.Random(0)
    size = 0
    with path.open("w") as file:
        for i, messages in enumerate(chats(rng)):
            row = {
                "timestamp": START + i * 0.05,
                "latency_ms": rng.randint(100, 3000),
                "request": {"model": "m", "messages": messages, "temperature": 0.7},
                "response": {"id": f"r{i}", "usage": usage(messages, rng)},
            }
            size += file.write(json.dumps(row) + "\n")
            if size >= CHAT_BYTES:
                return


def gateway_csv(path: Path) -> None:
    """The same chats with requests and responses as JSON in cells: about 72 MB of text."""
    rng = random.Random(0)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["timestamp", "request_json", "response_json"])
        for i, messages in enumerate(chats(rng)):
            if i == CSV_ROWS:
                return
            if len(messages) > 8:  # the gateway's clients keep the last turns
                messages = [messages[0], *messages[-7:]]
            request = json.dumps({"model": "m", "messages": messages})
            out.writerow([START + i, request, json.dumps({"usage": usage(messages, rng)})])


def parse_json(path: Path) -> None:
    """Decode every line, untyped, on one core."""
    decode = msgspec.json.Decoder().decode
    with path.open("rb") as file:
        for line in file:
            decode(line)


def parse_csv(path: Path) -> None:
    """Split every row."""
    csv.field_size_limit(1 << 30)
    with path.open(newline="") as file:
        for _ in csv.reader(file):
            pass


def family(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from family(int(child))


def memory(pid: int) -> int:
    """Resident bytes of a process and its descendants, pages that they share counted for each; 0 off Linux."""
    total = 0
    for one in family(pid):
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
    return total


def run(argv: list[str], out: Path) -> tuple[float, int]:
    """Seconds that a program took, and its peak memory in bytes. Its output goes to a file."""
    start = time.perf_counter()
    peak = before = 0
    with out.open("wb") as file, subprocess.Popen(argv, stdout=file, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            now = memory(process.pid)
            # Of two samples the smaller: a child that is about to start a program is its parent once more.
            peak, before = max(peak, min(before, now)), now
            time.sleep(POLL_S)
    if process.returncode:
        raise SystemExit(f"{argv[0]} failed with status {process.returncode}")
    return time.perf_counter() - start, peak


def timed(bare: Callable[[Path], None], path: Path) -> float:
    """Seconds of bare parsing."""
    start = time.perf_counter()
    bare(path)
    return time.perf_counter() - start


def show(name: str, path: Path, bare: Callable[[Path], None]) -> tuple[float, dict[str, Any]]:
    """Print one row; gives the seconds of analyze and what it measured."""
    limit = timed(bare, path)
    out = path.with_suffix(".out")
    argv = [sys.executable, "-m", "advisor", "analyze", str(path), "--no-plan", "--json"]
    took, peak = run(argv, out)
    report: dict[str, Any] = json.loads(out.read_text())
    read_s, read_peak = run([sys.executable, "-c", READ, str(path)], out)
    rows, megabytes = report["log"]["requests"], path.stat().st_size / 1e6
    print(
        f"{name:<22} {rows:>9,} rows {megabytes:>6,.0f} MB   {took:5.1f} s  {rows / took:>9,.0f} lines/s "
        f"{megabytes / took:>5,.0f} MB/s  {peak / 1e6:>5,.0f} MB peak   "
        f"bare {limit:4.1f} s, ratio {took / limit:.1f}",
        f"{'  reading alone':<22} {'':>27} {read_s:5.1f} s  {rows / read_s:>9,.0f} lines/s "
        f"{megabytes / read_s:>5,.0f} MB/s  {read_peak / 1e6:>5,.0f} MB peak   "
        f"{'':>11} ratio {read_s / limit:.1f}",
        sep="\n",
        flush=True,
    )
    return took, report


def against_lens(program: str | None, path: Path, ours_s: float, report: dict[str, Any]) -> None:
    """Profile the same CSV with llmtrafficlens, from a cold cache as we do, in blocks of 16 tokens as we do."""
    if program is None:
        print(
            "  llmtrafficlens: not found; pip install it into an environment and name its program with --lens"
        )
        return
    result = path.with_name("lens")
    argv = [
        program,
        "profile",
        str(path),
        "--warmup",
        "0",
        "--salt-file",
        str(path.with_name("salt")),
        "-o",
        str(result),
    ]
    took, peak = run(argv, path.with_name("lens.out"))
    text = path.with_name("lens.out").read_text()
    ceiling = next(line.split("%")[0].split()[-1] for line in text.splitlines() if "ceiling" in line)
    print(
        f"  llmtrafficlens       {took:5.1f} s, {took / ours_s:.1f} times as long, {peak / 1e6:,.0f} MB peak; "
        f"hit rate {ceiling} %, ours {report['sharing']['hit_rate_tokens']:.1%}"
    )


def main() -> None:
    """Print a row for each log asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("logs", nargs="*", choices=[[], "a", "b", "c"], default=[])
    parser.add_argument("--lens", default=shutil.which("llmtrafficlens"))
    asked = parser.parse_args()
    wanted = asked.logs or ["a", "b", "c"]
    print(f"{os.cpu_count()} cores; times of whole processes, bare parsing on one core")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "log"
        if "a" in wanted:
            block_log(path)
            show("(a) block ids, JSONL", path, parse_json)
        if "b" in wanted:
            chat_log(path)
            show("(b) chats, JSONL", path, parse_json)
        if "c" in wanted:
            path = path.with_suffix(".csv")
            gateway_csv(path)
            took, report = show("(c) chats, CSV", path, parse_csv)
            against_lens(asked.lens, path, took, report)


if __name__ == "__main__":
    main()
