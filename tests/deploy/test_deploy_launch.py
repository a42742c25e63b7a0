"""Launch: what is found, what is refused, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.server import FAKE_PROGRAM, client

from advisor.advice.machine import Machine
from advisor.advice.plan import Candidate, Plan, StepTimeUse
from advisor.advice.target import Target
from advisor.deploy.launch import DEFAULT_FOLDER, Edit, find, launch, refuse, serve
from advisor.deploy.local import engine_argv, start_engine
from advisor.deploy.run import Run, read_run, run_file
from engine.config import EngineConfig, PoolConfig, RouterConfig
from engine.config_file import config_text
from engine.errors import InputError, MachineError

CONFIG = "model: {name: fake, path: plain}\nserver: {port: 0, drain_s: 5}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "engine.yaml").write_text(CONFIG)
    return tmp_path


def test_a_folder_and_its_engine_yaml_are_the_same_target(folder: Path) -> None:
    assert find(folder) == find(folder / "engine.yaml")
    assert find(folder).config.model.name == "fake"
    assert find(folder).folder == folder


def test_no_target_is_the_default_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="cannot read the engine configuration") as caught:
        find()
    assert caught.value.where == str(DEFAULT_FOLDER / "engine.yaml")


def test_a_misspelled_key_is_named_with_its_neighbour(folder: Path) -> None:
    (folder / "engine.yaml").write_text("pools: [{token_buget: 5}]")
    with pytest.raises(InputError) as caught:
        find(folder)
    assert "did you mean 'token_budget'?" in str(caught.value.why)


def write_plan(folder: Path, pool: PoolConfig) -> Plan:
    """A plan for one pool, with the engine.yaml that it makes."""
    plan = Plan(
        target=Target(model="fake", model_path="plain", gpu="cpu"),
        step_time=StepTimeUse(source="roofline", error_p90=None, key="fake"),
        candidates=(Candidate(name="one", pools=(pool,), router=RouterConfig(), gpus=1),),
        chosen="one",
        verdict="undecided",
        runs_on={"advise": "yes"},
    )
    (folder / "engine.yaml").write_text(config_text(plan.engine_config()))
    content = {"digest": "d" * 64, "plan": plan.model_dump(mode="json")}
    (folder / "plan.json").write_text(json.dumps(content))
    return plan


def test_a_plan_is_launched_as_written_or_with_its_edits_shown(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, PoolConfig(token_budget=256))
    found = find(tmp_path / "plan.json")
    assert (found.plan, found.plan_digest, found.edits) == (plan, "d" * 64, ())
    path = tmp_path / "engine.yaml"
    path.write_text(path.read_text().replace("token_budget: 256", "token_budget: 64"))
    for target in (tmp_path, path, tmp_path / "plan.json"):
        assert find(target).edits == (Edit("pools.0.token_budget", 256, 64),)


def test_a_plan_that_is_none_is_an_input_error(folder: Path) -> None:
    (folder / "plan.json").write_text('{"plan": null}')
    with pytest.raises(InputError, match="cannot read the plan"):
        find(folder)


def test_launch_serves_and_leaves_nothing_behind(folder: Path) -> None:
    with launch(find(folder), program=FAKE_PROGRAM) as launched:
        run = read_run(folder)
        assert run is not None
        assert run.url == launched.engine.url
        [instance] = launched.engine.info.instances
        assert run.pids == {
            "launcher": os.getpid(), "router": launched.engine.info.pid, "colocated-0": instance.pid
        }  # fmt: skip
        assert stat.S_IMODE((folder / "run.json").stat().st_mode) == 0o600
        with client(launched.engine) as http:
            assert http.get("/health").status_code == 200
    assert launched.engine.exit_status == 0
    assert [path.name for path in folder.iterdir()] == ["engine.yaml"]


def test_a_second_launch_from_the_folder_is_refused(folder: Path) -> None:
    with (
        run_file(folder, Run(url="http://127.0.0.1:1", pids={"launcher": os.getpid()})),
        pytest.raises(MachineError, match="a launch from this folder runs"),
        launch(find(folder), program=FAKE_PROGRAM),
    ):
        pytest.fail("it launched")


def test_a_killed_launchers_file_does_not_count(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    (folder / "run.json").write_text(json.dumps({"url": "http://x", "pids": {"launcher": gone.pid}}))
    assert read_run(folder) is None


def test_a_busy_port_is_refused_before_anything_loads(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match="cannot use this port") as caught:
            launch(find(folder), port=port, program=FAKE_PROGRAM).__enter__()
        assert caught.value.where == f"127.0.0.1:{port}"
        # The engine itself says the same of a port that was taken since.
        with pytest.raises(MachineError, match="cannot bind the port"):
            start_engine(find(folder).config, port=port, program=FAKE_PROGRAM)


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        ("[{role: prefill}, {role: colocated}]", "a prefill pool needs a decode pool"),
        ("[{role: prefill, block_size: 32}, {role: decode}]", "differ in block_size: 16 and 32"),
        ("[{role: prefill, tp: 2, devices_per_instance: 2}, {role: decode}]", "differ in tp: 1 and 2"),
        ("[{tp: 2, devices_per_instance: 3}]", "3 devices cannot be shared equally by 2 ranks"),
        ("[{pp: 2}]", "pp 1"),
    ],
)
def test_what_this_version_cannot_launch_is_refused_in_the_same_words(
    folder: Path, pools: str, words: str
) -> None:
    (folder / "engine.yaml").write_text(f"pools: {pools}\nserver: {{port: 0}}")
    with pytest.raises(MachineError) as by_launch, launch(find(folder), program=FAKE_PROGRAM):
        pytest.fail("it launched")
    with pytest.raises(MachineError) as by_engine:
        start_engine(find(folder).config, program=FAKE_PROGRAM)
    assert words in str(by_launch.value.why)
    assert by_launch.value.why == by_engine.value.why


def test_an_open_address_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADVISE_API_KEY", raising=False)
    config = EngineConfig.model_validate({"server": {"host": "0.0.0.0", "port": 0}})  # noqa: S104 (refused)
    with pytest.raises(InputError, match="no API key is set"):
        start_engine(config, program=FAKE_PROGRAM)


def test_an_engine_that_dies_at_the_start_is_an_error_with_its_last_words() -> None:
    program = (sys.executable, "-c", "import sys; sys.exit('the last words')")
    with pytest.raises(MachineError, match="exit status 1") as caught:
        start_engine(EngineConfig(), program=program)
    assert caught.value.why == "the last words"


def test_an_engine_that_never_gets_ready_is_killed() -> None:
    program = (
        sys.executable,
        "-c",
        "import os, sys, time; print(os.getpid(), file=sys.stderr); time.sleep(600)",
    )
    with pytest.raises(MachineError, match="was not ready after 1 s") as caught:
        start_engine(EngineConfig(), program=program, timeout_s=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(str(caught.value.why)), 0)


def test_an_engine_that_ignores_sigterm_is_killed() -> None:
    ready = json.dumps(
        {"url": "x", "model": "x", "dtype": "x", "devices": [], "threads": 1, "max_len": 1, "vocab_size": 1,
         "kv_tokens_planned": 1, "kv_tokens_actual": 1, "load_seconds": 0, "pid": 1}
    )  # fmt: skip
    stubborn = (
        f"import signal, time; signal.signal(15, signal.SIG_IGN); print({ready!r}, flush=True); time.sleep(600)"
    )
    with start_engine(EngineConfig(), program=(sys.executable, "-c", stubborn)) as engine:
        assert engine.stop(0.2) == -signal.SIGKILL


def test_a_dead_engine_ends_the_foreground_with_an_error(folder: Path) -> None:
    with launch(find(folder), program=FAKE_PROGRAM) as launched:
        os.kill(launched.engine.info.pid, signal.SIGKILL)
        with pytest.raises(MachineError, match="status -9"):
            serve(launched)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_foreground_drains_and_cleans_up(folder: Path, number: signal.Signals) -> None:
    tests = Path(__file__).resolve().parent.parent
    program = (
        f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests.parent)!r}]\n"
        "from pathlib import Path\n"
        "from helpers.server import FAKE_PROGRAM\n"
        "from advisor.deploy.launch import find, launch, serve\n"
        "try:\n"
        f"    with launch(find(Path({str(folder)!r})), program=FAKE_PROGRAM) as launched:\n"
        "        print(launched.engine.info.pid, flush=True)\n"
        "        serve(launched)\n"
        "except KeyboardInterrupt:\n"
        "    pass  # it came before serve\n"
        "finally:\n"
        "    print(launched.engine.exit_status)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        assert process.stdout.read() == "0\n"
    assert process.returncode == {signal.SIGINT: 0, signal.SIGTERM: 143}[number]
    assert not Path(f"/proc/{pid}").exists()
    assert not (folder / "run.json").exists()


def test_the_environment_of_an_engine_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEBODYS_SECRET", "x")
    show = "import os, sys; sys.exit(' '.join(os.environ))"
    with pytest.raises(MachineError) as caught:
        start_engine(EngineConfig(), program=(sys.executable, "-c", show))
    names = str(caught.value.why).split()
    assert "PATH" in names
    assert "SOMEBODYS_SECRET" not in names


def test_the_command_is_a_list_of_arguments() -> None:
    assert engine_argv(Path("a b.yaml"), port=0, fault="slow-steps:3") == [
        sys.executable, "-P", "-m", "engine.server",
        "--config", "a b.yaml", "--port", "0", "--fault", "slow-steps:3",
    ]  # fmt: skip


def test_a_kv_cache_that_differs_from_the_plan_is_shown() -> None:
    config = EngineConfig(pools=(PoolConfig(kv_tokens=1000),), server={"port": 0})
    with start_engine(config, program=FAKE_PROGRAM) as engine:
        assert (engine.info.kv_tokens_planned, engine.info.kv_tokens_actual) == (
            1000,
            992,
        )  # whole blocks of 16


@pytest.mark.parametrize(("gpus", "refused"), [((), True), (("a100-80g",), True), (("h100-sxm",) * 2, False)])
def test_a_plan_for_gpus_needs_them_on_this_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, ...], refused: bool
) -> None:
    monkeypatch.setattr("advisor.deploy.launch.detect_machine", lambda: Machine(2, 2**30, gpus))
    plan = write_plan(folder, PoolConfig(tp=2, devices_per_instance=2))
    target = plan.target.model_copy(update={"gpu": "h100-sxm", "gpus": 2})
    found = replace(find(folder), plan=plan.model_copy(update={"target": target}), edits=())
    if not refused:
        refuse(found, port=0)
        return
    with pytest.raises(MachineError) as caught:
        refuse(found, port=0)
    assert caught.value.why == "the plan is for 2 x h100-sxm, of which this machine has none"
    assert "--emulate h100-sxm" in str(caught.value.hint)


def test_random_weights_are_asked_for_on_the_engines_command_line() -> None:
    assert engine_argv(Path("engine.yaml"), load="dummy")[-2:] == ["--load", "dummy"]
    assert "--load" not in engine_argv(Path("engine.yaml"))
