"""What is written tells nothing of content: errors, reprs, files of logs that differ in words only; escapes.

Validation.md C5: ids are ordinals, the key of a run is thrown away, and a dictionary of guesses is no use.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.canaries import LOGS, Canaries, byte_tokenizer
from helpers.logs import WordEncoder, read_lines, write_lines

from advisor.cli import run
from advisor.logs.options import ReadOptions
from advisor.logs.prompts import find_prompt
from advisor.logs.read import read
from advisor.logs.record import Record
from advisor.logs.save import save
from advisor.workload.model import PromptLayout
from engine.errors import AdviseError

NOW = 1_700_000_000
CANARY = "canary-7f3a"
TARGET = ["--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--slo", "chat"]
ROOT = Path(__file__).resolve().parents[2]


def test_reprs_hold_no_word(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": CANARY}], "user": CANARY, "session_id": CANARY}
    prompt = find_prompt(row)
    assert prompt is not None
    assert CANARY in str(prompt.messages)
    assert CANARY not in repr(prompt)
    assert CANARY not in repr(Record(prompt=prompt, output_text=CANARY, client=CANARY))
    trace = read_lines(tmp_path, [{"ts": NOW} | row], tokenizer=WordEncoder())
    assert trace.client is not None
    assert CANARY in trace.client.names
    assert CANARY not in repr(trace) + repr(trace.info) + repr(trace.unknown) + repr(trace.blocks)


@pytest.mark.parametrize(
    "content",
    [
        f'{{"ts": "{CANARY}", "prompt": "{CANARY}"}}',
        f'{{"ts": {NOW}, "prompt": "{CANARY}", "prompt_tokens": "{CANARY}"}}',
        f'{{"ts": {NOW}, "prompt": "{CANARY}", ',
        f'{{"ts": {NOW}, "status": "{CANARY}", "error": "{CANARY}", "prompt_tokens": 0}}',
        f"[{CANARY}",
        f"{CANARY}, {CANARY}\n{CANARY}, {CANARY}",
        f"{CANARY}-1,{CANARY}-2\n{CANARY}-3,{CANARY}-4\n",  # a CSV without a header
        f"{CANARY}\n{CANARY}",
        json.dumps({CANARY + " with spaces": 1, "x": CANARY}),
    ],
)
def test_errors_hold_no_word(tmp_path: Path, content: str) -> None:
    path = write_lines(tmp_path / "log", [content])
    with pytest.raises(AdviseError) as caught:
        read([path], tokenizer=WordEncoder())
    error = caught.value
    shown = f"{error.message} {error.where} {error.why} {error.hint}"
    assert CANARY not in shown
    assert CANARY not in "".join(traceback.format_exception_only(error))


@pytest.mark.parametrize(
    ("status", "kept"),
    [
        ("429", "429"), ("RateLimitError", "RateLimitError"), ("context_length_exceeded",) * 2, ("DC", "DC"),
        ("http 503", "http 503"), ("litellm.APIConnectionError",) * 2, ("KeyError", "KeyError"),
        ("alice", "error"), ("sk-9f8e7d6c", "error"), ("INVALID_alice", "error"), ("4155550123", "error"),
        ("no such user", "error"), ("a" * 80, "error"),
    ],
)  # fmt: skip
def test_an_outcome_is_kept_where_it_is_one(tmp_path: Path, status: str, kept: str) -> None:
    """A one-word message is not told from a code by its form, so the words decide."""
    trace = read_lines(tmp_path, [{"ts": NOW, "prompt_tokens": 5, "completion_tokens": 2, "error": status}])
    assert trace.status is not None
    short = re.fullmatch(r"[\w.\-]{1,40}", status) is not None  # longer ones are sentences
    assert trace.status.names == ((kept if short else "error"),)


SCRIPT = """
import contextlib, pathlib, sys
import advisor.analyze
import advisor.commands.planning as planning
from helpers.ruled import advise_by_rules
from advisor.cli import run
advisor.analyze.advise = advise_by_rules
for log in sorted(pathlib.Path("logs").iterdir()):
    out = pathlib.Path(log.name)
    out.mkdir()
    given = [str(log), "--tokenizer", "tokenizer"]
    for name, command in {
        "bytes.json": ["analyze", str(log), "--no-plan", "--json"],
        "tokens.json": ["analyze", *given, *sys.argv[1:], "--out", f"{out}/plan", "--json"],
        "tokens.txt": ["analyze", *given, "--no-plan"],
        "redact.txt": ["redact", *given, "-o", f"{out}/redacted.jsonl"],
        "safe.txt": ["redact", *given, "-o", f"{out}/safe.jsonl", "--share-safe"],
        "standard.txt": ["redact", *given, "-o", f"{out}/standard.jsonl", "--block-size", "64"],
    }.items():
        with (out / name).open("w") as screen, contextlib.redirect_stdout(screen):
            assert run(command) == 0
    planning.write_analysis_page = lambda folder, *_: folder / "report.html"  # one drawn will do
