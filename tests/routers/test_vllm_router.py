"""The real vllm-router in front of our servers (`make test-routers`): what it sends, and no answer is wrong.

Opt-in, because it installs the router into an environment of its own, `.venv-routers`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from helpers.embedded import embedded_folder
from helpers.server import advise_launch, blocks, client, events, eventually, metrics
from helpers.server_kv import kv_engine
from helpers.two_call import SECRET, first_call, second_call
from routers.recorder import GIVEN, Call, recording

from engine.config import EngineConfig, ModelConfig, PoolConfig, ServerConfig

pytestmark = pytest.mark.routers

PROGRAM = Path(__file__).resolve().parent.parent.parent / ".venv-routers" / "bin" / "vllm-router"
REQUESTS = 100


@pytest.fixture(autouse=True, scope="module")
def _installed() -> None:
    if not PROGRAM.exists():
        pytest.skip("needs .venv-routers: make test-routers")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def vllm_router(prefill: str, decode: str, policy: str = "round_robin") -> Iterator[httpx2.Client]:
    """A client of a running router."""
    port = free_port()
    argv = [str(PROGRAM), "--vllm-pd-disaggregation", "--prefill", prefill, "--decode", decode]
    argv += ["--port", str(port), "--prometheus-port", str(free_port()), "--policy", policy]
    argv += ["--worker-startup-check-interval", "1"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "OPENAI_API_KEY": "the-key"}
    with subprocess.Popen(argv, **quiet, env=environment) as process:  # type: ignore[call-overload]
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
                eventually(lambda: is_up(http), "the router is up", within_s=60)
                yield http
        finally:
            process.terminate()
            process.wait(20)


def is_up(http: httpx2.Client) -> bool:
    try:
        return http.get("/health").status_code == 200
    except httpx2.TransportError:
        return False


COMPLETION = {
    "model": "hashes",
    "prompt": [1, 2, 3],
    "max_tokens": 8,
    "temperature": 0.0,
    "seed": 7,
    "min_tokens": 3,
    "ignore_eos": True,
    "stop": ["x"],
    "logprobs": 2,
    "return_token_ids": True,
}
CHAT = {
    "model": "hashes",
    "messages": [{"role": "user", "content": "hi"}],
    "max_completion_tokens": 8,
    "cache_salt": "tenant",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
def test_it_makes_the_two_calls_that_the_stand_in_makes(path: str, body: dict[str, Any], stream: bool) -> None:
    """What the default suite takes for a router (helpers.two_call) is what this one does."""
    calls: list[Call] = []
    asked = body | (
        {"stream": True, "stream_options": {"include_usage": True}} if stream else {"stream": False}
    )
    with recording(calls) as (prefill, decode), vllm_router(prefill, decode) as http:
        calls.clear()
        http.post(path, json=asked)
    first, second = (call for call in calls if call.path == path)
    assert (first.server, second.server) == ("prefill", "decode")
    for got, expected in ((first.body, first_call(asked)), (second.body, second_call(asked, GIVEN))):
        # It adds more defaults of fields that we do not have; what we read is as the stand-in has it.
        assert {key: got[key] for key in expected if key in got} == {
            key: value for key, value in expected.items() if key in got
        }
        assert set(asked) - set(got) <= {"stream_options"}
    assert first.body["min_tokens"] == 1
    assert second.body["kv_transfer_params"] == GIVEN
    assert "stream_options" not in first.body
    assert first.headers["authorization"] == second.headers["authorization"] == "Bearer the-key"


@pytest.fixture(scope="module")
def whole() -> Iterator[httpx2.Client]:
    """One colocated server, whose answers are right."""
    with kv_engine("colocated") as engine, client(engine) as http:
        yield http


def body_of(number: int) -> tuple[str, dict[str, Any]]:
    """Completions of ids and of text, and chats; every second one a stream."""
    common = {"max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": number % 2 == 0}
    words = " ".join(f"word{number * at}" for at in range(5 + number % 40))
    if number % 5 == 0:
        return "/v1/chat/completions", common | {"messages": [{"role": "user", "content": words}]}
    ids = [1 + (number * 31 + at * at) % 250 for at in range(20 + 3 * number)]
    return "/v1/completions", common | {"prompt": words if number % 3 == 0 else ids}


def text_of(answer: httpx2.Response) -> str:
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        *chunks, done = events(answer.text)
        assert done == "[DONE]"
        choices = [chunk["choices"][0] for chunk in chunks]
    else:
        choices = answer.json()["choices"]
    return "".join(
        one.get("text") or (one.get("delta") or one.get("message") or {}).get("content") or ""
        for one in choices
    )


@pytest.mark.parametrize("policy", ["round_robin", "cache_aware"])
def test_no_answer_is_wrong_while_the_prefill_instance_is_killed(whole: httpx2.Client, policy: str) -> None:
    """It dies with KV that is kept and prompts half computed; its server starts it again."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("ADVISE_KV_SECRET", SECRET)
        prefill = stack.enter_context(kv_engine("prefill", step_s=0.01, token_budget=64))
        decode = stack.enter_context(kv_engine("decode", step_s=0.002))
        prefiller, decoder = (stack.enter_context(client(one)) for one in (prefill, decode))
        router = stack.enter_context(vllm_router(prefill.url, decode.url, policy))
        [pid] = [one["pid"] for one in prefiller.get("/health").json()["instances"]]

        def call(number: int) -> str:
            if number == REQUESTS // 3:
                os.kill(pid, signal.SIGKILL)
            path, body = body_of(number)
            return text_of(router.post(path, json=body))

        with ThreadPoolExecutor(8) as threads:
            got = list(threads.map(call, range(REQUESTS)))
        for number, text in enumerate(got):
            path, body = body_of(number)
            assert text == text_of(whole.post(path, json=body)), f"answer {number}"
        values = metrics(decoder)
        transferred = values['advise_fleet_events_total{event="transferred"}']
        voided = values['advise_fleet_events_total{event="voided"}']
        assert transferred + voided == REQUESTS
        assert transferred > REQUESTS // 2
        assert metrics(prefiller)['advise_restarts{instance="prefill-0"}'] == 1
        eventually(lambda: not used(prefiller, "prefill-0"), "all KV is let go", within_s=5)
        eventually(lambda: not used(decoder, "decode-0"), "all requests are over", within_s=5)


