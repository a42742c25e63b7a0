"""`advise analyze` on the public traces, end to end through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.embedded import embedded_folder

from advisor.advice.resolve import TargetOptions
from advisor.analyze import AnalyzeOptions, analyze
from advisor.cli import run
from advisor.logs.options import ReadOptions


def analysis(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What `advise analyze ... --no-plan --json` prints."""
    assert run(["analyze", *arguments, "--no-plan", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_mooncake_conversation(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of the public trace: its README, FAST'25 Table 2, and counts over the file."""
    log = str(shared / "traces/mooncake/conversation_trace.jsonl.gz")
    sizes = [blocks * 512 for blocks in (5859, 10000, 50000, 97656)]
    report = analysis(capsys, log, "--cache-tokens", ",".join(map(str, sizes)))
    assert report["log"]["requests"] == 12031
    assert report["lengths"]["prompt"]["mean"] == pytest.approx(12035.1, abs=0.05)
    assert report["lengths"]["prompt"]["p90"] == 27367
    assert report["lengths"]["output"]["mean"] == pytest.approx(342.6, abs=0.05)
    arrivals = report["arrivals"]
    assert arrivals["rate_rps"] == pytest.approx(3.401, abs=0.0005)
    assert arrivals["cv"] == pytest.approx(3.034, abs=0.0005)
    assert report["log"]["tick_s"] == 3.0
    assert arrivals["cv_spread"] == pytest.approx(1.0, abs=0.05)
    assert list(arrivals["dispersion"].values()) == pytest.approx([7.90, 2.10, 2.89], abs=0.006)
    sharing = report["sharing"]
    assert sharing["hit_rate_blocks"] == pytest.approx(0.3664, abs=0.00005)
    curve = {point["tokens"]: point["hit_rate_blocks"] for point in sharing["capacity_curve"]}
    assert [curve[size] for size in sizes] == pytest.approx([0.1361, 0.2116, 0.3546, 0.3635], abs=0.00005)


@pytest.mark.slow  # a minute
def test_a_plan_does_not_depend_on_how_many_processes_simulate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("advisor.advice.search.run.FEW_REQUESTS", 10)  # two processes for a small log too
    line = '{{"timestamp": {t}, "input_length": 1200, "output_length": 20, "hash_ids": [0, 1, {n}]}}\n'
    log = tmp_path / "log.jsonl"
    log.write_text("".join(line.format(t=250 * i, n=i + 2) for i in range(40)))
    target = TargetOptions(gpu="h100-sxm", model="llama-3.1-8b", slo="chat")
    one, two = (
        analyze([log], AnalyzeOptions(read=ReadOptions(processes=count), target=target))[0] for count in (1, 2)
    )
    assert one.plan is not None
    assert one.plan.simulation is not None
    assert one.canonical() == two.canonical()


@pytest.mark.parametrize(
    ("name", "cv", "dispersion"),
    [("conv", 1.094, [1.385, 3.857, 16.13]), ("code", 13.15, [13.2, 71.6, 164.0])],
)
def test_azure_2023(
    shared: Path, capsys: pytest.CaptureFixture[str], name: str, cv: float, dispersion: list[float]
) -> None:
    """Figures of the public files, as published with them and computed elsewhere."""
    report = analysis(capsys, str(shared / f"traces/azure-llm-2023/AzureLLMInferenceTrace_{name}.csv"))
    assert report["arrivals"]["cv"] == pytest.approx(cv, abs=0.005)
    assert list(report["arrivals"]["dispersion"].values()) == pytest.approx(dispersion, rel=0.002)
    assert report["sharing"]["hit_rate_tokens"] is None
    assert any(entry["path"] == "sharing.hit_rate_tokens" for entry in report["unknown"])


@pytest.mark.parametrize(("block_size", "hit_rate"), [(16, 0.9348), (64, 0.9317), (512, 0.9019)])
def test_lmcache_miniswe(
    shared: Path, capsys: pytest.CaptureFixture[str], block_size: int, hit_rate: float
) -> None:
    """Token hit rates of the public text trace, computed with the embedded model's tokenizer elsewhere."""
    embedded_folder()
    folder = str(shared / "traces/lmcache-agent/miniswe")
    report = analysis(capsys, folder, "--block-size", str(block_size))
    assert report["log"]["requests"] == 402
    assert report["sharing"]["hit_rate_tokens"] == pytest.approx(hit_rate, abs=0.002)
