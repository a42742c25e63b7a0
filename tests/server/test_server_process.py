"""The life of a server process: clients that leave, a full queue, signals, a failing engine, a dead parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from helpers.server import (
    FAKE_PROGRAM,
    LONG,
    blocks,
    client,
    events,
    eventually,
    fake_engine,
    leave_open,
    metrics,
)

from engine.config import PoolConfig


def post(http: httpx2.Client, **fields: object) -> httpx2.Response:
    return http.post("/v1/completions", json=fields)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(stream: bool) -> None:
    """sglang#36876, ATOM#1562: streams whose client left, and whole answers, go on."""
    with fake_engine("sleep:0.005") as engine, client(engine) as http:
        connection = leave_open(engine.url, **LONG, stream=stream)
        eventually(lambda: metrics(http)["advise_requests_running"] == 1, "the request runs")
        assert blocks(metrics(http))["used"] >= 100 // 16
        connection.close()
        eventually(lambda: metrics(http)["advise_requests_running"] == 0, "the request is aborted")
        after = metrics(http)
        assert after['advise_requests_total{finish_reason="abort"}'] == 1
        held = blocks(after)
        assert held["used"] == 0
        assert held["free"] + held["cached"] == held["total"]


def test_a_finished_request_is_not_counted_as_aborted() -> None:
    """ATOM#1589: every normal end is an abort too."""
    with fake_engine() as engine, client(engine) as http:
        for stream in (True, False):
            post(http, prompt="x", max_tokens=3, stream=stream)
        assert 'advise_requests_total{finish_reason="abort"}' not in metrics(http)


def test_a_full_queue_answers_429_and_recovers() -> None:
    pool = PoolConfig(max_seqs=1)
    with fake_engine("sleep:0.005", pool=pool, max_queued=2) as engine, client(engine) as http:
        open_requests = [leave_open(engine.url, **LONG)]
        eventually(lambda: metrics(http)["advise_requests_running"] == 1, "one runs")
        open_requests += [leave_open(engine.url, **LONG) for _ in range(2)]
        eventually(lambda: metrics(http)["advise_requests_queued"] == 2, "two wait")
        refused = post(http, prompt="x", max_tokens=1)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert metrics(http)['advise_rejected_total{reason="queue_full"}'] == 1
        for connection in open_requests:
            connection.close()
        eventually(lambda: metrics(http)["advise_requests_queued"] == 0, "the queue is empty")
        assert post(http, prompt="x", max_tokens=1).status_code == 200