"""


class Result(NamedTuple):
    """What came of logs made of one set of words."""

    folder: Path
    words: list[str]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """Of two sets of logs that differ in all words and in nothing else, each read in a process of its own."""
    made = [_make(tmp_path_factory.mktemp("words"), other=other) for other in (False, True)]
    command = [sys.executable, "-c", SCRIPT, *TARGET]
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "PATH": ""}
    running = [
        subprocess.Popen(
            command,
            cwd=result.folder,
            env=environment | {"PYTHONHASHSEED": str(seed), "HOME": str(result.folder)},
            stderr=subprocess.PIPE,
        )
        for seed, result in enumerate(made)
    ]
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    return made


def _make(folder: Path, *, other: bool) -> Result:
    words = []
    (folder / "logs").mkdir()
    for name, make in LOGS.items():
        say = Canaries(1, other=other)
        (folder / "logs" / name).write_bytes(make(say))
        words += list(say.roles)
    byte_tokenizer(folder / "tokenizer")
    return Result(folder, words)


def test_logs_that_differ_in_words_only_give_the_same_bytes(results: list[Result]) -> None:
    """But for the layout's figures and the digests over them: its chunks end where content says so."""
    one, other = (result.folder for result in results)
    names = [path.relative_to(one) for path in _files(one)]
    assert len(names) == len(LOGS) * (6 + 4 + 3) + 1  # one report
    assert names == [path.relative_to(other) for path in _files(other)]
    for name in names:
        assert _without_layout(one / name) == _without_layout(other / name), name


def _without_layout(path: Path) -> object:
    content = path.read_text()
    if path.name == "engine.yaml":
        return re.sub(r"(digest of the lines below: |Plan )[0-9a-f]+", "", content)
    if path.name == "report.html":
        [data] = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', content, re.DOTALL)
        assert json.loads(data)["analysis"] is not None  # it is what plan.json holds
        return re.sub(r"[0-9a-f]{64}", "", content.replace(data, ""))
    if path.suffix != ".json":
        return content
    document = json.loads(content)
    document.pop("digest", None)  # over all of plan.json
    layout = document.pop("layout")
    document["sharing"].pop("any_position_share")
    assert layout is None or set(layout) == set(PromptLayout.model_fields)
    return document


def test_a_dictionary_of_guesses_is_no_use(results: list[Result]) -> None:
    """10,000 candidates, the words of the logs among them, hashed as people do: none is in the files."""
    folder, words = results[0]
    strangers = Canaries(7)
    candidates = [*words, *(strangers("nowhere") for _ in range(10_000 - len(words)))]
    said = b"\n".join(path.read_bytes() for path in _files(folder))
    numbers = {int(digits) for digits in re.findall(rb"\d{7,}", said)}
    texts = {digits[:8] for digits in re.findall(rb"[0-9a-f]{8,}", said)}
    assert texts  # digests of whole files, at least
    for candidate in candidates:
        for digest in _digests(candidate.encode()):
            assert digest[:4].hex().encode() not in texts
            for width, order in ((4, "little"), (4, "big"), (8, "little"), (8, "big")):
                assert int.from_bytes(digest[:width], order) not in numbers  # type: ignore[arg-type]


def _files(folder: Path) -> list[Path]:
    given = (folder / "logs", folder / "tokenizer", folder / ".cache" / "matplotlib")
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.parent not in given)


def _digests(data: bytes) -> Iterator[bytes]:
    """Hashes of a word, as text and as token ids of bytes, alone and behind an empty parent."""
    tokens = b"".join(sign.to_bytes(4, "little") for sign in data)
    for content in (data, data[:16], tokens, tokens[:64], b"\0" * 32 + tokens[:64]):
        for name in ("sha256", "blake2b", "md5"):
            yield hashlib.new(name, content).digest()
        yield zlib.crc32(content).to_bytes(4, "little") * 2
        yield hash(content).to_bytes(8, "little", signed=True)


def test_ids_depend_on_the_order_and_not_on_content(tmp_path: Path) -> None:
    ids = []
    for prompt in ("a b c a", "x y z x"):
        trace = read_lines(
            tmp_path,
            [{"ts": NOW, "prompt": prompt}],
            options=ReadOptions(block_size=1),
            tokenizer=WordEncoder(),
        )
        assert trace.blocks is not None
        ids.append(trace.blocks.ids.tolist())
    assert ids == [[0, 1, 2, 3]] * 2


def test_what_a_saved_trace_names(tmp_path: Path) -> None:
    """Models and outcomes: routes, clients and sessions are ordinals, times count from the first request."""
    request = {"prompt_tokens": 5, "completion_tokens": 2, "model": "m", "status": 200}
    names = {"user": "alice", "path": "/v1/alice", "session_id": "of alice"}
    trace = read_lines(tmp_path, [{"ts": NOW + at} | request | names for at in range(2)])
    save(trace, tmp_path / "trace.jsonl")
    (_, saved) = (json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines())
    assert saved == {
        "timestamp": 1000, "input_length": 5, "output_length": 2, "block_size": None, "scope": None,
        "model": "m", "status": "ok", "route": 0, "client": 0, "session": 0,
    }  # fmt: skip


STEERING = "\x1b[31m\x1b]0;title\x07\x9b2J\u202egnp.\r\x08"


@pytest.mark.parametrize("flags", [["--no-plan"], ["--where", "model=nobody"]])
def test_names_that_steer_a_terminal_are_shown_as_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    request = {"prompt_tokens": 5, "completion_tokens": 2}
    rows = [{"ts": NOW + at, "model": f"m{at % 2}{STEERING}"} | request for at in range(9)]
    path = write_lines(tmp_path / f"log{STEERING}.jsonl", rows)
    assert run(["analyze", str(path), *flags]) in (0, 2)
    printed = capsys.readouterr()
    assert r"m0\x1b[31m" in (printed.out + printed.err).replace("\n", "").replace(" ", "")
    assert not set(printed.out + printed.err) & set("\x1b\x07\x9b\u202e\r\x08")
