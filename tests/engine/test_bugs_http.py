"""Public bugs of servers (docs/bugs.md) that no other test of ours is about."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.server import blocks, client, eventually, fake_engine, metrics
from helpers.server_fake import FakeExecutor
from helpers.threads import Thread, Threads, front_over

from engine.config import PoolConfig
from engine.core import EngineCore
from engine.invariants import InvariantError
from engine.request import Request, SamplingParams
from engine.server import driver as driver_module
from engine.server.metrics import Metrics


def test_bug_14_a_failed_self_check_is_counted_and_requests_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """sglang#35270: the idle check of the pool's sum is wrong, or right, and kills the server."""
    monkeypatch.setattr(driver_module, "_SELF_CHECK_AFTER_S", 0.01)

    def broken(_: EngineCore) -> None:
        raise InvariantError("a block is lost")

    monkeypatch.setattr(EngineCore, "check_invariants", broken)
    counted = Metrics()

    async def run() -> None:
        core = EngineCore(PoolConfig(), num_blocks=41, max_len=512)
        threads = Threads([Thread(core, FakeExecutor("abc"))], time.monotonic)
        engine = front_over(threads, [PoolConfig()], metrics=counted)
        await engine.start(lambda: pytest.fail("the engine failed"))
        for number in range(2):
            ticket = engine.add(Request(f"r{number}", (1, 2, 3), SamplingParams(4)), stream=False)
            assert (await ticket.ended()).reason == "length"
            await asyncio.sleep(0.1)
        await engine.stop()
        assert engine.failure is None

    asyncio.run(run())
    assert b"advise_invariant_violations_total 2.0" in counted.exposition()


@pytest.mark.parametrize("stream", [False, True])
def test_bug_43_an_abort_survives_a_garbage_collection_at_any_moment(
    stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FreeToken#222: the task that aborts belongs to nobody and is collected before it runs. Here the server
    collects all the time, and clients leave one after the other."""
    (tmp_path / "sitecustomize.py").write_text("import gc\ngc.set_threshold(20, 1, 1)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with fake_engine("sleep:0.005") as engine, client(engine) as http:
        for _ in range(10):
            body: dict[str, Any] = {"prompt": "abc", "max_tokens": 2000, "stream": stream}
            if stream:
                with http.stream("POST", "/v1/completions", json=body) as answer:
                    next(answer.iter_bytes())
            else:
                with pytest.raises(Exception, match="timed out"):
                    http.post("/v1/completions", json=body, timeout=0.05)
        aborted = 'advise_requests_total{finish_reason="abort"}'
        eventually(lambda: metrics(http).get(aborted) == 10, "all are aborted")
        eventually(lambda: blocks(metrics(http))["used"] == 0, "every block is back")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("room", [0, 1])
def test_bug_47_a_prompt_that_does_not_fit_is_a_400_at_once_on_every_route(stream: bool, room: int) -> None:
    """mini-sglang: only logged, and its client waits for ever. One token less would fit."""
    with fake_engine("plain", pool=PoolConfig(kv_tokens=256)) as engine, client(engine) as http:
        chat_frame = len("user: \n")
        for path, key, overhead in (
            ("/v1/completions", "prompt", 0),
            ("/v1/chat/completions", "messages", chat_frame),
        ):
            text = "x" * (256 - overhead - room)
            value: object = text if key == "prompt" else [{"role": "user", "content": text}]
            body = {key: value, "max_tokens": 1, "stream": stream}
            answer = http.post(path, json=body)
            assert answer.status_code == (200 if room else 400), answer.text
            if not room:
                assert answer.json()["error"]["code"] == "context_length_exceeded"
