"""`advise doctor`: what it says of endpoints of many kinds, and of this machine."""

from __future__ import annotations

import asyncio
import io
import resource
from pathlib import Path

import pytest
from helpers.fake_server import Program, serving
from rich.console import Console

from advisor.report.doctor import show_endpoint, show_environment
from advisor.validation import doctor
from advisor.validation.doctor import EndpointReport, check_endpoint, check_environment
from engine.errors import InputError

FAST = {"ttft_s": 0.001, "tpot_s": 0.0001}
BUSY = "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n"
NAMES = [
    *("answers", "model", "context", "other load", "emulation"),
    *("prompts", "output lengths", "token counts", "cached tokens", "chunks"),
]


def look(**program: object) -> EndpointReport:
    async def looked() -> EndpointReport:
        async with serving(Program(**FAST, **program)) as url:
            return await asyncio.to_thread(check_endpoint, url)

    return asyncio.run(looked())


def levels(report: EndpointReport) -> dict[str, str]:
    return {finding.name: finding.level for finding in report.findings}


def test_a_sound_endpoint_has_a_line_for_each_check() -> None:
    report = look(chat=True, metrics=["vllm:num_requests_running 0\n"], card={"owned_by": "vllm"})
    assert [finding.name for finding in report.findings] == NAMES
    assert set(levels(report).values()) == {"ok"}
    assert (report.model, report.max_len, report.form, report.engine) == ("fake", 8192, "token ids", "vLLM")
    assert not report.fails


@pytest.mark.parametrize(
    ("name", "program", "said", "hint"),
    [
        ("other load", {"metrics": [BUSY]}, "2 requests run and 1 wait", "--shared"),
        ("other load", {}, "does not tell", None),
        (
            "context",
            {"card": {"max_model_len": None, "owned_by": "library"}},
            "does not tell",
            "OLLAMA_CONTEXT",
        ),
        ("emulation", {"health": {"emulated": {"gpu": "l4", "time_scale": 8}}}, "l4, its clock 8 times", None),
        ("prompts", {"no_completions": True, "chat": True}, "chat on /v1/chat", "--tokenizer"),
        ("output lengths", {"chat": True, "forces_length": False}, "end by themselves", None),
        ("output lengths", {"refuses": ["min_tokens", "ignore_eos"]}, "cannot be forced", None),
        ("token counts", {"usage": False}, "no usage", None),
        ("cached tokens", {"cached": "never", "card": {"owned_by": "vllm"}}, "not", "--enable-prompt-tokens"),
        ("cached tokens", {"cached": "never", "card": {"owned_by": "sglang"}}, "not", "--enable-cache-report"),
        ("chunks", {"tokens_per_chunk": 4}, "4 tokens a chunk", None),
    ],
)
def test_what_is_missing_is_a_warning(name: str, program: dict, said: str, hint: str | None) -> None:
    report = look(**program)
    (finding,) = [finding for finding in report.findings if finding.name == name]
    assert finding.level == "warn"
    assert said in finding.said
    assert finding.hint is None if hint is None else hint in (finding.hint or "")
    assert not report.fails


def test_what_cannot_be_replayed_fails() -> None:
    refused = look(refuse=True)
    assert levels(refused)["prompts"] == "fail"
    assert refused.fails
    locked = look(api_key="secret")
    assert levels(locked) == {"answers": "fail"}
    assert "ADVISE_API_KEY" in (locked.findings[0].hint or "")
    nobody = check_endpoint("http://127.0.0.1:9")
    assert levels(nobody) == {"answers": "fail"}
    with pytest.raises(InputError):
        check_endpoint("nonsense")


def test_a_servers_words_cannot_write_to_the_terminal() -> None:
    report = look(
        card={"id": "m\u001b[31m", "owned_by": "vllm"}, pages={"/version": {"version": "\u001b]0;x\u0007"}}
    )
    screen = io.StringIO()
    show_endpoint(Console(width=80, file=screen), report)
    assert not {letter for letter in screen.getvalue() if not letter.isprintable()} - {"\n"}


def test_the_screens_say_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    report = look(no_completions=True, chat=True)
    show_endpoint(Console(width=80), report)
    shown = capsys.readouterr().out
    assert all(finding.name in shown for finding in report.findings)
    assert "hint: add --tokenizer FOLDER" in shown
    assert f"advise validate --url {report.url}" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_this_machine_has_a_line_for_each_check(capsys: pytest.CaptureFixture[str]) -> None:
    report = check_environment()
    names = [finding.name for finding in report.findings]
    assert names == [
        *(
            "open files",
            "cores",
            "clock",
            "bundled engine",
            "user cache",
            "embedded model",
            "calibration",
            "GPUs",
        )
    ]
    show_environment(Console(width=80), report)
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(doctor, "user_cache", lambda: tmp_path / "advise")
    return tmp_path / "advise"


def calibration(now_s: float | None = None) -> doctor.Finding:
    return next(one for one in check_environment(now_s=now_s).findings if one.name == "calibration")


def test_a_calibration_ages(empty_cache: Path) -> None:
    assert (calibration().level, calibration().hint) == ("warn", "advise calibrate")
    empty_cache.mkdir()
    file = empty_cache / "step_times.yaml"
    file.write_text("calibrations: []\n")
    made_s = file.stat().st_mtime
    assert calibration(made_s + 3 * 86_400).level == "ok"
    assert "3 days old" in calibration(made_s + 3 * 86_400).said
    assert calibration(made_s + 91 * 86_400).level == "warn"
    file.write_text("nonsense")
    assert calibration().level == "fail"
    assert not check_environment().sound


def test_few_files_are_a_warning_with_what_the_hard_limit_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 2048))
    finding = check_environment().findings[0]
    assert (finding.level, finding.hint) == ("warn", "ulimit -n 2048")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    assert check_environment().findings[0].level == "ok"
