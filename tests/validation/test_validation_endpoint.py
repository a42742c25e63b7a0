"""What an endpoint is: engines by what their own source and documents say that they answer."""

from __future__ import annotations

import asyncio

import pytest
from helpers.fake_server import Program, serving
from helpers.server import fake_engine

from advisor.validation import endpoint as endpoints
from advisor.validation.busy import Busy, busy_of
from advisor.validation.endpoint import Endpoint, base_of, inspect
from advisor.validation.hosts import list_price, provider_of
from engine.errors import InputError, MachineError

# As the engines print them: vLLM and SGLang documentation of production metrics, TensorRT-LLM's metrics of its
# Prometheus page, llama.cpp's server README, NVIDIA Dynamo's guide. Two instances each where they have labels.
VLLM = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
"""
SGLANG = 'sglang:num_running_reqs{model_name="m"} 8\nsglang:num_queue_reqs{model_name="m"} 4\n'
TRTLLM = 'trtllm_num_requests_running{model_name="m"} 3.0\ntrtllm_num_requests_waiting{model_name="m"} 0.0\n'
LLAMACPP = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 5\n"
DYNAMO = 'dynamo_frontend_inflight_requests{model="m"} 7\ndynamo_frontend_queued_requests{model="m"} 2\n'


def look(program: Program, **more: str) -> Endpoint:
    async def looked() -> Endpoint:
        async with serving(program) as url:
            return await inspect(url, **more)

    return asyncio.run(looked())


@pytest.mark.parametrize(
    ("page", "busy"),
    [
        (VLLM, Busy(3, 4)),
        (SGLANG, Busy(8, 4)),
        (SGLANG.replace("sglang:", "sglang_"), Busy(8, 4)),
        (TRTLLM, Busy(3, 0)),
        (LLAMACPP, Busy(1, 5)),
        (DYNAMO, Busy(7, 2)),
        ('advise_requests_running{instance="a"} 1\nadvise_requests_queued{instance="a"} 2\n', Busy(1, 2)),
        ("vllm:num_requests_running NaN\n", None),
        ("process_cpu_seconds_total 3\n", None),
        ("", None),
    ],
)
def test_running_and_waiting_requests_are_those_of_the_page(page: str, busy: Busy | None) -> None:
    assert busy_of(page) == busy


@pytest.mark.parametrize(
    ("program", "kind", "engine"),
    [
        (
            Program(card={"owned_by": "vllm"}, pages={"/version": {"version": "0.12.0"}}, metrics=[VLLM]),
            "vllm",
            "vLLM 0.12.0",
        ),
        (Program(card={"owned_by": "sglang"}, pages={"/server_info": {"api_key": "s"}}), "sglang", "SGLang"),
        (Program(card={"owned_by": "tensorrt_llm"}), "trtllm", "TensorRT-LLM"),
        (
            Program(card={"owned_by": "library"}, pages={"/api/version": {"version": "0.13.1"}}),
            "ollama",
            "Ollama 0.13.1",
        ),
        (Program(server="llama.cpp", pages={"/props": {"build_info": "b8681"}}), "llamacpp", "llama.cpp b8681"),
        (Program(card={"owned_by": "nvidia"}, metrics=[DYNAMO]), "dynamo", "NVIDIA Dynamo"),
        (Program(health={"emulated": {"gpu": "h100-sxm", "time_scale": 2.0}}), "advise", "the bundled engine"),
        (Program(metrics=["process_cpu_seconds_total 3\n"]), "unknown", "an OpenAI-compatible server"),
        (Program(), "unknown", "an OpenAI-compatible server"),
    ],
)
def test_an_engine_is_known_by_what_it_says(program: Program, kind: str, engine: str) -> None:
    endpoint = look(program)
    assert (endpoint.kind, endpoint.engine) == (kind, engine)


def test_the_bundled_engine_says_that_it_is_idle() -> None:
    with fake_engine() as running:
        endpoint = asyncio.run(inspect(running.url))
        assert (endpoint.kind, endpoint.busy) == ("advise", Busy(0, 0))


def test_the_queue_of_iterations_of_tensorrt_llm_is_left_to_whom_it_belongs() -> None:
    """Its /metrics is emptied by reading; what would be found there is not looked at."""
    assert look(Program(card={"owned_by": "tensorrt_llm"}, metrics=[TRTLLM])).busy is None


def test_what_llama_cpp_keeps_in_meta_is_found() -> None:
    gone = {"max_model_len": None, "vocab_size": None}
    card = gone | {"owned_by": "llamacpp", "meta": {"n_vocab": 128256, "n_ctx": 4096, "n_ctx_train": 131072}}
    endpoint = look(Program(card=card))
    assert (endpoint.max_len, endpoint.vocab_size) == (4096, 128256)
    # Older ones tell only the context of training there, which is not what a slot holds.
    card["meta"] = {"n_vocab": 128256, "n_ctx_train": 131072}
    older = look(Program(card=card, pages={"/props": {"default_generation_settings": {"n_ctx": 2048}}}))
    assert older.max_len == 2048


def test_what_is_not_told_is_none() -> None:
    endpoint = look(Program(card={"max_model_len": None, "vocab_size": None}))
    assert (endpoint.max_len, endpoint.vocab_size, endpoint.busy, endpoint.version) == (
        None,
        32_000,
        None,
        None,
    )


def test_an_adapter_is_not_the_model() -> None:
    program = Program(more_models=[{"id": "tuned", "parent": "fake"}])
    assert look(program).model == "fake"
    assert look(program, model="tuned").model == "tuned"


def test_one_of_several_models_has_to_be_named() -> None:
    program = Program(more_models=[{"id": "other"}])
    with pytest.raises(InputError, match="serves 2 models") as caught:
        look(program)
    assert "--model fake" in (caught.value.hint or "")
    assert look(program, model="other").model == "other"
    with pytest.raises(InputError, match="does not serve the model 'third'") as caught:
        look(program, model="third")
    assert "fake, other" in (caught.value.why or "")


def test_of_a_hosted_api_only_the_list_of_models_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "provider_of", lambda _: "openai")
    endpoint = look(Program(metrics=[VLLM], health={"emulated": {"gpu": "l4"}}))
    assert (endpoint.kind, endpoint.provider, endpoint.busy, endpoint.emulates) == (
        "hosted",
        "openai",
        None,
        None,
    )
    assert endpoint.engine == "the hosted API of openai"


def test_a_key_is_asked_for_and_sent() -> None:
    with pytest.raises(MachineError, match="wants an API key"):
        look(Program(api_key="secret"))
    assert look(Program(api_key="secret"), api_key="secret").model == "fake"


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_base_is_what_v1_is_appended_to(url: str) -> None:
    assert base_of(url) == "http://h:1"


def test_a_url_that_ends_in_v1_is_understood() -> None:
    async def looked() -> None:
        async with serving(Program()) as url:
            assert (await inspect(url + "/v1")).url == url

    asyncio.run(looked())


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://API.OpenAI.com", "openai"),
        ("https://mine.openai.azure.com", "azure-openai"),
        ("https://bedrock-runtime.us-east-1.amazonaws.com", "bedrock"),
        ("https://api.together.xyz", "together"),
        ("https://api.openai.com.example.org", None),
        ("https://example.org/api.openai.com", None),
        ("http://10.0.0.7:8000", None),
    ],
)
def test_hosted_apis_are_known_by_their_host(url: str, provider: str | None) -> None:
    assert provider_of(url) == provider


def test_list_prices_are_of_the_model_and_its_dated_names() -> None:
    assert list_price("openai", "gpt-4o-mini") == (0.15, 0.6)
    assert list_price("openai", "gpt-4o-mini-2024-07-18") == (0.15, 0.6)
    assert list_price("openai", "gpt-4o-mini-transcribe") is None
    assert list_price("anthropic", "gpt-4o-mini") is None
