"""Files, folders and standard input; compression; lines, documents and CSV that are damaged in usual ways."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from helpers.logs import accounted, read_lines, write_lines

from advisor.logs import pieces as pieces_module
from advisor.logs import rows as rows_module
from advisor.logs.read import read
from advisor.logs.rows import read_rows
from advisor.logs.trace import Trace
from engine.errors import InputError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GOOD: list[dict[str, Any]] = [{"ts": 1_700_000_000 + i, "prompt_tokens": i + 1} for i in range(3)]
CONTENT = b"".join(json.dumps(row).encode() + b"\n" for row in GOOD)


def skipped(trace: Trace) -> dict[str, int]:
    assert trace.info is not None
    assert accounted(trace)
    return trace.info.skipped


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress], ids=["plain", "gzip", "zstd"])
def test_compression_is_told_by_content_not_by_name(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "log"
    path.write_bytes(pack(CONTENT))
    assert read([path]).prompt_tokens.tolist() == [1, 2, 3]


def test_gzip_of_several_members(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(CONTENT) + gzip.compress(CONTENT))
    assert len(read([path])) == 6


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
def test_compressed_data_that_ends_early_keeps_what_came_before(tmp_path: Path, pack: Any) -> None:
    whole = b"".join(
        b'{"ts": %d, "prompt_tokens": %d}\n' % (1_700_000_000 + i, i * i % 997) for i in range(200_000)
    )
    packed = pack(whole)
    path = tmp_path / "log"
    path.write_bytes(packed[: len(packed) // 2])
    trace = read([path])
    assert 1_000 < len(trace) < 200_000
    assert "compressed data is damaged or ends early" in skipped(trace)


def test_folder_with_empty_hidden_and_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "day").mkdir()
    write_lines(tmp_path / "day" / "b.jsonl", GOOD[1:])
    write_lines(tmp_path / "a.jsonl", GOOD[:1])
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "README.md").write_text("# About\n\nOne, two.\n")
    trace = read([tmp_path])
    assert trace.prompt_tokens.tolist() == [1, 2, 3]
    assert trace.info is not None
    assert trace.info.files == 4
    assert sum(skipped(trace).values()) == 2


def test_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(CONTENT))
    with path.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert len(read(["-"])) == 3


def test_progress_counts_stored_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(CONTENT))
    heard: list[tuple[int, int]] = []
    read([path], progress=lambda done, total: heard.append((done, total)))
    assert heard[-1] == (path.stat().st_size, path.stat().st_size)


def test_missing_and_empty(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such log"):
        read([tmp_path / "absent"])
    with pytest.raises(InputError, match="no files"):
        read([tmp_path])
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match="no usable request") as caught:
        read([tmp_path])
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"ts": 1700000000, "prompt_', "invalid JSON"),  # half-written
        (b'{"ts": 1700000000, "prompt_tokens": 5, "x": "\xff\xfe"}', "invalid UTF-8"),
        (b'[{"ts": 1700000000}]', "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b'{"a":' * 20_000, "JSON nested too deeply"),
        (b"[" * 200_000, "JSON nested too deeply"),
        (b'{"prompt_tokens": ' + b"9" * 5_000 + b"}", "number with too many digits"),
        (b'{"ts": 1700000000, "prompt_tokens": 1e400}', "prompt length is not a whole number"),
        (b'{"ts": 1700000000, "prompt_tokens": NaN}', "no prompt length"),
        (b'{"ts": Infinity, "prompt_tokens": 5}', "no arrival time"),
        (b"\x00\x00\x00", "invalid JSON"),
    ],
)
def test_damaged_lines_are_counted(tmp_path: Path, line: bytes, reason: str) -> None:
    trace = read_lines(tmp_path, [GOOD[0], line, GOOD[1]])
    assert len(trace) == 2
    assert skipped(trace) == {reason: 1}


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + CONTENT,
        CONTENT.replace(b"\n", b"\r\n"),
        b"\n\n" + CONTENT.replace(b"\n", b"\n  \n"),
        CONTENT.rstrip(b"\n"),
        CONTENT.replace(b"}", b', "note": NaN, "other": "\x07"}'),
        b"{broken\n" + CONTENT,
        json.dumps(GOOD).encode(),
        json.dumps(GOOD, indent=2).encode(),
        b"[\n" + b",\n".join(json.dumps(row).encode() for row in GOOD) + b"\n]\n",
        json.dumps({"version": 2, "requests": GOOD}).encode(),
        json.dumps({"version": 2, "data": GOOD}, indent=1).encode(),
        json.dumps([*GOOD, {"ts": float("nan")}]).encode(),
    ],
)
def test_shapes_of_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert read([path]).prompt_tokens.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "row", [GOOD[0], {"ts": 1_700_000_000, "prompt_tokens": 1, "messages": [{"role": "user"}]}]
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_single_request_is_a_log(tmp_path: Path, row: dict[str, Any], indent: int | None) -> None:
    path = tmp_path / "log"
    path.write_text(json.dumps(row, indent=indent))
    assert read([path]).prompt_tokens.tolist() == [1]


def test_csv_quotes_and_damage(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = [
        "ts,prompt_tokens,note", '1,1,"one, ""quoted"""', '2,2,"over\ntwo lines"', "3,3", "",
        "ts,prompt_tokens,note", "4,4,\udcff",
    ]  # fmt: skip
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    trace = read([path])
    assert trace.prompt_tokens.tolist() == [1, 2, 4]
    assert skipped(trace) == {"wrong number of CSV fields": 1, "repeated header": 1}


