"""Fleets and rehearsals: which configurations launch, on how many cores, and what an emulation is made of."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_router import PROGRAM
from helpers.workloads import workload
from rich.console import Console

from advisor.advice.machine import Machine
from advisor.advice.plan import Candidate, Plan, StepTimeUse
from advisor.advice.search.hardware import hardware_of
from advisor.advice.situation import draw
from advisor.advice.target import Target
from advisor.cli import run
from advisor.deploy.launch import CpuTimes, Launchable, find, launch, refuse, serve
from advisor.deploy.rehearsal import rehearsal
from advisor.deploy.run import read_run
from advisor.report.launch import show_cpu_times, show_launched
from advisor.simulation.slo import Slo
from engine.config import EngineConfig, PoolConfig, RouterConfig
from engine.config_file import config_text
from engine.emulation import read_emulation
from engine.errors import InputError, MachineError
from engine.host import usable_cores
from engine.launchable import devices, why_not_launchable, why_too_few_cores
from engine.step_time.model import StepShape

H100 = Target(model="llama-3.1-8b", gpu="h100-sxm", gpus=3, stack="advise", slo=Slo(ttft_s=1, tpot_s=0.05))
SPLIT = (
    PoolConfig(role="prefill", count=1, kv_tokens=64_000, token_budget=2048),
    PoolConfig(role="decode", count=2, kv_tokens=48_000),
)


def config(pools: str) -> EngineConfig:
    return EngineConfig.model_validate({"pools": json.loads(pools)})


@pytest.mark.parametrize(
    "pools",
    [
        '[{"count": 2}]',
        '[{"role": "prefill"}, {"role": "decode"}]',
        '[{"role": "decode", "count": 2}, {"role": "prefill", "count": 3}]',
        '[{"role": "prefill", "count": 2}, {"role": "decode"}, {"count": 2}]',
        '[{"role": "prefill"}]',
        '[{"role": "decode", "count": 2}]',
        '[{"role": "prefill", "tp": 2, "devices_per_instance": 2}, {"role": "decode", "tp": 2, '
        '"devices_per_instance": 2}, {"tp": 1}]',
    ],
)
def test_fleets_that_launch(pools: str) -> None:
    assert why_not_launchable(config(pools)) is None


@pytest.mark.parametrize(
    ("pools", "words", "emulated"),
    [
        ('[{"pp": 2}]', "pp 1 only", True),
        ('[{"role": "prefill"}, {"role": "decode", "pp": 2}]', "pp 1 only", True),
        ('[{"role": "prefill"}, {}]', "a prefill pool needs a decode pool beside it", True),
        ('[{}, {"role": "decode"}]', "a decode pool needs a prefill pool beside it", True),
        ('[{"role": "prefill", "block_size": 32}, {"role": "decode"}]', "block_size: 16 and 32", True),
        ('[{"tp": 2, "devices_per_instance": 3}]', "3 devices cannot be shared equally by 2 ranks", True),
        (
            '[{"role": "prefill", "tp": 2, "devices_per_instance": 2}, {"role": "decode"}]',
            "differ in tp: 1 and 2",
            False,
        ),
    ],
)
def test_fleets_that_do_not_launch(pools: str, words: str, emulated: bool) -> None:
    """`emulated`: refused too where steps are slept; KV that only stands for KV has no ranks."""
    assert words in str(why_not_launchable(config(pools)))
    assert (why_not_launchable(config(pools), emulated=True) is not None) == emulated


def test_weights_are_asked_for_unless_steps_are_slept() -> None:
    other = EngineConfig.model_validate({"model": {"name": "llama-3.1-8b"}})
    assert "have no path" in str(why_not_launchable(other))
    assert why_not_launchable(other, emulated=True) is None


def test_every_instance_has_cores_of_its_own() -> None:
    fleet = config('[{"role": "prefill", "devices_per_instance": 2}, {"role": "decode", "count": 3}]')
    assert devices(fleet) == 5
    assert why_too_few_cores(fleet, 5) is None
    assert why_too_few_cores(fleet, 4) == (
        "5 cores are needed (1 prefill x 2, 3 decode x 1), this machine has 4"
    )


def folder_of(tmp_path: Path, pools: tuple[PoolConfig, ...], target: Target | None = H100, **of: Any) -> Path:
    """An output folder whose model path is where the fake router leaves what it was given."""
    seen = tmp_path / "seen"
    seen.mkdir(exist_ok=True)
    served = EngineConfig.model_validate(
        {"pools": [pool.model_dump() for pool in pools], "model": {"name": "fake", "path": str(seen)},
         "server": {"port": 0, "drain_s": 1}}
    )  # fmt: skip
    (tmp_path / "engine.yaml").write_text(config_text(served))
    if target is not None:
        candidate = Candidate(name="one", pools=pools, router=RouterConfig(), gpus=3)
        use = StepTimeUse(source="published", error_p90=None, key="test")
        fields: dict[str, Any] = {"verdict": "change", "runs_on": {"advise": "yes"}, "step_time": use} | of
        plan = Plan(target=target, candidates=(candidate,), chosen="one", **fields)
        (tmp_path / "plan.json").write_text(
            json.dumps({"digest": "d" * 64, "plan": plan.model_dump(mode="json")})
        )
    return tmp_path


def as_planned(folder: Path) -> Launchable:
    """As if engine.yaml were the plan's own: tests serve another model name and path."""
    return replace(find(folder), edits=())


