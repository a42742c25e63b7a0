"""Damaged logs never crash the reader, and every item that is lost is counted: mutated lines in all formats.

The seeds are what the writers of `logs.writers` make of generated traffic and, where it is there, the example
files of ../shared. A failure names its case; `spoiled(case, logs)` gives the file again, byte for byte. Huge
lines and bombs are read in a process of their own, whose peak of memory is measured.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import json
import pkgutil
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from helpers.canaries import byte_tokenizer
from helpers.damage import Spoiler, spoil_file
from helpers.logs import WordEncoder, accounted
from helpers.traffic import make_calls
from logs import writers
from rich.console import Console

from advisor.advice.resolve import TargetOptions
from advisor.analyze import AnalyzeOptions, analyze
from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.save import save
from advisor.logs.trace import Trace
from advisor.redact import RedactOptions, describe, redact
from advisor.report.terminal import show_analysis
from advisor.workload.measure import measure
from engine.errors import InputError

SHARES = (0.05, 0.3, 1.0)  # of the lines of a file
WHOLE_FILE = 0.25  # of the files are damaged as a whole too
QUICK_LINES, ALL_LINES = 5_000, 100_000
TARGET = TargetOptions(model="llama-3.1-8b", gpu="h100-sxm", ttft_s=1.0, tpot_s=0.05)
EXAMPLES = Path(__file__).resolve().parents[3] / "shared" / "traces" / "format-examples"


class Case(NamedTuple):
    """Everything that makes a damaged file."""

    log: str
    round: int


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bytes]]:
    return clean_logs(tmp_path_factory.mktemp("clean"))


def clean_logs(folder: Path) -> dict[str, list[bytes]]:
    """Undamaged logs by name: their lines, a JSON document being one."""
    contents: dict[str, bytes] = {}
    for module in pkgutil.iter_modules(writers.__path__):
        path = folder / module.name
        importlib.import_module(f"logs.writers.{module.name}").write(make_calls(12), path)
        contents[module.name] = path.read_bytes()
    if EXAMPLES.is_dir():
        contents |= {f"example {path.name}": path.read_bytes() for path in sorted(EXAMPLES.iterdir())}
    return {name: _lines(content) for name, content in contents.items()}


def _lines(content: bytes) -> list[bytes]:
    if content[:2] in (b"{\n", b"[\n", b"[{"):
        return [json.dumps(json.loads(content)).encode()]
    return content.splitlines()


def spoiled(case: Case, logs: Mapping[str, list[bytes]]) -> tuple[bytes, int]:
    """The file of a case, and how many of its lines were damaged."""
    rng = random.Random(f"{case.log} {case.round}")
    other = logs[rng.choice(sorted(logs))]
    spoiler = Spoiler(rng, other)
    share = rng.choice(SHARES)
    lines = [spoiler.line(line) if rng.random() < share else line for line in logs[case.log]]
    mutated = sum(line != clean for line, clean in zip(lines, logs[case.log], strict=True))
    content = b"\n".join(lines)
    if rng.random() < WHOLE_FILE:
        content = spoil_file(content, rng, b"\n".join(other))
    return content, mutated


def cases(logs: Mapping[str, list[bytes]], first_round: int) -> Iterator[Case]:
    """Cases without end, every log in turn."""
    round_ = first_round
    while True:
        yield from (Case(name, round_) for name in logs)
        round_ += 1


def check(path: Path) -> None:
    """Read a log, and whatever comes of it: measured, saved, read again."""
    try:
        trace = read([path], options=ReadOptions(block_size=4), tokenizer=WordEncoder())
    except InputError as refusal:
        check_refusal(refusal)
        return
    check_trace(trace)
    measure(largest_model(trace))
    if len(trace):
        copy = path.with_name("trace.jsonl")
        save(trace, copy)
        again = read([copy])
        assert again.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
        assert (again.blocks is None) == (trace.blocks is None)


def check_refusal(error: InputError) -> None:
    """A log of which nothing can be used: why, and a way on."""
    assert error.hint
    assert error.why
    assert len(error.message + error.why + error.hint) < 2000


def check_trace(trace: Trace) -> None:
    """What holds of every Trace, whatever was read."""
    assert accounted(trace)
    assert trace.info is not None
    assert all(count > 0 and len(reason) < 80 for reason, count in trace.info.skipped.items())
    assert len(trace.info.skipped) < 30
    known = trace.arrival_s[~np.isnan(trace.arrival_s)]
    assert len(known) in (0, len(trace))
    assert (np.diff(known) >= 0).all()
    assert not len(known) or known[0] == 0
    assert (trace.prompt_tokens != 0).all()
    for column in (trace.prompt_tokens, trace.output_tokens, trace.cached_tokens):
        assert column is None or ((column >= -1) & (column <= 2 * 10**9)).all()
    for seconds in (trace.ttft_s, trace.e2e_s, trace.think_s):
        assert seconds is None or (np.isnan(seconds) | (np.isfinite(seconds) & (seconds >= 0))).all()
    if trace.blocks is not None:
        ids, starts = trace.blocks.ids, trace.blocks.starts
        assert (starts[0], starts[-1], len(starts)) == (0, len(ids), len(trace) + 1)
        assert len(ids) == 0 or (ids.min() == 0 and ids.max() < len(ids))


def largest_model(trace: Trace) -> Trace:
    """The rows of one model, which is what can be measured."""
    if trace.model is None:
        return trace
    codes, counts = np.unique(trace.model.codes, return_counts=True)
    return trace.take(np.flatnonzero(trace.model.codes == codes[np.argmax(counts)]))


def fuzz(logs: Mapping[str, list[bytes]], folder: Path, lines: int, first_round: int) -> None:
    """Damage and read until so many lines were mutated."""
    path = folder / "log"
    total = 0
    for case in cases(logs, first_round):
        content, mutated = spoiled(case, logs)
        path.write_bytes(content)
        try:
            check(path)
        except Exception as error:
            raise AssertionError(f"{case} breaks the reader") from error
        total += mutated
        if total >= lines:
            return


@pytest.mark.slow
def test_damaged_logs_of_every_format(logs: dict[str, list[bytes]], tmp_path: Path) -> None:
    fuzz(logs, tmp_path, QUICK_LINES, first_round=0)


def commands(path: Path, tokenizer: str, rng: random.Random) -> None:
    """What the commands do with a log: advise, print, write for others."""
    options = AnalyzeOptions(tokenizer=tokenizer, target=TARGET, simulate=False)
    with contextlib.suppress(InputError):
        analysis, _ = analyze([path], options)
        show_analysis(Console(file=io.StringIO()), analysis)
        assert json.loads(analysis.model_dump_json())
        size, safe = rng.choice((None, 16, 512)), rng.random() < 0.3
        redacted = RedactOptions(path.with_name("redacted"), options, block_size=size, share_safe=safe)
        describe(redact([path], redacted))


def fuzz_commands(logs: Mapping[str, list[bytes]], folder: Path, lines: int, first_round: int) -> None:
    """Damage logs and run the commands until so many lines were mutated."""
    tokenizer = str(byte_tokenizer(folder / "tokenizer"))
    total = 0
    for case in cases(logs, first_round):
        content, mutated = spoiled(case, logs)
        (folder / "log").write_bytes(content)
        try:
            commands(folder / "log", tokenizer, random.Random(str(case)))
        except Exception as error:
            raise AssertionError(f"{case} breaks a command") from error
        total += mutated
        if total >= lines:
            return


def test_damaged_logs_are_analyzed_and_redacted(logs: dict[str, list[bytes]], tmp_path: Path) -> None:
    fuzz_commands(logs, tmp_path, QUICK_LINES // 10, first_round=2000)


@pytest.mark.parametrize("log", ["openai", "sglang_log_text", "litellm_spend", "dynamo"])
def test_damaged_logs_in_small_pieces_by_two_processes(
    log: str, logs: dict[str, list[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However a log is cut and shared out, the same comes of it."""
    rng = random.Random(log)
    spoiler = Spoiler(rng, logs["azure"])
    lines = [spoiler.line(line) if rng.random() < 0.2 else line for line in logs[log] * 8]
    (tmp_path / "log").write_bytes(b"\n".join(lines))
    whole = read([tmp_path / "log"], options=ReadOptions(text="bytes"))
    monkeypatch.setattr("advisor.logs.pieces.PIECE_BYTES", 20_000)
    parts = read([tmp_path / "log"], options=ReadOptions(text="bytes", processes=2))
    assert accounted(parts)
    assert parts.info == whole.info
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "cached_tokens", "ttft_s", "e2e_s"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    assert blocks_of(parts) == blocks_of(whole)
    for name in ("model", "client", "session", "status"):
        one, other = getattr(parts, name), getattr(whole, name)
        assert (one is None) == (other is None)
        assert one is None or (one.names, one.codes.tolist()) == (other.names, other.codes.tolist())


