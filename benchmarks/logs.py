"""How fast a log is read, beside the bare parser of the same file: lines/s, and the ratio of the times.

The bare parser decodes every line (msgspec, or the csv module; then for text the tokenizer) and keeps nothing:
the limit of any reader in Python. Files are generated: block ids in Mooncake's form, counts in Azure's, and
OpenAI-style text.
"""

from __future__ import annotations

import csv
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from advisor.logs.read import read
from advisor.samples import ChatService, write_sample
from engine.errors import MachineError
from engine.fetch import model_folder
from engine.text import Tokenizer

ROWS = 50_000


def block_log(path: Path) -> None:
    """Mooncake's form: 20 blocks a request, half of them new."""
    rng = random.Random(0)
    with path.open("w") as file:
        for i in range(ROWS):
            ids = [*range(10), *range(10 + 10 * i, 20 + 10 * i)]
            file.write(
                f'{{"timestamp": {i * 50}, "input_length": 10200, "output_length": {rng.randint(1, 500)}, '
            )
            file.write(f'"hash_ids": {ids}}}\n')


def count_log(path: Path) -> None:
    """Azure's form of 2024."""
    rng = random.Random(0)
    with path.open("w") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for i in range(ROWS):
            stamp = f"2024-05-10 {i // 3600 % 24:02}:{i // 60 % 60:02}:{i % 60:02}.000100+00:00"
            file.write(f"{stamp},{rng.randint(1, 8000)},{rng.randint(1, 500)}\n")


def parse_json(path: Path) -> None:
    """Decode every line."""
    decode = msgspec.json.Decoder().decode
    with path.open("rb") as file:
        for line in file:
            decode(line)


def parse_csv(path: Path) -> None:
    """Split every line."""
    with path.open(newline="") as file:
        for _ in csv.reader(file):
            pass


def parse_text(tokenizer: Tokenizer, path: Path) -> None:
    """Decode every line and tokenize its chat."""
    decode = msgspec.json.Decoder().decode
    with path.open("rb") as file:
        for line in file:
            tokenizer.encode_chat(decode(line)["request"]["messages"])


def show(name: str, path: Path, bare: Callable[[Path], None], tokenizer: Tokenizer | None = None) -> None:
    """Print one row."""
    start = time.perf_counter()
    bare(path)
    limit = time.perf_counter() - start
    start = time.perf_counter()
    trace = read([path], tokenizer=tokenizer)
    took = time.perf_counter() - start
    megabytes = path.stat().st_size / 1e6
    size, rate = f"{len(trace):,} lines, {megabytes:.1f} MB", f"{len(trace) / took:,.0f} lines/s"
    print(f"{name:<17} {size:<23} read {took:.2f} s, {rate:<15} bare {limit:.2f} s, ratio {took / limit:.1f}")


def main() -> None:
    """Print a row for each kind of log."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "log"
        block_log(path)
        show("block ids, JSONL", path, parse_json)
        count_log(path)
        show("counts, CSV", path, parse_csv)
        write_sample(path, ChatService())
        try:
            tokenizer = Tokenizer.load(model_folder(None, fetch=False, weights=False))
        except MachineError as error:
            print(f"text: skipped, {error.message}")
            return
        show("text, tokenized", path, partial(parse_text, tokenizer), tokenizer)


if __name__ == "__main__":
    main()
