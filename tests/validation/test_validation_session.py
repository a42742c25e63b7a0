"""`advise validate` on the files of a plan: verdicts as exit codes, and what is written beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_server import Program, fake_server
from helpers.replay_traces import block_trace
from helpers.ruled import plan_by_rules

from advisor.advice.host import HostCosts
from advisor.advice.plan import Candidate, Plan, StepTimeUse
from advisor.advice.target import Target
from advisor.cli import run
from advisor.simulation.slo import Slo
from advisor.validation.journal import read_journal
from advisor.validation.load import window_load
from advisor.validation.window import select
from engine.config import PoolConfig, RouterConfig
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.files import Key

LINE = '{{"timestamp": {t}, "input_length": 600, "output_length": 5, "hash_ids": [0, {n}]}}\n'
ANALYZE = [
    "analyze",
    "log.jsonl",
    "--gpu",
    "h100-sxm",
    "--model",
    "llama-3.1-8b",
    "--ttft",
    "5s",
    "--tpot",
    "1s",
]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a plan for 40 requests at 20 a second, with loose targets."""
    plan_by_rules(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("log.jsonl").write_text("".join(LINE.format(t=i * 50, n=i + 1) for i in range(40)))
    assert run(ANALYZE) == 0
    return tmp_path / "advise-out"


@pytest.mark.parametrize(
    ("program", "code", "verdict"),
    [
        (Program(ttft_s=0.01, tpot_s=0.001), 0, "PASS"),
        (Program(ttft_s=0.01, tpot_s=0.001, error_on=[0, 5]), 1, "FAIL"),
        (Program(ttft_s=0.01, tpot_s=0.001, error_on=list(range(10))), 4, "INVALID"),
    ],
)
def test_the_verdict_is_the_exit_code_and_is_saved(
    planned: Path, program: Program, code: int, verdict: str
) -> None:
    with fake_server(program) as url:
        assert run(["validate", "--url", url, "--window", "all"]) == code
    saved = json.loads((planned / "result.json").read_text())
    assert saved["verdict"] == verdict
    assert saved["slo"]["ttft_s"] == 5.0
    [run_of_it] = read_journal(planned / "requests.jsonl")
    assert len(run_of_it.records) == 40
    page = (planned / "report.html").read_text()
    assert verdict in page


def test_a_prompt_over_the_context_is_exit_3_unless_fitted(
    planned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server(Program(ttft_s=0.01, tpot_s=0.001, max_model_len=300)) as url:
        assert run(["validate", "--url", url, "--window", "all"]) == 3
        assert "100.0%" in capsys.readouterr().err
        assert run(["validate", "--url", url, "--window", "all", "--fit", "lengths"]) == 0
    assert "scaled: not your traffic" in capsys.readouterr().out


def test_another_machine_needs_yes(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--url", "http://203.0.113.1:8000"]) == 3
    assert "--yes" in capsys.readouterr().err


def test_load_of_a_window_counts_only_uncached_tokens() -> None:
    """Closed form: a step takes 1 ms a new token and nothing else, so load = uncached tokens a ms of window."""
    size = 16
    rows = [(size * 10, [*range(9), 100 + i]) for i in range(11)]  # nine shared blocks and one of its own
    window = select(block_trace(rows, size), "all")
    pool = PoolConfig(token_budget=64, max_seqs=8, devices_per_instance=2)
    slo, alone = Slo(ttft_s=2, tpot_s=0.1), HostCosts(request_s=0, token_s=0)
    plan = Plan(
        target=Target(model="smollm2-135m-instruct", gpu="cpu", gpus=2, slo=slo, host=alone),
        step_time=StepTimeUse(source="calibrated", error_p90=0.1, key="test"),
        candidates=(Candidate(name="c", pools=(pool,), router=RouterConfig(), gpus=2),),
        chosen="c",
        verdict="undecided",
        runs_on={"advise": "yes"},
    )
    key = Key("advise", "0", "cpu", "smollm2-135m-instruct", "bfloat16", 2)
    load = window_load(window, plan, {key: CalibratedStepTime(Coefficients(0, 0, 1e-3, 0, 0, 0), 0.1, 0.1, 50)})
    assert load is not None
    uncached = size * 10 + 10 * size  # the first request computes all, the ten others one block
    assert load.utilisation == pytest.approx(uncached * 1e-3 / window.length_s)
    assert load.backlog_s == 2
    assert window_load(window, plan, {}) is None  # without a calibration nothing is a measured limit
    assert np.isclose(load.limit, 1 + 2 / window.length_s)
