"""The command line: exit codes, where output goes, and errors that help."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.quick import only_the_decision
from helpers.ruled import plan_by_rules

from advisor.cli import app, run

LINE = '{{"timestamp": {t}, "input_length": 1200, "output_length": 40, "hash_ids": [0, 1, {n}]}}\n'
LOG = "".join(LINE.format(t=i * 250, n=i + 2) for i in range(200))
SHORT = "".join(LINE.format(t=i * 250, n=i + 2) for i in range(40))
PLAN = ["--gpu", "h100-sxm", "--model", "llama-3.1-8b"]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """200 requests in Mooncake's format in the current folder, and the first 40 of them in short.jsonl."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.jsonl").write_text(LOG)
    (tmp_path / "short.jsonl").write_text(SHORT)
    return tmp_path / "log.jsonl"


def test_json_is_all_of_stdout(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "log.jsonl", "--no-plan", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["log"]["requests"] == 200
    assert report["plan"] is None
    assert report["plan_reason"]


@pytest.mark.slow  # a minute of search; tests/screens has the screen
def test_the_screen_says_what_was_read_found_and_comes_next(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", "log.jsonl", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--slo", "chat"]) == 0
    printed = capsys.readouterr()
    screen = printed.out
    assert "200 requests over 50 s, 4.02/s" in screen  # 200 requests in 199 gaps of 250 ms
    assert "84.9% of prompt tokens" in screen  # 199 of 200 requests hit 1,024 of 1,200 tokens
    assert "ADV101" in screen
    assert "TTFT <= 0.5 s" in screen
    assert "advise-out/engine.yaml" in screen
    assert "requests of the log; the search simulated" in screen
    labels = [line.split()[0] for line in screen.splitlines() if line[:1].isalpha()]
    assert labels.index("verdict") < labels.index("target") < labels.index("layout") < labels.index("checked")
    assert labels[-1] == "next"
    assert "simulating, searching: " in printed.err


