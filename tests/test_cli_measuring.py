"""The commands around a measurement: the report again, the doctor, and who is asked before load is sent."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from helpers.journals import write_journal
from helpers.results import make_records, make_result, sample_analysis
from helpers.ruled import plan_by_rules

from advisor.cli import run
from advisor.commands import asking
from advisor.validation import doctor, roofline
from engine.errors import InputError, MachineError

LINE = '{{"timestamp": {t}, "input_length": 1200, "output_length": 40, "hash_ids": [0, 1, {n}]}}\n'
LOG = "".join(LINE.format(t=i * 250, n=i + 2) for i in range(40))
PLAN = ["--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--slo", "chat"]
REMOTE = "http://engine.example:8000"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.jsonl").write_text(LOG)
    return tmp_path


def test_analyze_writes_the_report_and_report_writes_the_same_again(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_by_rules(monkeypatch)
    assert run(["analyze", "log.jsonl", *PLAN]) == 0
    assert "advise-out/report.html" in capsys.readouterr().out
    page = Path("advise-out/report.html")
    first = page.read_bytes()
    assert b"llama-3.1-8b" in first
    page.unlink()
    assert run(["report"]) == 0
    assert capsys.readouterr().out == "advise-out/report.html\n"
    assert page.read_bytes() == first
    assert run(["report", "advise-out", "--out", "elsewhere/page.html"]) == 0
    assert capsys.readouterr().out == "elsewhere/page.html\n"
    assert Path("elsewhere/page.html").read_bytes() == first
    assert page.stat().st_mode & 0o777 == 0o600


def test_without_a_plan_there_is_a_report_only_in_a_folder_that_was_named(here: Path) -> None:
    assert run(["analyze", "log.jsonl", "--no-plan"]) == 0
    assert not Path("advise-out").exists()
    assert run(["analyze", "log.jsonl", "--no-plan", "--out", "measured"]) == 0
    assert [path.name for path in Path("measured").iterdir()] == ["report.html"]


def test_a_report_holds_the_validation_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a plan, without one, and with the records of its replay: each adds to the page."""
    Path("out").mkdir()
    result = make_result(replayed={"model": "a-served-name"})
    result.save(Path("out"))
    assert run(["report", "out"]) == 0
    alone = Path("out/report.html").read_text()
    assert "a-served-name" in alone
    write_journal(Path("out"), (7, make_records(600)))
    assert run(["report", "out"]) == 0
    assert Path("out/report.html").stat().st_size > len(alone)
    Path("out/plan.json").write_text(sample_analysis().model_dump_json())
    assert run(["report", "out"]) == 0
    assert "a-served-name" in Path("out/report.html").read_text()


def test_nothing_to_report_and_nowhere_to_write(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "nowhere"]) == 2
    assert "advise analyze LOG" in capsys.readouterr().err
    assert run(["analyze", "log.jsonl", "--no-plan", "--out", "log.jsonl/out"]) == 2
    assert "cannot write the report" in capsys.readouterr().err


def finding(level: str) -> doctor.Finding:
    return doctor.Finding.model_validate({"name": "clock", "level": level, "said": "tells the time"})


@pytest.mark.parametrize(
    ("level", "flags", "code"), [("ok", ["--strict"], 0), ("warn", [], 0), ("warn", ["--strict"], 3)]
)
def test_the_doctor_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    level: str,
    flags: list[str],
    code: int,
) -> None:
    found = doctor.EnvironmentReport(findings=(finding(level),))
    monkeypatch.setattr(doctor, "check_environment", lambda: found)
    assert run(["doctor", *flags]) == code
    assert "tells the time" in capsys.readouterr().out


def test_the_doctor_says_everything_in_json_too(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {}

    def look(url: str, **given: object) -> doctor.EndpointReport:
        asked.update(given, url=url)
        return doctor.EndpointReport(url=url, engine="vllm 1", findings=(finding("fail"),))

    reached = roofline.Roofline(
        requests_per_s=700, chunks_per_s=20_000, cores=2, loop="uvloop", bound_by="x", request_rungs=(),
        chunk_rungs=(),
    )  # fmt: skip
    monkeypatch.setattr(doctor, "check_endpoint", look)
    monkeypatch.setattr(roofline, "measure_client", lambda **_: reached)
    monkeypatch.setenv("ADVISE_API_KEY", "sesame")
    assert run(["doctor", "--endpoint", "http://127.0.0.1:1", "--model", "m", "--client", "--json"]) == 3
    said = json.loads(capsys.readouterr().out)
    assert (said["endpoint"]["engine"], said["client"]["requests_per_s"]) == ("vllm 1", 700)
    assert said["machine"]["findings"]
    assert asked == {"url": "http://127.0.0.1:1", "api_key": "sesame", "model": "m", "tokenizer": None}
    assert run(["doctor", "--client"]) == 0
    assert "700 requests/s" in capsys.readouterr().out


def test_this_machine_is_asked_nothing() -> None:
    assert asking.may_send("http://127.0.0.1:8000", yes=False)
    asking.ask_first("http://localhost:8000", yes=False)


def test_without_a_terminal_nobody_is_asked_and_nothing_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert not asking.may_send(REMOTE, yes=False)
    assert asking.may_send(REMOTE, yes=True)
    with pytest.raises(MachineError) as caught:
        asking.ask_first(REMOTE, yes=False)
    assert "--yes" in str(caught.value.hint)
    with pytest.raises(InputError, match="in the clear"):
        asking.ask_first(REMOTE, yes=True, key=True)
    assert run(["calibrate", "--url", REMOTE, "--gpu", "h100-sxm"]) == 3
    assert run(["calibrate", "--url", REMOTE]) == 2
    assert "--gpu" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "sent"), [("y", True), ("n", False)])
def test_on_a_terminal_a_person_decides(answer: str, sent: bool) -> None:
    code = f"from advisor.commands.asking import may_send; print('sends', may_send({REMOTE!r}, yes=False))"
    parent, child = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=child, stdout=subprocess.PIPE, stderr=child, text=True
    ) as process:
        os.close(child)
        os.write(parent, f"{answer}\n".encode())
        printed, _ = process.communicate(timeout=60)
    screen = os.read(parent, 65536).decode()
    os.close(parent)
    assert "engine.example is not this machine" in screen
    assert printed == ("sends True\n" if sent else "")  # a no ends it


def test_a_no_stops_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise typer.Abort

    monkeypatch.setattr(asking, "may_send", refuse)
    assert run(["calibrate", "--url", REMOTE, "--gpu", "h100-sxm"]) == 130
    assert "interrupted" in capsys.readouterr().err