def used(http: httpx2.Client, name: str) -> float:
    return blocks(metrics(http), name)["used"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_of_a_real_model_says_what_one_server_says(tmp_path: Path, stream: bool) -> None:
    """As docs/two-call.md has it: two `advise launch`, the router, and a client that knows of neither."""
    embedded_folder()
    body = {
        "messages": [{"role": "user", "content": "Name three colours."}],
        "max_tokens": 16,
        "temperature": 0,
    }
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("ADVISE_KV_SECRET", SECRET)
        urls, texts = [], []
        for role in ("prefill", "decode"):
            # `auto` may find other numbers in each launch, and KV of different numbers is refused.
            model = ModelConfig(dtype="float32")
            pool = PoolConfig.model_validate({"role": role, "kv_tokens": 4096})
            config = EngineConfig(pools=(pool,), model=model, server=ServerConfig(port=0))
            folder = tmp_path / role
            folder.mkdir()
            urls.append(stack.enter_context(advise_launch(folder, config, folder / "steps")).url)
        router = stack.enter_context(vllm_router(urls[0], urls[1]))
        body |= {"logprobs": True, "top_logprobs": 2, "ignore_eos": True}
        texts.append(text_of(router.post("/v1/chat/completions", json=body | {"stream": stream})))
        decoder = stack.enter_context(httpx2.Client(base_url=urls[1], timeout=60))
        assert metrics(decoder)['advise_fleet_events_total{event="transferred"}'] == 1
        # With the first token's, which came with the pass.
        [choice] = router.post("/v1/chat/completions", json=body).json()["choices"]
        assert len(choice["logprobs"]["content"]) == 16
        # Of another tenant, so that nothing of the KV that was pulled is used.
        texts.append(text_of(decoder.post("/v1/chat/completions", json=body | {"cache_salt": "other"})))
        assert len(texts[0]) > 10
        assert texts[0] == texts[1]
