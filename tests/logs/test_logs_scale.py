"""Large logs: the same Trace whoever parses, processes that always end, and memory that bombs do not fill."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import json
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.logs import accounted, token_hit_rate, write_lines

from advisor.logs import csv_rows as csv_module
from advisor.logs import pieces as pieces_module
from advisor.logs.formats.generic import Generic
from advisor.logs.options import ReadOptions
from advisor.logs.parse import Setup
from advisor.logs.pieces import Piece, cut_file, cut_stream
from advisor.logs.read import read
from advisor.logs.rows import read_rows
from advisor.logs.trace import Trace
from advisor.logs.workers import Job, Workers
from engine.errors import InputError, MachineError

ROOT = Path(__file__).resolve().parent.parent.parent
NOW = 1_700_000_000
GOOD = b'{"ts": 1700000000, "prompt_tokens": 5}\n'
SETUP = Setup(Generic, [{"ts": NOW, "prompt_tokens": 1}], ReadOptions(), b"k" * 16)


def chats(count: int, seed: int = 0) -> list[Any]:
    """Lines of growing chats, some without counts, some damaged, out of order."""
    rng = random.Random(seed)
    open_chats: list[list[dict[str, str]]] = []
    lines: list[Any] = []
    for number in range(count):
        if not open_chats or rng.random() < 0.3:
            open_chats.append([{"role": "system", "content": f"system {rng.randrange(3)} " * 30}])
        chat = rng.choice(open_chats)
        chat.append({"role": "user", "content": " ".join(rng.choices("abcdefgh", k=rng.randrange(5, 60)))})
        row: dict[str, Any] = {
            "ts": NOW + rng.randrange(count),
            "request": {"model": rng.choice("xy"), "messages": list(chat)},
            "session_id": f"s{open_chats.index(chat)}" if rng.random() < 0.8 else None,
            "latency_ms": rng.randrange(1000),
        }
        if rng.random() < 0.8:
            row["usage"] = {
                "prompt_tokens": sum(len(m["content"]) for m in chat) // 4,
                "completion_tokens": number % 7,
            }
        lines.append(row)
        if rng.random() < 0.1:
            lines.append(rng.choice([b'{"ts": 17', b"", b"[]", json.dumps(row) * 2, b"\xff\xfe", b"  \r"]))
    return lines


def csv_chats(count: int) -> bytes:
    """Chats in cells, whose quoted line breaks span lines, with damaged lines between the rows."""
    rng = random.Random(0)
    lines = io.StringIO()
    out = csv.writer(lines)
    out.writerow(["timestamp", "request_json", "note"])
    for i, row in enumerate(line for line in chats(count) if isinstance(line, dict)):
        out.writerow([NOW + i, json.dumps(row["request"]), rng.choice(["", "two\nlines", 'a "b", c\n\nd'])])
        if rng.random() < 0.1:
            lines.write(rng.choice(["1,2,3,4\n", "timestamp,request_json,note\n", "\n"]))
    return lines.getvalue().encode()


def same(one: Trace, other: Trace) -> bool:
    """Whether two Traces are equal to the last bit, with what is said of them."""
    assert one.info == other.info
    assert bits(one) == bits(other)
    return True


def bits(value: Any) -> Any:
    """A dataclass of arrays as plain values."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.tobytes()
    if dataclasses.is_dataclass(value):
        return [bits(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return value


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pieces_module, csv_module):
        monkeypatch.setattr(module, "PIECE_BYTES", 20_000)


@pytest.mark.usefixtures("small_pieces")
class TestProcesses:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"where": (("model", "x"),), "since": str(NOW + 100)},
            {"log_share": Fraction(1, 2), "block_size": 64},
        ],
        ids=["all", "where", "share"],
    )
    def test_one_two_and_three_read_the_same(self, tmp_path: Path, options: dict[str, Any]) -> None:
        path = write_lines(tmp_path / "log", chats(600))
        assert path.stat().st_size > 20 * 20_000
        one, two, three = (read([path], options=ReadOptions(processes=n, **options)) for n in (1, 2, 3))
        assert same(one, two)
        assert same(one, three)
        assert accounted(one)
        assert one.blocks is not None
        assert token_hit_rate(one.take(np.flatnonzero(one.prompt_tokens >= 0))) > 0.1
        assert one.info is not None
        assert len(one.info.skipped) >= 3

    def test_several_files_packed_or_not(self, tmp_path: Path) -> None:
        folder = tmp_path / "logs"
        folder.mkdir()
        write_lines(folder / "a.jsonl", chats(200, seed=1))
        packed = write_lines(folder / "b.jsonl.gz", chats(200, seed=2))
        packed.write_bytes(gzip.compress(packed.read_bytes()))
        write_lines(folder / "c.csv", ["ts,prompt_tokens", "1,2"])
        write_lines(folder / "d.jsonl", chats(200, seed=3))
        assert same(
            read([folder], options=ReadOptions(processes=1)), read([folder], options=ReadOptions(processes=2))
        )

    def test_csv_whose_rows_span_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        path.write_bytes(csv_chats(600))
        one, two, three = (read([path], options=ReadOptions(processes=n)) for n in (1, 2, 3))
        assert same(one, two)
        assert same(one, three)
        assert accounted(one)
        assert len(one) == sum(isinstance(line, dict) for line in chats(600))
        assert one.info is not None
        assert set(one.info.skipped) == {"wrong number of CSV fields", "repeated header"}

    def test_csv_in_a_damaged_archive_keeps_the_rows_before_the_damage(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv.gz"
        packed = gzip.compress(csv_chats(600))
        path.write_bytes(packed[: len(packed) // 2])
        one, two = (read([path], options=ReadOptions(processes=n)) for n in (1, 2))
        assert same(one, two)
        assert 100 < len(one) < 500
        assert one.info is not None
        assert any("damaged" in reason or "end" in reason for reason in one.info.skipped)

    def test_lines_of_text_logs_that_tell_of_one_request_in_two_pieces(
        self, shared: Path, tmp_path: Path
    ) -> None:
        """vLLM's lines say when a request came and how long it is: a thousand times the example."""
        lines = (shared / "traces/format-examples/vllm_0.11.0_info.log").read_text()
        path = tmp_path / "vllm.log"
        path.write_text("".join(lines.replace("cmpl-", f"cmpl-{i}-") for i in range(1000)))
        one, two = (read([path], options=ReadOptions(processes=n)) for n in (1, 2))
        assert same(one, two)
        assert len(one) % 1000 == 0
        assert len(one) > 0

    def test_the_first_error_is_the_same(self, tmp_path: Path) -> None:
        rows: list[Any] = [{"ts": NOW, "prompt_tokens": 5, "model": "m"}] * 5000
        path = write_lines(tmp_path / "log", [*rows, b"{broken", *rows])
        errors = []
        for processes in (1, 2):
            with pytest.raises(InputError) as caught:
                read([path], options=ReadOptions(where=(("model", "none"),), processes=processes))
            errors.append((caught.value.message, caught.value.where, caught.value.why, caught.value.hint))
        assert errors[0] == errors[1]
        why = "not selected by --where model"
        lines = f"of 10001 lines: 1 x invalid JSON, 10000 x {why}"
        assert errors[0][1:] == (f"{path}, line 1", f"{why} ({lines})", "--where model=m")

    def test_the_line_of_the_first_error_counts_from_the_start_of_the_file(self, tmp_path: Path) -> None:
        path = write_lines(
            tmp_path / "log", [*[{"ts": NOW, "prompt_tokens": None}] * 1, *[b"" for _ in range(50_000)]]
        )
        with pytest.raises(InputError) as caught:
            read([path], options=ReadOptions(processes=2))
        assert caught.value.where == f"{path}, line 1"

    def test_lines_of_an_unknown_format_count_from_the_start_of_the_file(self, tmp_path: Path) -> None:
        rows: list[Any] = [{"when": i, "size": "x" * 50} for i in range(2000)]
        path = write_lines(tmp_path / "log", [*rows, b"{broken"])
        with pytest.raises(InputError) as caught:
            read([path])
        assert (caught.value.where, "of 2001 lines" in caught.value.why) == (f"{path}, line 1", True)
        assert [line.number for line in read_rows([path.read_bytes()])] == list(range(1, 2002))

    def test_progress_ends_at_the_size_of_the_file(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "log", chats(200))
        heard: list[tuple[int, int]] = []
        read([path], options=ReadOptions(processes=2), progress=lambda *so_far: heard.append(so_far))
        assert [done for done, _ in heard] == sorted(done for done, _ in heard)
        assert heard[-1] == (path.stat().st_size, path.stat().st_size)


class TestPieces:
    @pytest.mark.parametrize("size", [1, 7, 100, 10_000])
    def test_they_join_to_the_file_and_end_with_lines(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        monkeypatch.setattr(pieces_module, "PIECE_BYTES", size)
        rng = random.Random(size)
        data = b"".join(b"x" * rng.choice((0, 1, 5, 300)) + b"\n" for _ in range(200)) + b"the end"
        path = tmp_path / "log"
        path.write_bytes(data)
        told: list[int] = []
        chunks = iter([data[i : i + 64] for i in range(0, len(data), 64)])
        for pieces in (list(cut_file(path, len(data), told.append)), list(cut_stream(chunks))):
            loaded = [piece.load() for piece in pieces]
            assert b"".join(loaded) == data
            assert all(part.endswith(b"\n") for part in loaded[:-1])
            assert [piece.offset for piece in pieces] == np.cumsum([0, *map(len, loaded[:-1])]).tolist()
        assert sum(told) == len(data)

    def test_of_an_endless_line_enough_is_kept_to_tell(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pieces_module, "PIECE_BYTES", 100)
        monkeypatch.setattr(pieces_module, "LINE_BYTES", 1000)
        data = b"a\n" + b"x" * 50_000 + b"\nb\n"
        path = tmp_path / "log"
        path.write_bytes(data)
        for pieces in (
            cut_file(path, len(data), lambda _: None),
            cut_stream(iter([data[i : i + 64] for i in range(0, len(data), 64)])),
        ):
            loaded = b"".join(piece.load() for piece in pieces)
            assert 1000 < max(map(len, loaded.split(b"\n"))) < 2000
            assert loaded.split()[0] == b"a"


class TestEnds:
    def test_a_process_that_dies_is_an_error_that_says_so(self) -> None:
        with Workers(SETUP, "bytes", 2) as workers:
            for process in workers.processes:
                process.kill()
            with pytest.raises(MachineError, match="a process that reads the log ended early") as caught:
                next(workers.map([Job(Piece(0, GOOD), 0, text=False)]))
        assert "--log-share" in str(caught.value.hint)

    def test_a_bug_is_told_by_its_kind_and_place_without_values(self) -> None:
        nonsense: Any = "canary"
        bug = pytest.raises(
            RuntimeError, match=r"AttributeError in a process that reads the log: parse\.py:\d+"
        )
        with Workers(SETUP, "bytes", 2) as workers, bug as caught:
            next(workers.map([Job(nonsense, 0, text=False)]))
        assert "canary" not in str(caught.value)

    def test_a_script_without_a_main_guard_reads_in_several_processes(self, tmp_path: Path) -> None:
        """Where a library starts processes by importing the caller's program again, this never ends."""
        write_lines(tmp_path / "log", [{"ts": NOW + i, "prompt_tokens": i + 1} for i in range(100)])
        script = tmp_path / "script.py"
        script.write_text(
            "from advisor import read\nfrom advisor.logs.options import ReadOptions\n"
            "print(len(read(['log'], options=ReadOptions(processes=2))))\n"
        )
        (tmp_path / "random.py").write_text("raise RuntimeError('a module of the user')\n")
        run = subprocess.run(
            [sys.executable, "-P", script],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (run.stdout, run.stderr) == ("100\n", "")


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def long_line(end: bytes) -> bytes:
    return GOOD + b'{"ts": 1700000001, "prompt": "' + b"x y z " * 9_000_000 + end + b"\n" + GOOD  # 54 MB


def packed_bytes(*parts: tuple[bytes, int]) -> bytes:
    """Gzip of parts that repeat."""
    packer = zlib.compressobj(1, wbits=31)
    data = [packer.compress(part * 1000) for part, times in parts for _ in range(max(1, times // 1000))]
    return b"".join([*data, packer.flush()])


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "a line of 54 MB": (lambda: long_line(b'"}'), "3 requests"),
    "a line of 54 MB that is cut": (lambda: long_line(b""), "invalid JSON"),
    "nested 10,000 deep": (
        lambda: GOOD + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"\n" + GOOD, "nested too deeply",
    ),
    "open brackets": (lambda: GOOD + b"[" * 7_000_000 + b"\n" + GOOD, "nested too deeply"),
    "a number of ten million digits": (
        lambda: GOOD + b'{"prompt_tokens": ' + b"9" * 10_000_000 + b"}\n" + GOOD, "too many digits",
    ),
    "1e400": (
        lambda: GOOD + b'{"ts": 1700000001, "prompt_tokens": 1e400}\n' + GOOD, "not a whole number",
    ),
    "gzip of zeros": (lambda: packed_bytes((GOOD, 1), (b"\0" * 1000, 500_000)), "line longer than"),
    "gzip of newlines": (lambda: packed_bytes((GOOD, 1), (b"\n" * 1000, 100_000)), "1000 requests"),
    "gzip of a list of zeros": (lambda: packed_bytes((b"[ ", 1), (b"0,", 60_000_000)), "too many values"),
    "gzip of empty objects": (
        lambda: gzip.compress(b'{"requests": [' + b"{}," * 19_000_000 + b"{}]}", 1), "too many values",
    ),
    "gzip of one field of CSV": (
        lambda: gzip.compress(b'ts,prompt_tokens,x\n1,1,"' + b"a" * 300_000_000 + b'"\n2,2,b\n', 1),
        "line longer than",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("name", BOMBS)
def test_memory_is_bounded(tmp_path: Path, name: str) -> None:
    content, said = BOMBS[name]
    (tmp_path / "log").write_bytes(content())
    script = (
        "import resource\nfrom advisor.logs.read import read\nfrom engine.errors import InputError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "try:\n    trace = read(['log'])\n    print(len(trace), 'requests', trace.info.skipped)\n"
        "except InputError as error:\n    print(error.why)\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**ENVIRONMENT, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.stderr == ""
    found, peak = run.stdout.splitlines()[:2]
    assert said in found
    assert int(peak.split()[1]) < 400_000, name  # kB
