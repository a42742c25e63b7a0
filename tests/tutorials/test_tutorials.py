"""docs/tutorials: every command in them is run, in order, by real processes in a folder of its own.

The runs are slow; what can be told of a page without running it is told in every run of the tests.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from helpers.command_lines import problem
from helpers.embedded import embedded_folder
from helpers.traffic import make_calls
from tutorials.shell import DOCS, NAMES, Ran, blocks, commands, page, run_all
from tutorials.stand_ins import record, write_kubectl, write_psql

from advisor.deploy.files import PLAN
from engine.resources import user_cache

SHELLS = ("sh", "bash", "shell", "zsh")
PROGRAMS = {"advise", "python", "kubectl", "psql", "curl", "until", "kill"}
VERDICTS = ("PASS", "LIKELY PASS", "LIKELY FAIL", "FAIL", "INVALID", "REHEARSED")
# A measurement may say no, or that it is not to be trusted: what else runs on the machine decides that. A job
# that was stopped says so.
FINE = {"advise validate": (1, 4), "kill %": (143,)}
TIMEOUT_S = 900
Place = tuple[Path, Path, dict[str, str]]


def test_there_are_three() -> None:
    assert NAMES == ("laptop", "litellm", "vllm-on-kubernetes")


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_a_page_is_one_that_the_slow_test_runs(name: str) -> None:
    """It runs the lines of ```console blocks: nothing to type stands elsewhere, or is split over lines."""
    lines = commands(name)
    assert len(lines) >= 5
    assert not [language for language, _ in blocks(name) if language in (*SHELLS, "")]
    prompts = re.findall(r"^\s*\$ .*", page(name), re.MULTILINE)
    assert [prompt.strip().removeprefix("$ ") for prompt in prompts] == lines
    assert not [line for line in lines if line.endswith("\\")]
    assert {shlex.split(line)[0] for line in lines} <= PROGRAMS


@pytest.mark.parametrize("name", NAMES)
def test_commands_and_flags_exist(name: str) -> None:
    indented = re.findall(r"(?:&& |^ {4})(advise [^&|\n]*)", page(name), re.MULTILINE)
    ours = [line for line in commands(name) if line.startswith("advise ")] + indented
    wrong = {line: why for line in ours if (why := problem(re.split(r" [>&|]", line)[0])) is not None}
    assert wrong == {}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page(name)):
        assert (DOCS / target).exists()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A folder to work in, one for programs, and a user cache that has the embedded model and nothing else."""
    embedded_folder()
    work, programs, cache = tmp_path / "work", tmp_path / "programs", tmp_path / "cache"
    for folder in (work, programs, cache / "advise"):
        folder.mkdir(parents=True)
    (cache / "advise" / "models").symlink_to(user_cache() / "models")
    return work, programs, {"XDG_CACHE_HOME": str(cache), "COLUMNS": "100"}


def follow(name: str, place: Place) -> list[Ran]:
    """Run the page, and check that all of it ran and that no command said there is a bug."""
    work, programs, variables = place
    ran = run_all(commands(name), work, programs, variables, fine=FINE, timeout_s=TIMEOUT_S)
    last = ran[-1]
    assert len(ran) == len(commands(name)), f"stopped at: {last.command} (exit {last.code})\n{last.output}"
    for one in ran:
        codes = next((codes for part, codes in FINE.items() if part in one.command), ())
        assert one.code in (0, *codes), f"{one.command} (exit {one.code})\n{one.output}"
    return ran


def result_of(work: Path) -> Any:
    return json.loads((work / "advise-out/result.json").read_text())


@pytest.mark.slow
def test_a_laptop(place: Place) -> None:
    ran = follow("laptop", place)
    work, _, variables = place
    assert (Path(variables["XDG_CACHE_HOME"]) / "advise" / "step_times.yaml").is_file()
    plan = json.loads((work / "advise-out" / PLAN).read_text())["plan"]
    assert (plan["target"]["gpu"], plan["step_time"]["source"]) == ("cpu", "calibrated")
    result = result_of(work)
    assert result["verdict"] in VERDICTS
    assert result["score"]["requests"] > 0
    assert result["plan_digest"] is not None
    [report] = [one for one in ran if one.command == "advise report"]
    assert report.output.strip() == "advise-out/report.html"
    assert result["verdict"] in (work / "advise-out/report.html").read_text()
    assert not (work / "advise-out/run.json").exists()  # the engine was stopped


@pytest.mark.slow
def test_vllm_on_kubernetes(place: Place, tmp_path: Path) -> None:
    work, programs, _ = place
    write_kubectl(programs, tmp_path / "recorded")
    ran = follow("vllm-on-kubernetes", place)
    plan = json.loads((work / "advise-out" / PLAN).read_text())["plan"]
    assert (plan["target"]["model"], plan["target"]["stack"]) == ("qwen3-8b", "vllm")
    assert plan["reasons"]["control.max_seqs"] == "read: 128 (--max-num-seqs)"
    rehearsed, measured = [one for one in ran if one.command.startswith("advise validate")]
    assert "REHEARSED" in rehearsed.output or "INVALID" in rehearsed.output
    assert result_of(work)["replayed"]["url"] == "http://127.0.0.1:18000"
    assert result_of(work)["replayed"]["model"] == "Qwen/Qwen3-8B"
    assert "REHEARSED" not in measured.output
    assert "the plan still fits" in " ".join(ran[-1].output.split())


@pytest.mark.slow
def test_litellm(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, programs, variables = place
    variables["DATABASE_URL"] = "postgresql://recorded"
    write_psql(programs, tmp_path / "recorded")
    monkeypatch.chdir(work)
    os.mkdir("requests")  # noqa: PTH102  (where the page's own code writes)
    [code] = [text for language, text in blocks("litellm") if language == "python"]
    names: dict[str, Any] = {}
    exec(compile(code, "docs/tutorials/litellm.md", "exec"), names)  # noqa: S102  (our own documentation)
    calls = [call for call in make_calls(400) if call.ok]
    record(names["recorder"], calls)
    ran = follow("litellm", place)
    assert f"{sum(call.model == 'qwen3-8b' for call in calls)} requests over" in " ".join(ran[0].output.split())
    for folder, gpu in (("advise-out", "h100-sxm"), ("advise-plan", "h200-sxm")):
        plan = json.loads((work / folder / PLAN).read_text())["plan"]
        assert (plan["target"]["model"], plan["target"]["gpu"]) == ("qwen3-8b", gpu)
        assert (work / folder / "report.html").is_file()
    assert "the advice is the same" in ran[-1].output
    assert "w1" not in (work / "trace.jsonl").read_text()
