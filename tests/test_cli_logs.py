"""The commands about logs alone: comparing with a plan, redacting, looking at prompts."""

from __future__ import annotations

import json
import os
import pty
import random
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.cli import run

RULES = " ".join(f"rule {i} says {i * 7919 % 1000}" for i in range(200))


def mooncake(path: Path, *, prompt: int, hours: float, seed: int) -> None:
    """Poisson arrivals, one every 4 s; half of each prompt is shared."""
    rng = random.Random(seed)
    now = 0.0
    rows = []
    while now < hours * 3600:
        now += rng.expovariate(0.25)
        shared = prompt // 512 // 2
        ids = [*range(shared), *(10**6 * seed + len(rows) * 100 + k for k in range(-(-prompt // 512) - shared))]
        row = {"timestamp": round(now * 1e3), "input_length": prompt, "output_length": rng.randrange(50, 150)}
        rows.append(json.dumps(row | {"hash_ids": ids}))
    path.write_text("\n".join(rows))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_check_is_exit_1_only_when_the_traffic_has_moved(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mooncake(here / "then.jsonl", prompt=4096, hours=3, seed=1)
    mooncake(here / "same.jsonl", prompt=4096, hours=3, seed=2)
    mooncake(here / "longer.jsonl", prompt=8192, hours=3, seed=3)
    assert run(["analyze", "then.jsonl", "--no-plan", "--json"]) == 0  # what is compared needs no simulation
    Path("advise-out").mkdir()
    Path("advise-out/plan.json").write_text(capsys.readouterr().out)
    plan = Path("advise-out/plan.json").read_bytes()
    assert run(["analyze", "same.jsonl", "--compare-to", "advise-out", "--check"]) == 0
    assert run(["analyze", "longer.jsonl", "--compare-to", "advise-out"]) == 0
    capsys.readouterr()
    assert run(["analyze", "longer.jsonl", "--compare-to", "advise-out", "--check", "--json"]) == 1
    drift = json.loads(capsys.readouterr().out)
    assert drift["replan"]
    assert {move["name"] for move in drift["moves"] if move["over"]} == {"uncached_mean"}
    assert Path("advise-out/plan.json").read_bytes() == plan


def test_check_needs_a_plan(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mooncake(here / "log.jsonl", prompt=1024, hours=0.1, seed=1)
    assert run(["analyze", "log.jsonl", "--check"]) == 2
    assert "--compare-to advise-out --check" in capsys.readouterr().err
    assert run(["analyze", "log.jsonl", "--compare-to", "nowhere"]) == 2
    assert "cannot read the plan" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["analyze", "log.jsonl", "--compare-to", "deep"], ["launch", "deep"]])
def test_a_plan_that_is_nested_too_deeply_is_an_input_error(here: Path, command: list[str]) -> None:
    mooncake(here / "log.jsonl", prompt=1024, hours=0.1, seed=1)
    (here / "deep").mkdir()
    (here / "deep/plan.json").write_text('{"plan": ' + "[" * 100_000)
    assert run(command) == 2


def test_redact_writes_what_analyze_and_others_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mooncake(here / "log.jsonl", prompt=4096, hours=0.5, seed=1)
    requests = len((here / "log.jsonl").read_text().splitlines())
    assert run(["redact", "log.jsonl", "-o", "own.jsonl"]) == 0
    assert run(["redact", "log.jsonl", "-o", "others.jsonl", "--block-size", "1024"]) == 0
    assert run(["redact", "log.jsonl", "-o", "safe.jsonl", "--share-safe"]) == 0
    assert f"{requests:,} requests" in capsys.readouterr().out
    first = json.loads((here / "others.jsonl").read_text().splitlines()[0])
    assert list(first) == ["timestamp", "input_length", "output_length", "hash_ids"]
    assert (first["input_length"], len(first["hash_ids"])) == (4096, 4)
    for name in ("own.jsonl", "others.jsonl", "safe.jsonl"):
        assert (here / name).stat().st_mode & 0o777 == 0o600
        assert run(["analyze", name, "--no-plan", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["log"]["requests"] == requests
        assert report["sharing"]["hit_rate_tokens"] == pytest.approx(0.5, abs=0.01)


def test_a_block_size_that_does_not_fit_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mooncake(here / "log.jsonl", prompt=4096, hours=0.1, seed=1)
    assert run(["redact", "log.jsonl", "-o", "x.jsonl", "--block-size", "100"]) == 2
    assert not Path("x.jsonl").exists()
    assert "hint" in capsys.readouterr().err


@pytest.fixture
def chats(here: Path) -> Path:
    """Instructions behind the question, 40 times."""
    rng = random.Random(0)
    rows = []
    for i in range(40):
        question = " ".join(f"w{rng.randrange(10**6)}" for _ in range(30))
        messages = [{"role": "user", "content": f"Q {question}\n{RULES}"}]
        rows.append(json.dumps({"ts": 1_700_000_000 + i, "user": "u", "request": {"messages": messages}}))
    (here / "chats.jsonl").write_text("\n".join(rows))
    return here / "chats.jsonl"


def test_a_layout_finding_names_two_places_and_no_text(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "chats.jsonl", "--no-plan", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (finding,) = [finding for finding in report["findings"] if finding["code"] == "ADV502"]
    assert [(place["file"], place["line"] > 0) for place in finding["examples"]] == [("chats.jsonl", True)] * 2
    # 39 of 40 requests would find the rules, which are most of a prompt.
    assert report["layout"]["hit_rate_reordered"] > 0.8
    assert report["sharing"]["any_position_share"] == report["layout"]["any_position_share"]
    assert "rule 7 says" not in json.dumps(report)


def test_text_is_shown_on_a_terminal_and_nowhere_else(chats: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "chats.jsonl", "--no-plan", "--show-text"]) == 2
    said = capsys.readouterr()
    assert "only on a terminal" in said.err
    assert "rule 7 says" not in said.out + said.err
    parent, child = pty.openpty()
    argv = [sys.executable, "-m", "advisor", "analyze", "chats.jsonl", "--no-plan", "--show-text"]
    environment = os.environ | {"COLUMNS": "200"}
    with subprocess.Popen(argv, stdout=child, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(child)
        screen = b""
        while True:
            try:
                more = os.read(parent, 65536)
            except OSError:  # the other end has closed
                break
            if not more:
                break
            screen += more
    os.close(parent)
    assert process.returncode == 0
    assert screen.count(b"Q w") == 2
