"""Tensor parallelism with real processes: shares, tokens, deaths. The matrix is in test_torch_greedy.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from random import Random

import httpx2
import pytest
from helpers.greedy import decode_alone, decode_through_core
from helpers.tiny_model import LLAMA, QWEN2, QWEN3, write_tiny_model

from engine.config import PoolConfig
from engine.errors import InputError, MachineError
from engine.executors import wire
from engine.executors.tensor_parallel import GROUP_TIMEOUT
from engine.executors.torch import TorchExecutor
from engine.request import SamplingParams
from engine.step import Step, StepRow

PROMPT = tuple(range(30, 71))
SOON_S = 20.0  # far less than the collectives' timeout, which would end anything in the end

PARENT = """
import sys
from pathlib import Path
from engine.executors.torch import TorchExecutor
from engine.request import SamplingParams
from engine.step import Step, StepRow

executor = TorchExecutor(Path(sys.argv[1]), dtype="float32", num_blocks=64, block_size=16, tp=2)
print(*executor.rank_pids, flush=True)
while sys.argv[2] == "busy":
    executor.submit(Step(1, (StepRow("r", (5, 6, 7), 0, (1,), True, True, SamplingParams()),))).result()
sys.stdin.read()
"""


def open_executor(folder: Path, tp: int, **options: object) -> TorchExecutor:
    settings = {"dtype": "float64", "num_blocks": 64, "block_size": 16} | options
    return TorchExecutor(folder, tp=tp, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[TorchExecutor]:
    with open_executor(folder, 1) as opened:
        yield opened


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[TorchExecutor]:
    with open_executor(folder, 2) as opened:
        yield opened


def prefill(number: int = 1) -> Step:
    return Step(number, (StepRow("r", PROMPT, 0, (1, 2, 3), True, True, SamplingParams()),))


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether it comes true before everything else would have ended anyway."""
    end = time.monotonic() + SOON_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def gone(pid: int) -> bool:
    """Whether a process has ended; nobody may have asked for its status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_rank_holds_about_half_of_the_weights(alone: TorchExecutor, pair: TorchExecutor) -> None:
    (whole,) = alone.weight_bytes
    assert len(pair.weight_bytes) == 2
    assert all(whole / 2 <= part <= 0.55 * whole for part in pair.weight_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=lambda config: config["model_type"])
def test_two_ranks_decode_what_one_does(config: dict[str, object], tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, config, seed=4)
    with open_executor(folder, 1) as one, open_executor(folder, 2) as two:
        for length in (1, 16, 17, 200):
            prompt = [Random(length).randrange(3, 256) for _ in range(length)]
            assert decode_alone(two, prompt, 16) == decode_alone(one, prompt, 16)


def test_sampled_tokens_are_the_same_too(alone: TorchExecutor, pair: TorchExecutor) -> None:
    prompts = [[Random(n).randrange(3, 256) for _ in range(10 + n)] for n in range(6)]
    sampling = [SamplingParams(max_tokens=20, temperature=0.8, top_p=0.9, seed=n) for n in range(6)]
    outputs = [
        decode_through_core(
            executor, prompts, sampling, pool=PoolConfig(token_budget=16), num_blocks=64, at_once=3
        )
        for executor in (alone, pair)
    ]
    assert outputs[0][0] == outputs[1][0]


def test_a_model_that_does_not_split_is_refused_before_a_process_starts(folder: Path) -> None:
    """6 heads and 2 KV heads do not make 4 ranks."""
    with pytest.raises(InputError, match="cannot split this model") as caught:
        open_executor(folder, 4)
    assert "6 attention heads" in str(caught.value.why)


def test_a_rank_that_cannot_start_is_an_error_with_its_status(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(MachineError, match=r"rank 1 .* died \(exit status 1\)"):
        open_executor(folder, 2)


def test_a_rank_that_is_killed_in_a_step_fails_it_and_every_later_one(folder: Path) -> None:
    with open_executor(folder, 2) as executor:
        (pid,) = executor.rank_pids
        os.kill(pid, signal.SIGSTOP)  # now rank 0 waits in a collective
        running, queued = executor.submit(prefill(1)), executor.submit(prefill(2))
        time.sleep(0.2)
        assert not running.done()
        os.kill(pid, signal.SIGKILL)
        for future in (running, queued, executor.submit(prefill(3))):
            with pytest.raises(MachineError, match=r"rank 1 .* died \(signal 9\)"):
                future.result(SOON_S)


def test_a_step_that_fails_on_a_rank_ends_the_group(folder: Path) -> None:
    """After an error no one knows where the others stand; going on would mix up two steps."""
    bad = Step(1, (StepRow("r", (5, 6), 0, (99_999,), True, True, SamplingParams()),))
    with open_executor(folder, 2) as executor:
        assert executor.submit(bad).exception(SOON_S + GROUP_TIMEOUT.total_seconds()) is not None
        assert isinstance(executor.submit(prefill()).exception(SOON_S), MachineError)


@pytest.mark.parametrize("state", [pytest.param("idle", marks=pytest.mark.slow), "busy"])
def test_ranks_die_with_their_parent(folder: Path, state: str) -> None:
    argv = [sys.executable, "-c", PARENT, str(folder), state]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    assert eventually(lambda: gone(pid))


def test_signals_to_the_whole_group_do_not_end_a_rank_before_its_parent(pair: TorchExecutor) -> None:
    """Ctrl-C reaches every process of a terminal; what is open is still to be drained."""
    expected = pair.submit(prefill()).result(SOON_S).tokens
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pair.rank_pids[0], number)
    assert pair.submit(prefill()).result(SOON_S).tokens == expected


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
def test_ranks_listen_on_loopback_only(pair: TorchExecutor) -> None:
    addresses = [address for pid in (os.getpid(), *pair.rank_pids) for address in listening(pid)]
    assert addresses
    assert all(address == "0100007F" for address in addresses)


def listening(pid: int) -> list[str]:
    """Local addresses of a process's listening TCP sockets as the kernel writes them; 0100007F is 127.0.0.1."""
    links = [link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    inodes = {name[len("socket:[") : -1] for name in links if name.startswith("socket:[")}
    lines = [
        line.split()
        for file in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{file}").read_text().splitlines()[1:]
    ]
    return [fields[1].partition(":")[0] for fields in lines if fields[3] == "0A" and fields[9] in inodes]


def test_a_step_survives_the_wire() -> None:
    sampling = SamplingParams(max_tokens=9, temperature=0.5, top_k=3, top_p=0.7, seed=-1, ignore_eos=True)
    rows = (
        StepRow("a/\u00e9", (7,), 40, (3, 1, 2), True, False, sampling, 5),
        StepRow("b", PROMPT, 0, (4, 5, 6), False, True, SamplingParams()),
    )
    pipe = BytesIO()
    for number in (1, 2):
        wire.send(pipe, Step(number, rows))
    cut = pipe.tell()
    wire.send(pipe, Step(3, rows))
    pipe.truncate(cut + 10)
    pipe.seek(0)
    assert [wire.receive_step(pipe) for _ in range(3)] == [Step(1, rows), Step(2, rows), None]


def test_ranks_get_cores_of_their_own_and_end_with_the_executor(folder: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        pytest.skip("needs two cores")
    with open_executor(folder, 2, pin=True) as executor:
        (pid,) = executor.rank_pids
        assert os.sched_getaffinity(pid) == {usable[1]}
        workers = [thread.native_id for thread in threading.enumerate() if thread.name == "torch"]
        assert {usable[0]} in [os.sched_getaffinity(native or 0) for native in workers]
        assert os.sched_getaffinity(0) == set(usable)  # whoever speaks HTTP runs anywhere
    assert not Path(f"/proc/{pid}").exists()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_rank_that_dies_takes_its_instance_along_and_leaves_no_process(tmp_path: Path) -> None:
    """Random weights of a folder without a tokenizer: `--load dummy`, prompts of ids. Nobody restarts it."""
    folder = write_tiny_model(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    config = tmp_path / "engine.yaml"
    config.write_text(
        "pools: [{tp: 2, devices_per_instance: 2}]\nserver: {port: 0, restart: false}\n"
        f"model: {{name: tiny, path: {folder}}}"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-m", "engine.server", "--config", str(config), "--load", "dummy"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as server:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        assert ready["devices"] == ["cpu:0", "cpu:1"]
        body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
        answer = httpx2.post(f"{ready['url']}/v1/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] == 4
        text = httpx2.post(f"{ready['url']}/v1/completions", json=body | {"prompt": "text"})
        assert text.status_code == 400
        assert "no tokenizer" in text.text
        (instance,) = children_of(server.pid)
        (rank,) = children_of(instance)
        os.kill(rank, signal.SIGKILL)
        httpx2.post(f"{ready['url']}/v1/completions", json=body)
        assert server.wait(SOON_S) == 5
    assert gone(rank)
    assert gone(instance)