def blocks_of(trace: Trace) -> tuple[list[int], list[int]] | None:
    """Ids and starts."""
    return None if trace.blocks is None else (trace.blocks.ids.tolist(), trace.blocks.starts.tolist())


@pytest.mark.slow
def test_a_hundred_thousand_damaged_lines(logs: dict[str, list[bytes]], tmp_path: Path) -> None:
    fuzz(logs, tmp_path, ALL_LINES, first_round=1000)
    fuzz_commands(logs, tmp_path, ALL_LINES // 5, first_round=3000)


MB = 10**6
MOST_MB = 500  # of memory, beyond what the program takes itself (validation.md R14)
LINE = '{"ts": 1789372800, "prompt_tokens": 5, "completion_tokens": 2, "x": '
CALL = "INFO 09-14 08:00:00 [logger.py:40] Received request c{}: prompt: '{}', params: SamplingParams(n=1), "
CALL += "prompt_token_ids: None, lora_request: None.\n"
MEASURE = """
import json, resource, sys
from advisor.logs.read import read
from engine.errors import InputError

def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

before = peak_mb()
for path in sys.argv[1:]:
    try:
        trace = read([path])
        found = [len(trace), trace.info.items - sum(trace.info.skipped.values()), trace.info.skipped]
    except InputError as error:
        found = [0, 0, error.why]
    print(json.dumps([path.rpartition("/")[2], peak_mb() - before, *found]))
"""


def huge_files() -> Iterator[tuple[str, bytes, int]]:
    """Files with a line of 50 MB, one for each kind of file, or with far more in them than they weigh.

    Name, content, and how many requests there are.
    """
    rows = [f"{LINE}{number}}}\n" for number in range(100)]
    good = "".join(rows).encode()
    word = b"word " * (10 * MB)

    def among(text: bytes) -> bytes:
        return good + LINE.encode() + text + b"}\n" + good

    yield "line of text", among(b'"' + word + b'"'), 201
    yield "line of garbage", good + b"\xff" * 50 * MB + b"\n" + good, 200
    yield "line of lists", among(b"[" + b"[]," * (16 * MB) + b"1]"), 200
    yield "line of objects", among(b"[" + b"{}," * (16 * MB) + b"1]"), 200
    yield "line of numbers", among(b"[" + b"1," * (25 * MB) + b"1]"), 200
    yield "line of values", good + b"{}" * (25 * MB) + b"\n" + good, 200
    header = b"ts,prompt_tokens,x\n" + b"1789372800,5,y\n" * 100
    yield "CSV with a long cell", header + b"1789372800,5," + word + b"\n", 101
    yield "CSV with many cells", header + b"1789372800,5" + b"," * 50 * MB + b"\n", 100
    calls = "".join(CALL.format(number, "a b") for number in range(100)).encode()
    yield "text", calls + CALL.format(100, "\0").encode().replace(b"\0", word) + calls[:0], 101
    yield "document", b'{"data": [' + LINE.encode() + b'"' + word + b'"}]}', 1
    yield "bomb of zeros", gzip.compress(good + b"\0" * 300 * MB, 1), 100
    yield "bomb of lists", gzip.compress(b"[" + b"[]," * (80 * MB) + b"1]", 1), 0
    quotes = header + b'1789372800,5,"\n' + (b"y" * MB + b"\n") * 400
    yield "bomb of an open quote", gzip.compress(quotes, 1), 100


@pytest.mark.slow
def test_huge_lines_and_bombs_take_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    expected = {}
    for name, content, requests in huge_files():
        (tmp_path / name).write_bytes(content)
        expected[name] = requests
    command = [sys.executable, "-W", "error", "-c", MEASURE, *(str(tmp_path / name) for name in expected)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {name: requests for name, _, requests, _, _ in found} == expected
    assert all(requests == accounted_for for _, _, requests, accounted_for, _ in found)
    assert not done.stderr
    for name, peak_mb, _, _, skipped in found:  # the peak only grows: the first to be over it is the one
        assert peak_mb < MOST_MB, (name, skipped)
