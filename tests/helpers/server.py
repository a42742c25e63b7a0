"""Server processes for tests: the fake engine or the real one, and what a test asks of them over HTTP."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from helpers.server_fake import program

from advisor.deploy.local import RunningEngine, start_engine
from advisor.deploy.run import Run, read_run
from engine.config import EngineConfig, ModelConfig, PoolConfig, ServerConfig
from engine.config_file import config_text

_TESTS = Path(__file__).resolve().parent.parent
FAKE_PROGRAM = program("server_fake")


def fake_engine(
    behaviour: str | None = None,
    *,
    pool: PoolConfig | None = None,
    step_log: Path | None = None,
    fault: str | None = None,
    **server: Any,
) -> RunningEngine:
    """A running fake; `behaviour` as helpers.server_fake reads it, `server` are fields of ServerConfig."""
    config = EngineConfig(
        pools=(pool or PoolConfig(),),
        model=ModelConfig(name="fake", path=behaviour or "plain"),
        server=ServerConfig(**{"port": 0, "drain_s": 5.0, **server}),
    )
    return start_engine(config, program=FAKE_PROGRAM, step_log=step_log, fault=fault, timeout_s=60)


@contextlib.contextmanager
def advise_launch(folder: Path, config: EngineConfig, step_log: Path) -> Iterator[Run]:
    """`advise launch` as a user runs it, ended by Ctrl-C, which has to drain and exit 0."""
    (folder / "engine.yaml").write_text(config_text(config))
    argv = [sys.executable, "-m", "advisor", "launch", str(folder), "--step-log", str(step_log)]
    environment = os.environ | {"PYTHONPATH": str(_TESTS.parent)}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: bool(read_run(folder)) or process.poll() is not None, "the engine is ready", 120)
            run = read_run(folder)
            assert run is not None, f"advise launch ended with status {process.returncode}"
            yield run
        finally:
            process.send_signal(signal.SIGINT)
            status = process.wait(30)
    assert status == 0
    assert not (folder / "run.json").exists()


def client(engine: RunningEngine | Run, **headers: str) -> httpx2.Client:
    """An HTTP client of `engine`."""
    return httpx2.Client(base_url=engine.url, headers=headers, timeout=30)


LONG = {"prompt": "x" * 100, "max_tokens": 3000, "ignore_eos": True}


def leave_open(url: str, **fields: object) -> socket.socket:
    """Send a completion request on a socket of its own and read nothing."""
    body = httpx2.Request("POST", url, json=fields).read()
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def metrics(http: httpx2.Client) -> dict[str, float]:
    """/metrics as a mapping from `name{label="value"}` to the value; of all instances also their sum."""
    return metrics_of(http.get("/metrics").text)


def metrics_of(text: str) -> dict[str, float]:
    """The mapping that `metrics` gives, of what /metrics says."""
    values = {m[1]: float(m[2]) for m in re.finditer(r"^(advise_\S+) (\S+)$", text, re.MULTILINE)}
    for name, value in list(values.items()):
        whole = re.sub(r'instance="[^"]*",?', "", name).removesuffix("{}")
        if whole != name:
            values[whole] = values.get(whole, 0.0) + value
    return values


def blocks(values: dict[str, float], instance: str | None = None) -> dict[str, float]:
    """The KV block gauges by state, of one instance or of all."""
    states = ("free", "cached", "used", "total")
    label = "" if instance is None else f'instance="{instance}",'
    return {state: values[f'advise_kv_blocks{{{label}state="{state}"}}'] for state in states}


def eventually(holds: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
    """Wait until `holds`; fail naming `what` if it never does."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


def step_lines(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the steps of a step log; a last line still being written does not count."""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    header, *steps = [msgspec.json.decode(line) for line in whole.splitlines()]
    return header, steps


def events(body: str) -> list[Any]:
    """The data of a stream's events, decoded; the last is the string [DONE]."""
    data = [line.removeprefix("data: ") for line in body.splitlines() if line]
    return [item if item == "[DONE]" else msgspec.json.decode(item) for item in data]
