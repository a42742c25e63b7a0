"""Where each field of a target comes from: flag > target file > log > this machine > preset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from advisor.advice.current import read_current
from advisor.advice.machine import Machine
from advisor.advice.resolve import NoTarget, TargetOptions, load_target, resolve_target
from advisor.advice.target import Target
from engine.errors import InputError

LAPTOP = Machine(cores=4, memory_bytes=16 * 10**9)
SERVER = Machine(64, 512 * 10**9, ("h100-sxm", "h100-sxm"), ("NVIDIA H100 80GB HBM3",) * 2)


def resolve(log_model: str | None = None, machine: Machine = LAPTOP, **options: Any) -> Target:
    """The target; fails the test where there is none."""
    found = resolve_target(TargetOptions(**options), log_model, machine)
    assert isinstance(found, Target)
    return found


def test_here_without_a_gpu_is_this_machines_cores_and_the_embedded_model() -> None:
    target = resolve(here=True)
    assert (target.gpu, target.gpus, target.memory_bytes) == ("cpu", 4, 16 * 10**9)
    assert target.model == "smollm2-135m-instruct"
    assert (target.slo.ttft_s, target.slo.tpot_s, target.slo.attainment) == (3.0, 0.15, 0.90)
    assert target.origins["gpu"] == target.origins["model"] == "this machine"
    assert target.origins["slo.ttft_s"] == target.origins["stack"] == "preset"


def test_here_ignores_the_model_of_the_log_without_a_gpu() -> None:
    assert resolve("llama-3.1-70b", here=True).model == "smollm2-135m-instruct"
    assert resolve("llama-3.1-70b", here=True, model="qwen2.5-0.5b").model == "qwen2.5-0.5b"


def test_a_gpu_that_was_found_and_a_model_that_the_log_names() -> None:
    target = resolve("meta-llama/Llama-3.1-8B", SERVER)
    assert (target.gpu, target.gpus, target.model) == ("h100-sxm", 2, "llama-3.1-8b")
    assert target.origins["gpus"] == "this machine"
    assert target.origins["model"] == "log"
    assert (target.slo.ttft_s, target.slo.attainment) == (0.5, 0.99)  # the chat preset


def test_another_gpu_than_this_machines_does_not_take_its_count() -> None:
    assert resolve(machine=SERVER, gpu="l4", model="qwen3-8b").gpus == 1
    assert resolve(machine=SERVER, gpu="H100", model="qwen3-8b").gpus == 2
    assert resolve(here=True, gpu="l4", model="qwen3-8b").gpus == 1


def test_the_cpu_can_be_named_beside_a_gpu() -> None:
    target = resolve("llama-3.1-8b", SERVER, gpu="cpu")
    assert (target.gpu, target.gpus, target.model) == ("cpu", 64, "smollm2-135m-instruct")


def test_flags_win_over_everything(tmp_path: Path) -> None:
    file = tmp_path / "target.yaml"
    file.write_text("model: qwen3-8b\ngpu: l4\ngpus: 3\nslo: {ttft_s: 9, attainment: 0.8}\n")
    target = resolve("llama-3.1-8b", SERVER, target=file, gpu="H200", ttft_s=1.5)
    assert (target.gpu, target.gpus, target.model) == ("h200-sxm", 3, "qwen3-8b")
    assert (target.slo.ttft_s, target.slo.tpot_s, target.slo.attainment) == (1.5, None, 0.8)
    assert target.origins["gpu"] == target.origins["slo.ttft_s"] == "flag"
    assert (
        target.origins["gpus"] == target.origins["model"] == target.origins["slo.attainment"] == "target file"
    )


def test_a_named_preset_replaces_all_latency_targets_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "target.yaml"
    file.write_text("model: qwen3-8b\ngpu: l4\nslo: {tbt_s: 0.1}\n")
    slo = resolve(target=file, slo="rag", attainment=0.95).slo
    assert (slo.ttft_s, slo.tpot_s, slo.tbt_s, slo.attainment) == (1.2, 0.06, None, 0.95)


def test_latencies_given_as_flags_are_all_that_is_asked_for_of_nine_in_ten() -> None:
    # design.md section 3: a preset's percentile is the attainment, without one it is 0.90.
    slo = resolve(gpu="l4", model="qwen3-8b", ttft_s=2.0, tpot_s=0.05).slo
    assert (slo.ttft_s, slo.tpot_s, slo.tbt_s, slo.attainment) == (2.0, 0.05, None, 0.90)
    assert resolve(gpu="l4", model="qwen3-8b", tbt_s=0.2).slo.tpot_s is None
    assert resolve(gpu="l4", model="qwen3-8b", tbt_s=0.2, attainment=0.95).slo.attainment == 0.95


def test_a_named_preset_keeps_its_percentile_beside_other_latencies() -> None:
    slo = resolve(gpu="l4", model="qwen3-8b", slo="chat", ttft_s=2.0).slo
    assert (slo.ttft_s, slo.tpot_s, slo.attainment) == (2.0, 0.05, 0.99)


def test_what_runs_now_says_engine_model_and_gpus_behind_flags_and_before_the_log() -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B -tp 2 --quantization fp8 --max-model-len 8192"
    options = TargetOptions(gpu="h100-sxm", slo="chat")
    target = resolve_target(options, "qwen3-8b", LAPTOP, read_current(line))
    assert isinstance(target, Target)
    assert (target.stack, target.model, target.gpus) == ("vllm", "llama-3.1-8b", 2)
    assert (target.dtype, target.max_len) == ("fp8", 8192)
    assert target.origins["stack"] == target.origins["gpus"] == "what runs now"
    named = resolve_target(replace(options, stack="sglang", gpus=8), None, LAPTOP, read_current(line))
    assert isinstance(named, Target)
    assert (named.stack, named.gpus, named.model) == ("sglang", 8, "llama-3.1-8b")


def test_a_cpu_takes_nothing_from_what_runs_elsewhere() -> None:
    target = resolve_target(TargetOptions(here=True), None, LAPTOP, read_current("vllm serve m -tp 2"))
    assert isinstance(target, Target)
    assert (target.stack, target.gpus, target.model) == ("advise", 4, "smollm2-135m-instruct")


def test_throughput_has_no_latency_target() -> None:
    slo = resolve(here=True, objective="throughput").slo
    assert (slo.ttft_s, slo.tpot_s, slo.tbt_s) == (None, None, None)


def test_a_deadline_stands_beside_the_objective_throughput_with_its_origin(tmp_path: Path) -> None:
    target = resolve(here=True, objective="throughput", deadline_s=21600.0)
    assert (target.deadline_s, target.origins["deadline_s"]) == (21600.0, "flag")
    path = tmp_path / "target.yaml"
    path.write_text(yaml.safe_dump(target.model_dump()))
    again = resolve(target=path)
    assert (again.deadline_s, again.objective) == (21600.0, "throughput")
    assert again.origins["deadline_s"] == again.origins["slo"] == "target file"
    # Without latency targets nothing but throughput is asked for, whatever the word.
    path.write_text(yaml.safe_dump({**target.model_dump(), "objective": "goodput"}))
    assert resolve(target=path).deadline_s == 21600.0


def test_an_objective_given_as_a_flag_overrules_the_deadline_of_a_target_file(tmp_path: Path) -> None:
    path = tmp_path / "target.yaml"
    path.write_text(yaml.safe_dump(resolve(here=True, objective="throughput", deadline_s=60.0).model_dump()))
    target = resolve(target=path, objective="goodput", slo="chat")
    assert (target.deadline_s, target.objective, target.slo.ttft_s) == (None, "goodput", 0.5)
    assert "deadline_s" not in target.origins


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deadline_s": 60.0}, r"a deadline \(flag\) is for a batch"),
        ({"deadline_s": 60.0, "objective": "goodput", "ttft_s": 1.0}, r"a deadline \(flag\) is for a batch"),
        ({"deadline_s": 60.0, "objective": "tbt", "tbt_s": 0.2}, r"a deadline \(flag\) is for a batch"),
        ({"deadline_s": 0.0, "objective": "throughput"}, "longer than 0"),
    ],
)
def test_a_deadline_beside_latency_targets_is_refused_with_a_hint(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        resolve(here=True, **options)
    assert "--deadline 6h" in str(error.value.hint)


@pytest.mark.parametrize(
    ("options", "log_model", "machine", "reason", "hint"),
    [
        ({}, "llama-3.1-8b", LAPTOP, "no GPU was found on this machine and none was named", "--here"),
        ({"model": "qwen3-8b"}, None, LAPTOP, "no GPU was found", "--gpu NAME"),
        ({"gpu": "l4"}, None, LAPTOP, "the log names no model, and none was named", "--model NAME"),
        ({"gpu": "l4"}, "gpt-4o", LAPTOP, "the log's model 'gpt-4o' is not in the profiles", "--model NAME"),
        ({}, None, SERVER, "the log names no model", "--model NAME"),
    ],
)
def test_without_device_or_model_there_is_no_target(
    options: dict[str, Any], log_model: str | None, machine: Machine, reason: str, hint: str
) -> None:
    found = resolve_target(TargetOptions(**options), log_model, machine)
    assert isinstance(found, NoTarget)
    assert reason in found.reason
    assert hint in found.hint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "h9000"}, "unknown GPU"),
        ({"gpu": "l4", "model": "no-such"}, "unknown model"),
        ({"here": True, "slo": "fast"}, "unknown latency preset"),
        ({"gpu": "l4", "model": "qwen3-8b", "link": "fast"}, "link 'fast' is not understood"),
    ],
)
def test_unknown_names_are_input_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve_target(TargetOptions(**options), None, LAPTOP)


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"ttft_s": 0.0}, "--ttft"),
        ({"tbt_s": -1.0}, "--tbt"),
        ({"ttft_s": 1.0, "attainment": 2.0}, "--attainment"),
        ({"gpu_price": -3.0}, "--gpu-price"),
        ({"gpus": 0}, "--gpus"),
    ],
)
def test_a_number_out_of_range_is_an_input_error_that_names_the_flag(
    options: dict[str, Any], flag: str
) -> None:
    """Each but the last ended in "this is a bug in advise"."""
    with pytest.raises(InputError, match=f"{flag} .* cannot be used") as caught:
        resolve(model="llama-3.1-8b", gpu="h100-sxm", **options)
    assert "than" in str(caught.value.why)


@pytest.mark.parametrize(
    ("text", "where"),
    [("gpus: [", ""), ("model: m\ngpu: l4\ngpsu: 3\n", ""), ("model: m\ngpu: l4\ngpus: 0.5\n", "gpus")],
)
def test_a_broken_target_file_is_named(tmp_path: Path, text: str, where: str) -> None:
    file = tmp_path / "target.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        load_target(file)
    assert str(file) in str(caught.value.where)
    assert where in str(caught.value.where)


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "target.yaml"
    file.write_text("model: m\ngpu: l4\ngpsu: 3\n")
    with pytest.raises(InputError) as caught:
        load_target(file)
    assert "unknown key 'gpsu'; did you mean 'gpu" in str(caught.value.why)


def test_missing_target_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_target(tmp_path / "no.yaml")


def test_a_target_survives_its_file(tmp_path: Path) -> None:
    target = resolve(machine=SERVER, model="qwen3-8b", link="100Gbps", tbt_s=0.2, gpus="auto")
    file = tmp_path / "target.yaml"
    file.write_text(yaml.safe_dump(target.model_dump(mode="json", exclude={"origins"})))
    again = resolve(machine=replace(LAPTOP), target=file)
    assert again.model_dump(exclude={"origins"}) == target.model_dump(exclude={"origins"})
    assert set(again.origins.values()) <= {"target file", "preset"}