@pytest.mark.parametrize("after", [50, 3_000])
def test_a_stray_quote_costs_its_own_line_only(tmp_path: Path, after: int) -> None:
    path = tmp_path / "log.csv"
    path.write_text("ts,prompt_tokens,note\n1,1,a\n2,2,b\n" + '3,3,"c\n' + "4,4,d\n" * after)
    trace = read([path])
    assert len(trace) == 2 + after
    assert skipped(trace) == {"quote that never closes": 1}


def test_files_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "log.sqlite").write_bytes(b"SQLite format 3\x00\x01\n\x02")
    with pytest.raises(InputError, match="no usable") as caught:
        read([tmp_path / "log.sqlite"])
    assert "not a text file" in str(caught.value.why)


def test_an_endless_line_is_dropped_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rows_module, pieces_module):
        monkeypatch.setattr(module, "LINE_BYTES", 1 << 20)
    chunks = [b'{"a": 1}\n{"a": "', *[b"x" * 65_536] * 1_000, b'"}\n{"a": 2}\n']
    tracemalloc.start()
    lines = list(read_rows(chunks))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [line.number for line in lines] == [1, 2, 3]
    assert isinstance(lines[0].content, dict)
    assert "longer than" in str(lines[1].content)
    assert peak < 8 << 20  # of 64 MiB


def test_a_document_too_large_to_hold_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rows_module, "DOCUMENT_BYTES", 100)
    path = tmp_path / "log.json"
    path.write_text(json.dumps(GOOD * 10))
    with pytest.raises(InputError, match="no usable") as caught:
        read([path])
    assert "JSON lines have no limit" in str(caught.value.why)


def test_values_one_after_another_on_a_line(tmp_path: Path) -> None:
    # `vllm bench serve --append-result` writes objects without a line between them.
    both = json.dumps({"ts": 1_700_000_000, "prompt_tokens": 5}) * 2
    trace = read_lines(tmp_path, [GOOD[0], both, both + '"x"', GOOD[1]])
    assert trace.info is not None
    assert (len(trace), trace.info.lines, trace.info.items) == (6, 4, 7)
    assert skipped(trace) == {"not a JSON object": 1}