def test_a_split_too_large_for_the_cores_needs_oversubscribe(tmp_path: Path) -> None:
    cores = usable_cores()
    pools = (PoolConfig(role="prefill", count=cores), PoolConfig(role="decode"))
    found = find(folder_of(tmp_path, pools, None))
    with pytest.raises(MachineError, match="too few cores") as caught:
        refuse(found)
    assert f"{cores + 1} cores are needed" in str(caught.value.why)
    assert "--oversubscribe" in str(caught.value.hint)
    with launch(found, oversubscribe=True, program=PROGRAM) as launched:
        assert launched.engine.info.oversubscribed
        text = shown(lambda console: show_launched(console, launched))
    assert "more instances than cores: for correctness only, no goodput" in text
    assert "--oversubscribe" in json.loads((tmp_path / "seen" / "arguments.json").read_text())


def shown(show: Any) -> str:
    stream = StringIO()
    show(Console(file=stream, width=100))
    return " ".join(stream.getvalue().split())


def test_gpus_that_are_missing_are_named_with_the_way_to_rehearse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("advisor.deploy.launch.detect_machine", lambda: Machine(1, 2**30, ("h100-sxm",) * 2))
    with pytest.raises(MachineError) as caught:
        refuse(as_planned(folder_of(tmp_path, SPLIT)))
    assert caught.value.why == "the plan is for 3 x h100-sxm, of which this machine has 2"
    assert str(caught.value.hint).startswith(f"advise launch {tmp_path} --emulate h100-sxm")
    refuse(as_planned(tmp_path), emulated=True)


def test_run_json_has_every_process_by_name(tmp_path: Path) -> None:
    found = find(folder_of(tmp_path, (*SPLIT[:1], SPLIT[1].model_copy(update={"count": 1})), None))
    with launch(found, oversubscribe=True, program=PROGRAM) as launched:
        pid = launched.engine.info.pid
        running = read_run(tmp_path)
        assert running is not None
        assert running.pids == {
            "launcher": os.getpid(), "router": pid, "prefill-0": pid + 1, "decode-0": pid + 2
        }  # fmt: skip
        text = shown(lambda console: show_launched(console, launched))
    assert f"prefill-0: prefill, pid {pid + 1}, cpu:0" in text
    assert "shared_memory" in text


def test_an_emulation_has_the_numbers_that_the_plan_was_simulated_with(tmp_path: Path) -> None:
    """KV of Llama-3.1-8B: 2 x 32 layers x 8 heads x 128 x 2 bytes; NVLink 4: 900 GB/s, half of it one way."""
    found = as_planned(folder_of(tmp_path, SPLIT))
    with launch(found, emulate="h100-sxm", time_scale=4.0, program=PROGRAM) as launched:
        assert launched.engine.info.emulated is not None
        text = shown(lambda console: show_launched(console, launched))
        given = json.loads((tmp_path / "seen" / "arguments.json").read_text())
        assert Path(given[given.index("--emulate") + 1]).is_file()  # instances that start again read it
    assert "its clock 4 times slower" in text
    emulated = read_emulation(tmp_path / "seen" / "emulation.yaml")
    assert (emulated.gpu, emulated.time_scale, emulated.vocab) == ("h100-sxm", 4.0, 128_256)
    assert (emulated.max_len, emulated.kv_bytes_per_token) == (131_072, 2 * 32 * 8 * 128 * 2)
    assert [(pool.role, pool.kv_tokens) for pool in emulated.pools] == [("prefill", 64_000), ("decode", 48_000)]
    assert emulated.link is not None
    assert emulated.link.bytes_per_s == pytest.approx(450e9)
    assert not Path(given[given.index("--emulate") + 1]).exists()