def test_sigterm_lets_open_requests_finish_and_exits_0() -> None:
    with fake_engine("sleep:0.005") as engine, client(engine) as http, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, http, prompt="x", max_tokens=100, ignore_eos=True, stream=True)
        eventually(lambda: metrics(http)["advise_requests_running"] == 1, "the request runs")
        os.kill(engine.info.pid, signal.SIGTERM)
        eventually(lambda: http.get("/health").status_code == 503, "the server drains")
        refused = post(http, prompt="x", max_tokens=1)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        *_, reason, done = events(answer.result().text)
        assert (reason["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
        assert engine.wait(10) == 0


def test_what_outlasts_the_drain_is_aborted_visibly() -> None:
    with (
        fake_engine("sleep:0.005", drain_s=0.2) as engine,
        client(engine) as http,
        ThreadPoolExecutor(2) as pool,
    ):
        answers = [pool.submit(post, http, **LONG, stream=stream) for stream in (True, False)]
        eventually(lambda: metrics(http)["advise_requests_running"] == 2, "both run")
        os.kill(engine.info.pid, signal.SIGINT)
        *_, error, done = events(answers[0].result().text)
        assert (error["error"]["code"], done) == ("aborted", "[DONE]")
        assert answers[1].result().status_code == 503
        assert engine.wait(10) == 0


def test_a_second_signal_does_not_wait_for_the_drain() -> None:
    with fake_engine("sleep:0.005", drain_s=600) as engine, client(engine) as http:
        connection = leave_open(engine.url, **LONG)
        eventually(lambda: metrics(http)["advise_requests_running"] == 1, "the request runs")
        os.kill(engine.info.pid, signal.SIGTERM)
        eventually(lambda: http.get("/health").status_code == 503, "the server drains")
        os.kill(engine.info.pid, signal.SIGTERM)
        assert engine.wait(10) == 0
        connection.close()


def test_an_executor_that_raises_fails_every_request_and_the_process() -> None:
    """Where nobody may start the instance again."""
    with fake_engine("fail:2", restart=False) as engine, client(engine) as http, ThreadPoolExecutor(2) as pool:
        streamed = pool.submit(post, http, **LONG, stream=True)
        whole = pool.submit(post, http, **LONG)
        *_, error, done = events(streamed.result().text)
        assert (error["error"]["type"], done) == ("server_error", "[DONE]")
        assert whole.result().status_code == 500
        assert engine.wait(10) == 5
        assert "told to fail" in engine.tail()


def test_a_failure_before_the_first_token_is_a_500_even_for_a_stream() -> None:
    with fake_engine("fail:0", restart=False) as engine, client(engine) as http:
        assert post(http, prompt="x", stream=True).status_code == 500


def test_a_killed_engine_is_noticed() -> None:
    with fake_engine() as engine:
        assert engine.exit_status is None
        os.kill(engine.info.pid, signal.SIGKILL)
        assert engine.wait(10) == -signal.SIGKILL


def test_the_engine_ends_with_its_parent(tmp_path: Path) -> None:
    tests = Path(__file__).resolve().parent.parent
    program = (
        f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests.parent)!r}]\n"
        "from helpers.server import fake_engine\n"
        "engine = fake_engine('sleep:0.005', drain_s=600)\n"
        "print(engine.info.pid, engine.url, flush=True)\n"
        "engine.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pid, url = parent.stdout.readline().split()
        connection = leave_open(url, **LONG)  # it must not be kept alive by a drain either
        parent.kill()
    eventually(lambda: not Path(f"/proc/{pid}/cmdline").exists() or _zombie(int(pid)), "the engine ends")
    connection.close()


def _zombie(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_slow_steps_take_three_times_as_long() -> None:
    with fake_engine("sleep:0.01", fault="slow-steps:3") as engine, client(engine) as http:
        assert engine.info.fault == "slow-steps:3"
        post(http, prompt="x", max_tokens=10, ignore_eos=True)
        values = metrics(http)
    # A sleep is never shorter than asked, so a busy machine cannot fail this.
    assert values["advise_step_seconds_sum"] / values["advise_step_seconds_count"] >= 0.03


def test_every_route_but_the_live_probe_needs_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISE_API_KEY", "the key")
    with fake_engine() as engine, client(engine) as http:
        assert http.get("/health/live").status_code == 200
        assert http.get("/health/live", headers={"host": "evil.example"}).status_code == 200
        routes = ("/v1/models", "/metrics", "/v1/completions", "/health", "/health/ready", "/openapi.json")
        for path in (*routes, "/health/live/", "/nope"):
            assert http.get(path).status_code == 401
            assert http.get(path, headers={"authorization": "Bearer the key"}).status_code != 401
            assert http.get(path, headers={"authorization": "Bearer another"}).status_code == 401
            assert http.get(path, headers={"authorization": "Basic the key"}).status_code == 401


def test_threads_of_a_stopped_engine_are_gone() -> None:
    before = threading.active_count()
    with fake_engine():
        pass
    assert threading.active_count() <= before


def test_the_ready_line_is_all_of_stdout(tmp_path: Path) -> None:
    config = tmp_path / "engine.yaml"
    config.write_text("server: {port: 0}\nmodel: {name: fake, path: plain}\n")
    with subprocess.Popen(
        [*FAKE_PROGRAM, "--config", str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as p:
        assert p.stdout is not None
        assert p.stdout.readline().startswith(b'{"url":"http://127.0.0.1:')
        p.terminate()
        assert p.stdout.read() == b""
    assert p.returncode == 0


@pytest.mark.parametrize(("device", "text"), [("cpu", "kkkkkk"), ("some GPU", "kkaaaa")])
def test_steps_are_made_ahead_on_a_gpu_alone(device: str, text: str) -> None:
    """The prompt's step and the first decode behind it are made in turn, every later one ahead."""
    with fake_engine(f"device:{device}") as engine, client(engine) as http:
        answer = post(http, prompt="abc", max_tokens=6, ignore_eos=True).json()
        assert answer["choices"][0]["text"] == text