def test_stdin_is_a_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "advisor", "analyze", "-", "--no-plan", "--json"]
    done = subprocess.run(command, input=LOG, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["log"]["requests"] == 200


def test_the_same_analysis_twice_writes_the_same_bytes(log: Path) -> None:
    command = ["analyze", "short.jsonl", *PLAN, "--slo", "chat"]
    assert run([*command, "--out", "one"]) == 0
    again = [sys.executable, "-m", "advisor", *command, "--out", "two"]
    subprocess.run(again, check=True, capture_output=True, env={"PYTHONHASHSEED": "1", "PATH": ""})
    names = sorted(path.name for path in Path("one").iterdir())
    assert names == ["engine.yaml", "plan.json", "report.html", "target.yaml", "trace.jsonl"]
    for name in names:
        assert (Path("one") / name).read_bytes() == (Path("two") / name).read_bytes()


def test_an_edited_file_is_kept_without_force(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_by_rules(monkeypatch)
    command = ["analyze", "short.jsonl", *PLAN]
    assert run(command) == 0
    engine = Path("advise-out/engine.yaml")
    engine.write_text(engine.read_text().replace("block_size: 16", "block_size: 32"))
    assert run(command) == 2
    assert "--force" in capsys.readouterr().err
    assert "block_size: 32" in engine.read_text()
    assert run([*command, "--force"]) == 0
    assert "block_size: 32" not in engine.read_text()


def test_a_plan_for_gpus_is_not_launched_on_cores(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_by_rules(monkeypatch)
    Path("model").mkdir()
    config = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
              "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192}  # fmt: skip
    Path("model/config.json").write_text(json.dumps(config))
    assert run(["analyze", "short.jsonl", "--gpu", "h100-sxm", "--model", "model"]) == 0
    capsys.readouterr()
    assert run(["launch", "--dry-run"]) == 3
    assert "the plan is for 1 x h100-sxm, of which this machine has none" in capsys.readouterr().err


def test_infeasible_is_exit_1(log: Path) -> None:
    assert run(["analyze", "short.jsonl", *PLAN, "--ttft", "1ms", "--tpot", "1ms"]) == 1


def test_a_plan_is_made_again_for_another_target_without_the_log(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_the_decision(monkeypatch)
    assert run(["analyze", "short.jsonl", *PLAN, "--slo", "chat"]) == 0
    Path("short.jsonl").unlink()
    first = capsys.readouterr().out
    assert run(["plan", "advise-out", "--gpu", "h200-sxm", "--gpu-price", "2", "--out", "other"]) == 0
    screen = capsys.readouterr().out
    assert "40 requests of the log" in screen
    assert "over 10 s" in first
    assert "over 10 s" not in screen  # what was measured was shown by analyze
    plan = json.loads(Path("other/plan.json").read_text())["plan"]
    assert (plan["target"]["gpu"], plan["target"]["model"]) == ("h200-sxm", "llama-3.1-8b")
    assert plan["target"]["slo"]["attainment"] == 0.99  # of the target file, as chat has it
    assert plan["usd_per_month"] == plan["gpus_needed"] * 2 * 730
    assert run(["plan", "other/plan.json", "--compare-to", "advise-out"]) == 2
    assert "gpu: h100-sxm and h200-sxm" in capsys.readouterr().err


def test_a_deadline_is_echoed_and_plans_with_another_are_refused(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_the_decision(monkeypatch)
    batch = ["analyze", "short.jsonl", *PLAN, "--objective", "throughput", "--deadline", "90m"]
    assert run(batch) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "no latency target, all done within 90 min" in screen
    assert "asked for: 90 min" in screen
    assert "deadline_s: 5400.0  # flag" in Path("advise-out/target.yaml").read_text()
    assert run(["plan", "advise-out", "--deadline", "2d", "--compare-to", "advise-out", "--out", "other"]) == 2
    assert "deadline_s: 5400.0 and 172800.0" in capsys.readouterr().err
    assert run(["plan", "advise-out", "--deadline", "1ms", "--out", "other"]) == 1
    screen = " ".join(capsys.readouterr().out.split())
    assert "infeasible: no layout ends by the deadline no layout ends the batch within 0.001 s" in screen
    assert "next a longer --deadline" in screen
    assert run(["analyze", "short.jsonl", *PLAN, "--deadline", "6h"]) == 2
    assert "--objective throughput --deadline 6h" in capsys.readouterr().err


def test_plans_for_one_target_stand_side_by_side(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_the_decision(monkeypatch)
    command = ["analyze", "short.jsonl", *PLAN, "--slo", "chat"]
    assert run(command) == 0
    capsys.readouterr()
    assert run(["plan", "advise-out/trace.jsonl", *PLAN, "--slo", "chat", "--rate", "2x",
                "--compare-to", "advise-out", "--out", "faster"]) == 0  # fmt: skip
    screen = capsys.readouterr().out
    assert "earlier" in screen
    [rates] = [line.split() for line in screen.splitlines() if line.startswith("rate to plan for")]
    # 40 requests in 39 gaps of 250 ms, and twice that.
    assert rates[-2:] == ["4.1/s", "8.21/s"]


def test_what_runs_now_is_the_control_and_its_unknown_flags_are_named(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_the_decision(monkeypatch)
    line = "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 100 --max-num-sequences 7"
    assert run(["analyze", "short.jsonl", "--gpu", "h100-sxm", "--slo", "chat", "--current", line]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "now vLLM, 1 x TP 1" in screen
    assert "max_seqs 100" in screen
    assert "--max-num-sequences not known" in screen
    plan = json.loads(Path("advise-out/plan.json").read_text())["plan"]
    assert (plan["target"]["stack"], plan["target"]["model"]) == ("vllm", "llama-3.1-8b")
    [control] = [one for one in plan["candidates"] if one["name"].startswith("now: vLLM")]
    assert control["pools"][0]["max_seqs"] == 100
    assert control["pools"][0]["token_budget"] == 8192  # vLLM on 80 GB


def test_what_runs_now_comes_through_a_pipe_too(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_the_decision(monkeypatch)
    monkeypatch.setattr("sys.stdin", io.StringIO("vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 100"))
    assert run(["analyze", "short.jsonl", "--gpu", "h100-sxm", "--current", "-"]) == 0
    plan = json.loads(Path("advise-out/plan.json").read_text())["plan"]
    assert plan["reasons"]["control.max_seqs"] == "read: 100 (--max-num-seqs)"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["analyze", "absent.jsonl"], 2, "absent.jsonl"),
        (["analyze", "log.jsonl", "--gpu", "h1000"], 2, "h100"),
        (["analyze", "log.jsonl", "--gpu", "h100-sxm", "--model", "lama-3.1-8b"], 2, "llama-3.1-8b"),
        (["analyze", "log.jsonl", "--ttft", "3 parsecs"], 2, "300ms"),
        (["analyze", "log.jsonl", "--where", "color=red"], 2, "model"),
        (["analyze", "log.jsonl", "--rate", "fast"], 2, "2x"),
        (["analyze", "--no-such-flag"], 2, "--no-such-flag"),
        (["analyze", "log.jsonl", *PLAN, "--current", "nginx -g off"], 2, "vllm serve"),
        (["analyze", "log.jsonl", *PLAN, "--current", "absent.yaml"], 2, "absent.yaml"),
        (["analyze", "-", *PLAN, "--current", "-"], 2, "--current FILE"),
        (["plan", "nowhere"], 2, "advise analyze"),
        (["plan", "log.jsonl", "--compare-to", "nowhere"], 2, "nowhere"),
        (["launch", "nowhere"], 2, "advise analyze"),
        (["validate", "nowhere"], 2, "advise analyze"),
    ],
)
def test_errors_say_what_and_hint(
    log: Path, capsys: pytest.CaptureFixture[str], command: list[str], code: int, words: str
) -> None:
    assert run(command) == code
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert "Traceback" not in printed.err
    assert words in printed.err
    assert not printed.out


def test_no_usable_line_is_exit_2_with_the_reason(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.jsonl").write_text('{"half": \nnot json\n')
    assert run(["analyze", "broken.jsonl"]) == 2
    printed = capsys.readouterr().err
    assert "invalid JSON" in printed
    assert "hint:" in printed


def test_a_bug_is_exit_5_without_data(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("the text of a prompt")

    monkeypatch.setattr("advisor.analyze.analyze", broken)
    assert run(["analyze", "log.jsonl"]) == 5
    printed = capsys.readouterr().err
    assert "bug" in printed
    assert "prompt" not in printed


def test_every_command_of_a_hint_exists() -> None:
    """A hint that starts with `advise` names a command there is."""
    commands = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    root = Path(__file__).resolve().parent.parent
    for path in [*root.glob("advisor/**/*.py"), *root.glob("engine/**/*.py")]:
        for word in re.findall(r'"advise ([a-z]+)', path.read_text()):
            assert word in commands, f"{path.name}: advise {word}"


def test_measuring_alone_loads_nothing_that_only_a_plan_needs(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [0]}\n' * 2)
    check = (
        "import sys; from advisor.analyze import AnalyzeOptions, analyze\n"
        "analyze(sys.argv[1:], AnalyzeOptions(plan=False))\n"
        "only = ('aiohttp', 'jinja2', 'advisor.advice.simulated', 'advisor.simulation.simulate')\n"
        "sys.exit(' '.join(name for name in only if name in sys.modules) or 0)"
    )
    subprocess.run([sys.executable, "-c", check, str(log)], check=True)


def test_importing_the_cli_loads_neither_torch_nor_numpy() -> None:
    check = "import sys, advisor.cli; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