def test_an_emulated_step_takes_as_long_as_a_simulated_one(tmp_path: Path) -> None:
    """To the last bit, through the file: the search's own hardware beside the emulation, TP 1 and 2."""
    pools = (SPLIT[0].model_copy(update={"tp": 2, "devices_per_instance": 2}), SPLIT[1])
    found = as_planned(folder_of(tmp_path, pools))
    with launch(found, emulate="h100-sxm", program=PROGRAM):
        pass
    emulated = read_emulation(tmp_path / "seen" / "emulation.yaml")
    hardware = hardware_of(draw(workload(), H100, {}), {})
    for pool, one in zip(pools, emulated.pools, strict=True):
        simulated = hardware.step_time(hardware.size(pool))
        for shape in (StepShape(((700, 64),)), StepShape((), 12, 9_000), StepShape(((128, 0),), 3, 50)):
            assert one.step_time.seconds(shape) == simulated.seconds(shape)
        assert one.step_time.decode_line(8, 4_000) == simulated.decode_line(8, 4_000)


def test_factors_that_a_plan_was_made_with_are_emulated_too(tmp_path: Path) -> None:
    plain = rehearsal(as_planned(folder_of(tmp_path, SPLIT)), "h100-sxm")
    tested = {"planned_with": True, "prefill_factor": 2.0, "decode_factor": 3.0}
    moved = rehearsal(as_planned(folder_of(tmp_path, SPLIT, backtest=tested)), "h100-sxm")
    kept = rehearsal(
        as_planned(folder_of(tmp_path, SPLIT, backtest=tested | {"planned_with": False})), "h100-sxm"
    )
    decodes, prompt = StepShape((), 4, 1000), StepShape(((512, 0),))
    for shape, factor in ((decodes, 3.0), (prompt, 2.0)):
        before = plain.pools[0].step_time.seconds(shape)
        assert moved.pools[0].step_time.seconds(shape) == pytest.approx(factor * before)
        assert kept.pools[0].step_time.seconds(shape) == before


def test_only_the_plans_own_gpu_can_be_emulated(tmp_path: Path) -> None:
    found = find(folder_of(tmp_path, SPLIT))
    with pytest.raises(InputError, match="the plan is for h100-sxm, not a100-sxm-80g") as caught:
        rehearsal(found, "a100-sxm-80g")
    assert f"advise plan {tmp_path} --gpu a100-sxm-80g" in str(caught.value.hint)
    with pytest.raises(InputError, match="not between 0 and 1000"):
        rehearsal(found, "h100-sxm", 0.0)
    assert rehearsal(found, "H100").gpu == "h100-sxm"


def test_without_a_plan_it_is_said_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", str(folder_of(tmp_path, SPLIT, None)), "--emulate", "h100-sxm"]) == 2
    said = capsys.readouterr().err
    assert "only a plan can be emulated" in said
    assert "advise analyze LOG --gpu h100-sxm --model NAME" in said


def test_an_edited_configuration_is_emulated_with_its_targets_step_times(tmp_path: Path) -> None:
    found = find(folder_of(tmp_path, SPLIT))
    assert found.edits
    more = (*found.config.pools, PoolConfig(count=5, kv_tokens=1000))
    emulated = rehearsal(replace(found, config=found.config.model_copy(update={"pools": more})), "h100-sxm")
    assert [pool.role for pool in emulated.pools] == ["prefill", "decode", "colocated"]
    shape = StepShape(((512, 0),))
    assert emulated.pools[2].step_time.seconds(shape) == emulated.pools[0].step_time.seconds(shape)


def test_a_plan_on_step_times_that_are_gone_is_not_emulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    use = StepTimeUse(source="calibrated", error_p90=0.05, key="advise 1, on h100-sxm")
    found = find(folder_of(tmp_path, SPLIT, step_time=use))
    with pytest.raises(InputError, match="step times are not here any more") as caught:
        rehearsal(found, "h100-sxm")
    assert caught.value.why == use.key


def test_a_time_scale_is_for_an_emulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", str(folder_of(tmp_path, SPLIT)), "--time-scale", "2"]) == 2
    assert "--time-scale is for --emulate" in capsys.readouterr().err


def test_leaving_tells_the_cpu_time_of_every_process(tmp_path: Path) -> None:
    """The fake router takes one second of CPU a look, its instances two; it is looked at twice."""
    heard: list[CpuTimes] = []
    found = find(folder_of(tmp_path, SPLIT, None))
    with launch(found, oversubscribe=True, program=PROGRAM) as launched:
        timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        assert serve(launched, heard.append) == 0
        timer.join()
    [times] = heard
    assert times.cpu_s == {"router": 1.0, "prefill-0": 2.0, "decode-0": 2.0, "decode-1": 2.0}
    assert times.wall_s > 0
    text = shown(lambda console: show_cpu_times(console, CpuTimes(4.0, {"router": 1.0, "decode-0": 2.0})))
    assert text == "CPU router 1.0 s, 25.0% of a core decode-0 2.0 s, 50.0% of a core"
