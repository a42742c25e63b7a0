"""The plan's files: what they hold, that they are the same each time, and that hand edits are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.workloads import workload

from advisor.advice.advise import advise
from advisor.advice.analysis import Analysis, LogSummary, Meta
from advisor.advice.machine import Machine
from advisor.advice.resolve import TargetOptions, load_target, resolve_target
from advisor.advice.target import Target
from advisor.deploy.files import edited_files, write_plan_files
from advisor.simulation.slo import Slo
from engine.config_file import read_config
from engine.errors import InputError
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.files import Key

STEPS = CalibratedStepTime(Coefficients(0.020, 0.0, 0.001, 0.0, 0.0015, 0.0), 0.03, 0.08, 100)
KEY = Key("advise", "0.1.0", "cpu", "smollm2-135m-instruct", "bfloat16", 2)
TARGET = Target(
    model="smollm2-135m-instruct",
    gpu="cpu",
    gpus=2,
    memory_bytes=16 * 10**9,
    slo=Slo(ttft_s=3, tpot_s=0.15),
    origins={"gpu": "this machine", "slo.ttft_s": "flag"},
)
NAMES = ("target.yaml", "engine.yaml", "plan.json", "trace.jsonl")


def analysis(target: Target = TARGET) -> Analysis:
    """An analysis with a plan."""
    measured = workload()
    advice = advise(measured, target, {KEY: STEPS})
    return Analysis(
        meta=Meta(advise_version="0.1.0", seed=7, inputs_digest="0" * 64),
        log=LogSummary(
            format="jsonl", files=1, lines=5000, requests=5000, skipped={}, models=(), span_s=measured.span_s,
            arrival_basis="", tick_s=None, token_basis="", prefix_basis=None,
        ),
        lengths=measured.lengths, arrivals=measured.arrivals, sharing=measured.sharing, classes=(), traits=(),
        findings=advice.findings, unknown=advice.unknown, not_modelled=advice.not_modelled, plan=advice.plan,
        plan_reason=advice.plan_reason,
    )  # fmt: skip


def save_trace(path: Path) -> None:
    path.write_text('{"timestamp":0}\n')


def test_engine_yaml_is_the_plans_configuration_with_its_reasons(tmp_path: Path) -> None:
    result = analysis()
    assert result.plan is not None
    paths = write_plan_files(tmp_path, result, save_trace)
    assert sorted(p.name for p in paths) == sorted(NAMES) == sorted(result.plan.files)
    assert read_config(tmp_path / "engine.yaml") == result.plan.engine_config()
    text = (tmp_path / "engine.yaml").read_text()
    for name, reason in result.plan.reasons.items():
        line = next(
            line for line in text.splitlines() if line.lstrip(" -").startswith(f"{name.split('.')[-1]}:")
        )
        assert line.endswith(f"# {reason}")
    assert f"Plan {result.digest()[:12]}" in text
    assert "calibrated" in text


def test_target_yaml_gives_the_target_back(tmp_path: Path) -> None:
    write_plan_files(tmp_path, analysis(), save_trace)
    path = tmp_path / "target.yaml"
    assert Target(**load_target(path)).model_dump(exclude={"origins"}) == TARGET.model_copy(
        update={"dtype": "bfloat16"}
    ).model_dump(exclude={"origins"})
    assert "# this machine" in path.read_text()
    elsewhere = Machine(cores=64, memory_bytes=10**12)
    again = resolve_target(TargetOptions(target=path), None, elsewhere)
    assert isinstance(again, Target)
    assert (again.gpus, again.memory_bytes, again.origins["gpus"]) == (2, 16 * 10**9, "target file")


def test_plan_json_is_the_analysis_and_its_digest(tmp_path: Path) -> None:
    result = analysis()
    write_plan_files(tmp_path, result, save_trace)
    content = json.loads((tmp_path / "plan.json").read_text())
    assert content.pop("digest") == result.digest()
    content.pop("trace_sha256")
    assert Analysis.model_validate(content) == result


def test_same_analysis_same_bytes_whatever_the_folder(tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        write_plan_files(tmp_path / name, analysis(), save_trace)
    for name in NAMES:
        content = (tmp_path / "a" / name).read_bytes()
        assert content == (tmp_path / "b/c" / name).read_bytes()
        assert str(tmp_path).encode() not in content


def test_what_advise_wrote_is_overwritten_silently(tmp_path: Path) -> None:
    write_plan_files(tmp_path, analysis(), save_trace)
    assert edited_files(tmp_path) == ()
    other = analysis(TARGET.model_copy(update={"slo": Slo(ttft_s=3, tpot_s=0.30)}))
    assert other.digest() != analysis().digest()
    write_plan_files(tmp_path, other, save_trace)
    assert other.plan is not None
    assert read_config(tmp_path / "engine.yaml") == other.plan.engine_config()


@pytest.mark.parametrize("name", NAMES)
def test_hand_edits_are_kept_without_force(tmp_path: Path, name: str) -> None:
    write_plan_files(tmp_path, analysis(), save_trace)
    path = tmp_path / name
    edited = path.read_text().replace("0", "1", 1) + "\n"
    path.write_text(edited)
    others = {n: (tmp_path / n).read_bytes() for n in NAMES if n != name}
    with pytest.raises(InputError, match="edited by hand") as caught:
        write_plan_files(tmp_path, analysis(), save_trace)
    assert caught.value.where == str(path)
    assert "--force" in str(caught.value.hint)
    assert path.read_text() == edited
    assert others == {n: (tmp_path / n).read_bytes() for n in others}
    write_plan_files(tmp_path, analysis(), save_trace, force=True)
    assert edited_files(tmp_path) == ()


@pytest.mark.parametrize("name", NAMES)
def test_files_of_others_are_kept_too(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}\n")
    with pytest.raises(InputError, match=name):
        write_plan_files(tmp_path, analysis(), save_trace)


def test_an_infeasible_plan_leaves_no_engine_yaml_behind(tmp_path: Path) -> None:
    write_plan_files(tmp_path, analysis(), save_trace)
    hopeless = analysis(TARGET.model_copy(update={"slo": Slo(ttft_s=0.001)}))
    paths = write_plan_files(tmp_path, hopeless, save_trace)
    assert "engine.yaml" not in {p.name for p in paths}
    assert not (tmp_path / "engine.yaml").exists()


def test_an_unknown_key_in_engine_yaml_names_the_nearest(tmp_path: Path) -> None:
    write_plan_files(tmp_path, analysis(), save_trace)
    path = tmp_path / "engine.yaml"
    path.write_text(path.read_text().replace("token_budget:", "token_bugdet:"))
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert "token_bugdet" in str(caught.value.why)
    assert "token_budget" in str(caught.value.why)


def test_no_plan_has_no_files(tmp_path: Path) -> None:
    nothing = analysis().model_copy(update={"plan": None})
    with pytest.raises(ValueError, match="without a plan"):
        write_plan_files(tmp_path, nothing, save_trace)
