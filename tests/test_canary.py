"""Nothing private gets out: canaries in logs, every command, and a search of all that was written or printed.

Validation.md C5, test 8. Excepted by design: names of models, and field names of JSON objects in the hint for a
log of no known format. `--show-text` shows prompts to whoever asks for it on a terminal, and nowhere else.
"""

from __future__ import annotations

import json
import os
import pty
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.canaries import LOGS, MODEL, Canaries, byte_tokenizer, unreadable
from helpers.recorded import ask, service
from helpers.ruled import plan_by_rules

from advisor.cli import run
from advisor.logs.recorder import Recorder

TARGET = ["--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--slo", "chat"]
TIMES = {"timestamp", "ttft_s", "e2e_s"}
FILES = {"engine.yaml", "plan.json", "target.yaml", "trace.jsonl"}


@pytest.fixture(params=LOGS)
def say(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Canaries:
    """Canaries, of which over 1,000 are in `log` in the current folder, beside a tokenizer."""
    plan_by_rules(monkeypatch)
    monkeypatch.chdir(tmp_path)
    canaries = Canaries(1)
    Path("log").write_bytes(LOGS[request.param](canaries))
    byte_tokenizer(Path("tokenizer"))
    assert len(canaries.roles) >= 1000
    return canaries


def written() -> Iterator[Path]:
    """Every file that a command has made."""
    given = {"log", "unreadable", "tokenizer", "site"}
    for path in sorted(Path().rglob("*")):
        if path.is_file() and path.parts[0] not in given:
            yield path


def leaks(say: Canaries, *printed: str | bytes) -> dict[str, set[str]]:
    """What was found, by where."""
    places = {str(path): say.found(path.read_bytes() + str(path).encode()) for path in written()}
    for number, text in enumerate(printed):
        places[f"printed {number}"] = say.found(text if isinstance(text, bytes) else text.encode())
    return {place: found for place, found in places.items() if found}


def commands(*, every: bool) -> Iterator[tuple[Any, ...]]:
    """Commands that take a log, or what was made of one, and the exit codes that they may have.

    `every` one of them, or those in which the format of the log matters.
    """
    log = ["log", "--tokenizer", "tokenizer"]
    yield ["analyze", *log, "--no-plan"], 0
    yield ["analyze", *log, *TARGET, "--out", "out"], 0
    yield ["analyze", *log, "unreadable", "--no-plan"], 0
    yield ["analyze", *log, "--where", "model=nobody"], 2
    yield ["analyze", *log, "--where", "route=nobody", "--where", "status=nobody"], 2
    yield ["analyze", *log, "--map", "prompt_tokens=nothing"], 0, 2
    yield ["redact", *log, "-o", "redacted.jsonl"], 0
    yield ["redact", *log, "-o", "redacted-safe.jsonl", "--share-safe"], 0
    if every:
        yield ["analyze", "log", "--no-plan"], 0
        yield ["analyze", *log, "--no-plan", "--isolate", "client"], 0, 2
        yield ["analyze", *log, "--compare-to", "out"], 0
        yield ["analyze", *log, "--compare-to", "out", "--check", "--json"], 0
        yield ["analyze", *log, "--show-text"], 2
        yield ["analyze", *log, "--where", "client=nobody"], 2
        yield ["analyze", *log, "--where", "session=nobody"], 2
        yield ["analyze", *log, "--since", "2100-01-01"], 2
        yield ["analyze", "unreadable", "--tokenizer", "tokenizer"], 2
        yield ["redact", *log, "-o", "redacted-64.jsonl", "--block-size", "64"], 0
        yield ["redact", *log, "-o", "redacted-64-safe.jsonl", "--block-size", "64", "--share-safe"], 0
        for name in ("redacted", "redacted-safe", "redacted-64", "redacted-64-safe"):
            yield ["analyze", f"{name}.jsonl", "--no-plan", "--json"], 0
        yield ["redact", "unreadable", "--tokenizer", "tokenizer", "-o", "nothing.jsonl"], 2
        yield ["launch", "out", "--dry-run"], 3
    yield ["analyze", *log, "--no-plan", "--json"], 0


def test_no_command_writes_or_prints_a_canary(
    say: Canaries, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    every = request.node.callspec.params["say"] in ("openai", "vllm")
    Path("unreadable").write_bytes(unreadable(say))
    printed = ""
    for command, *codes in commands(every=every):
        got = run(command)
        out, err = capfd.readouterr()
        printed += out + err
        assert got in codes, (command, err)
    assert not leaks(say, printed)
    assert {path.name for path in Path("out").iterdir()} >= FILES
    assert {path.name for path in written() if stat.S_IMODE(path.stat().st_mode) != 0o600} == set()
    check_read(json.loads(out), say)


def check_read(analysis: Any, say: Canaries) -> None:
    """The control: what the canaries say was read, so that they could have been printed."""
    assert analysis["log"]["requests"] in (84, 168)
    assert [model["name"] for model in analysis["log"]["models"]] in ([MODEL], ["m"], [None])
    assert analysis["lengths"]["prompt"]["mean"] > 300  # bytes, of system prompts of 24 canaries
    assert 0.5 < analysis["sharing"]["hit_rate_tokens"] < 0.99
    assert analysis["sharing"]["hit_rate_optimal"] is not None
    if users := say.count("user id"):
        assert analysis["clients"]["clients"] == users
    if say.count("route") == 84:
        assert sum(route["routes"] for route in analysis["log"]["routes"]) == 84


@pytest.mark.parametrize("say", ["openai", "sglang"], indirect=True)
def test_standard_input(say: Canaries) -> None:
    command = [sys.executable, "-m", "advisor", "analyze", "-", "--no-plan", "--tokenizer", "tokenizer"]
    done = subprocess.run(command, input=Path("log").read_bytes(), capture_output=True, check=True)
    assert b"requests over" in done.stdout
    assert not leaks(say, done.stdout, done.stderr)


CRASHES = {
    # where it happens -> a module that is imported at start, and breaks something while text is at hand
    "while reading": """
        from advisor.logs.text import TextReader
        def broken(self, record):
            raise KeyError(str(record.prompt and (record.prompt.text or record.prompt.messages)))
        TextReader.hold = broken
    """,
    "while measuring": """
        import pathlib, advisor.workload.measure as module
        def broken(*_, **__):
            raise ValueError(pathlib.Path("log").read_text()[:3000])
        module.measure_lengths = broken
    """,
    "while writing": """
        import pathlib, sys, advisor.analyze, advisor.logs.save
        from helpers.ruled import advise_by_rules
        advisor.analyze.advise = advise_by_rules
        def broken(*_):
            raise RuntimeError(pathlib.Path("log").read_text()[:3000]) from ValueError(open("log").read())
        sys.modules["advisor.logs.save"].write_rows = broken
    """,
}


@pytest.mark.parametrize("say", ["openai"], indirect=True)
@pytest.mark.parametrize("place", CRASHES)
def test_a_crash_names_the_place_and_no_value(say: Canaries, place: str) -> None:
    Path("site").mkdir()
    lines = CRASHES[place].splitlines()
    Path("site/sitecustomize.py").write_text("\n".join(line.removeprefix(" " * 8) for line in lines))
    command = [sys.executable, "-m", "advisor", "analyze", "log", *TARGET, "--tokenizer", "tokenizer"]
    environment = os.environ | {"PYTHONPATH": f"site{os.pathsep}{os.pathsep.join(sys.path)}"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 5, done.stderr
    assert b"this is a bug in advise" in done.stderr
    assert b"sitecustomize.py:" in done.stderr
    assert not leaks(say, done.stdout, done.stderr)


@pytest.mark.parametrize("say", ["openai"], indirect=True)
def test_a_crash_of_a_process_that_reads_names_no_value(say: Canaries) -> None:
    Path("site").mkdir()
    Path("site/sitecustomize.py").write_text(
        "from advisor.logs.text import TextReader\n"
        "def broken(self, record):\n"
        "    raise KeyError(str(record.prompt and record.prompt.messages))\n"
        "TextReader.hold = broken\n"
    )
    script = (
        "from advisor.logs import ReadOptions, read\n"
        "read(['log'], options=ReadOptions(processes=2, text='bytes'))"
    )
    environment = os.environ | {"PYTHONPATH": f"site{os.pathsep}{os.pathsep.join(sys.path)}"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment, check=False)
    assert done.returncode == 1
    assert b"KeyError in a process that reads the log: sitecustomize.py:3" in done.stderr
    assert not leaks(say, done.stdout, done.stderr)


@pytest.mark.parametrize("say", ["openai"], indirect=True)
def test_show_text_shows_prompts_on_a_terminal_only(say: Canaries) -> None:
    command = [sys.executable, "-m", "advisor", "analyze", "log", "--no-plan", "--show-text"]
    refused = subprocess.run(command, capture_output=True, check=False)
    assert refused.returncode == 2
    assert not leaks(say, refused.stdout, refused.stderr)
    terminal, other_end = pty.openpty()
    with subprocess.Popen(command, stdout=other_end, stderr=subprocess.PIPE) as process:
        os.close(other_end)
        shown = b"".join(_all(lambda: os.read(terminal, 65536)))
        errors = process.stderr.read() if process.stderr else b""
    os.close(terminal)
    assert process.returncode == 0, errors
    assert say.found(shown) <= {"system prompt", "prompt", "tool name", "tool text"}
    assert say.found(shown)
    assert not leaks(say, errors)


def _all(read: Callable[[], bytes]) -> Iterator[bytes]:
    """What a terminal gives until its other end is closed, which is an error on Linux."""
    while True:
        try:
            data = read()
        except OSError:
            return
        if not data:
            return
        yield data


def record(path: Path, say: Canaries) -> Recorder:
    """A service is asked 80 times through a recorder, which writes to `path`."""
    _, recorder = service(path)
    shared = " ".join(say("system prompt") for _ in range(40))
    bodies = [
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": shared},
                {"role": "user", "content": " ".join(say("prompt") for _ in range(8))},
            ],
            "tools": [{"function": {"name": say("tool name"), "description": say("tool text")}}],
            "user": say("user id"),
            "metadata": {say("metadata name"): say("metadata")},
            "stream": number % 2 == 0,
        }
        for number in range(80)
    ]
    headers = {"authorization": f"Bearer {say('key')}", "x-session-id": say("session"), "x-a": say("header")}
    broken = f'{{"model": "{say("model")}", "messages": "{say("prompt")}"'.encode()
    ask(recorder, *bodies, broken, headers=headers)
    assert len(say.roles) >= 1000
    return recorder


def test_the_recorder_writes_no_canary(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    say, path = Canaries(3), tmp_path / "trace.jsonl"
    recorder = record(path, say)
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert len(rows) >= 80
    assert max(block for row in rows for block in row.get("hash_ids") or [0]) > 80  # prompts were read
    assert not say.found(path.read_bytes())
    assert not say.found(caplog.text.encode() + repr(recorder.writer.counts).encode())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_recorder_writes_does_not_depend_on_words(tmp_path: Path) -> None:
    """Times and the random name of the run aside."""
    told = []
    for other in (False, True):
        path = tmp_path / f"{other}.jsonl"
        record(path, Canaries(3, other=other))
        lines = re.sub(rb"run-[0-9a-f]+", b"run", path.read_bytes()).splitlines()
        told.append([{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines])
    assert told[0] == told[1]
    assert any(row["hash_ids"] for row in told[0] if "hash_ids" in row)
