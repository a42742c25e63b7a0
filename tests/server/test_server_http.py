"""The HTTP routes over a server process with a fake executor."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
import pytest
from helpers.server import client, events, fake_engine, metrics
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.config import PoolConfig


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with fake_engine(pool=PoolConfig(kv_tokens=8192)) as engine, client(engine) as connection:
        yield connection


def ask(http: httpx2.Client, path: str = "/v1/completions", **fields: object) -> httpx2.Response:
    return http.post(path, json={"prompt": "abc", "temperature": 0, **fields})


# The fake repeats the bytes of "héllo " by position; after the 3 tokens of "abc" it goes on with "llo ".
def test_a_completion_has_openais_shape(http: httpx2.Client) -> None:
    answer = ask(http, max_tokens=6).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {"index": 0, "text": "llo h\ufffd", "logprobs": None, "finish_reason": "length"}
    ]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize("prompt", ["abc", ["abc"], [97, 98, 99], [[97, 98, 99]]])
def test_every_form_of_one_prompt_means_the_same(http: httpx2.Client, prompt: object) -> None:
    answer = ask(http, prompt=prompt, max_tokens=4).json()
    assert answer["choices"][0]["text"] == "llo "
    assert answer["usage"]["prompt_tokens"] == 3


def test_a_stream_is_one_chunk_a_token_then_the_reason_the_usage_and_done(http: httpx2.Client) -> None:
    answer = ask(http, max_tokens=7, stream=True, stream_options={"include_usage": True}, return_token_ids=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, reason, usage, done = events(answer.text)
    assert [c["choices"][0]["token_ids"] for c in chunks] == [[t] for t in "llo h\u00e9".encode()]
    # The two bytes of é are two tokens: the first has no text yet, its chunk comes all the same.
    assert [c["choices"][0]["text"] for c in chunks] == ["l", "l", "o", " ", "h", "", "\u00e9"]
    assert all(c["usage"] is None for c in chunks)
    assert reason["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 7
    assert done == "[DONE]"


def test_without_token_ids_a_chunk_always_has_text_and_no_usage(http: httpx2.Client) -> None:
    *chunks, reason, done = events(ask(http, max_tokens=6, stream=True).text)
    assert [c["choices"][0]["text"] for c in chunks] == ["l", "l", "o", " ", "h", "\ufffd"]
    assert "usage" not in chunks[0]
    assert "token_ids" not in chunks[0]["choices"][0]
    assert (reason["choices"][0]["finish_reason"], done) == ("length", "[DONE]")


def test_a_chat_stream_begins_with_the_role(http: httpx2.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 3, "stream": True}
    first, *chunks, reason, _done = events(http.post("/v1/chat/completions", json=body).text)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(c["choices"][0]["delta"].keys() == {"content"} for c in chunks)
    assert reason["choices"][0]["delta"] == {}
    assert reason["choices"][0]["finish_reason"] == "length"


def test_text_parts_of_a_message_are_joined_and_developer_is_system(http: httpx2.Client) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": parts}, {"role": "user", "content": None}]
    answer = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens"] == len("system: ab\nuser: \n")


def test_a_chat_without_a_limit_may_fill_the_context(http: httpx2.Client) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 4000}]}
    usage = http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["total_tokens"] == 4096


def test_a_repeated_prompt_reports_its_cached_tokens(http: httpx2.Client) -> None:
    prompt = "a prompt of fifty characters, no more and no less."
    cached = [
        ask(http, prompt=prompt, max_tokens=1).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        for _ in range(2)
    ]
    assert cached == [0, 48]  # 50 tokens hold three full blocks of 16


def test_a_cache_salt_keeps_tenants_apart(http: httpx2.Client) -> None:
    prompt = "shared by two tenants, who must not see that it is so"

    def cached(salt: str) -> int:
        answer = ask(http, prompt=prompt, max_tokens=1, cache_salt=salt).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached("a"), cached("b"), cached("a")] == [0, 0, 48]


def test_models_says_what_a_client_has_to_know(http: httpx2.Client) -> None:
    (model,) = http.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"], model["vocab_size"]) == ("fake", 4096, 256)


def test_health_and_unknown_routes(http: httpx2.Client) -> None:
    health = http.get("/health").json()
    assert health == http.get("/health/ready").json()
    (instance,) = health.pop("instances")
    assert health == {"status": "ready", "degraded": False, "oversubscribed": False, "emulated": None}
    assert instance.pop("pid") > 0
    assert instance == {"name": "colocated-0", "role": "colocated", "state": "up", "restarts": 0}
    assert http.get("/health/live").json() == {"status": "live"}
    assert http.get("/nope").status_code == 404
    assert http.get("/v1/completions").status_code == 405
    assert http.get("/nope").json()["error"]["type"] == "invalid_request_error"


def test_a_prompt_over_the_context_is_refused_at_once(http: httpx2.Client) -> None:
    for fields in ({"prompt": [1] * 4096}, {"prompt": [1] * 4000, "max_tokens": 97}):
        answer = ask(http, **fields)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert ask(http, prompt=[1] * 4000, max_tokens=96).status_code == 200


def test_another_models_name_is_404(http: httpx2.Client) -> None:
    answer = ask(http, model="gpt-5")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_a_body_over_the_limit_is_413(http: httpx2.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            yield b" " * 2**20

    # Without a length in the header, so that the count of what came is what stops it.
    assert http.post("/v1/completions", content=chunks()).status_code == 413


def test_another_host_name_is_refused(http: httpx2.Client) -> None:
    assert http.get("/v1/models", headers={"host": "evil.example"}).status_code == 400
    assert http.get("/v1/models", headers={"host": "localhost:1234"}).status_code == 200


_PROMPT = '"prompt": "secret words"'
MALFORMED = [
    b"",
    b"null",
    b"[]",
    b"\xff\xfe",
    b"{",
    b'{"prompt": "a"',
    b"[" * 100_000,
    b'{"prompt": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    b'{"prompt": "\\ud800"}',
    *(
        body.encode()
        for body in (
            "{}",
            '{"prompt": null}',
            '{"prompt": ""}',
            '{"prompt": []}',
            '{"prompt": {}}',
            '{"prompt": 1}',
            '{"prompt": [true]}',
            '{"prompt": [1.5]}',
            '{"prompt": [-1]}',
            '{"prompt": [256]}',
            '{"prompt": [1e400]}',
            f'{{"prompt": [{10**30}]}}',
            '{"prompt": ["a", [1]]}',
            '{"prompt": ["a", ""]}',
            '{"prompt": [[1], []]}',
            '{"prompt": [[1], [true]]}',
            f'{{"prompt": {json.dumps(["a"] * 17)}}}',
            f'{{"prompt": {json.dumps(["a"] * 5)}, "n": 7}}',
            '{"prompt": [1, "a"]}',
        )
    ),
    *(
        f'{{{_PROMPT}, "{name}": {value}}}'.encode()
        for name, value in (
            ("max_tokens", "0"),
            ("max_tokens", "-1"),
            ("max_tokens", "true"),
            ("max_tokens", "1.5"),
            ("max_tokens", '"5"'),
            ("max_tokens", "1e999"),
            ("max_tokens", str(10**40)),
            ("max_tokens", "9" * 5000),
            ("min_tokens", "-1"),
            ("min_tokens", "17"),
            ("temperature", "NaN"),
            ("temperature", "Infinity"),
            ("temperature", "-0.1"),
            ("temperature", "true"),
            ("temperature", '"hot"'),
            ("top_p", "0"),
            ("top_p", "1.1"),
            ("top_k", "-2"),
            ("top_k", "0.5"),
            ("seed", "1.5"),
            ("seed", str(2**64)),
            ("n", "9"),
            ("n", "0"),
            ("n", "true"),
            ("stream", "1"),
            ("stream_options", "{}"),
            ("stream_options", '{"include_usage": true}'),
            ("ignore_eos", '"yes"'),
            ("stop", f'"{"x" * 65}"'),
            ("stop", '["a", "b", "c", "d", "e"]'),
            ("stop", '["a", ""]'),
            ("stop", "[5]"),
            ("stop", "{}"),
            ("logprobs", "21"),
            ("logprobs", "-1"),
            ("logprobs", "true"),
            ("echo", "true"),
            ("best_of", "2"),
            ("best_of", "true"),
            ("frequency_penalty", "false"),
            ("logit_bias", '{"1": 5}'),
            ("response_format", '{"type": "json_object"}'),
            ("cache_salt", '""'),
            ("cache_salt", f'"{"x" * 200}"'),
            ("cache_salt", '"' + 100 * "\u00e9" + '"'),
            ("cache_salt", "5"),
            ("cache_salt", '["a"]'),
            ("metadata", "[" * 40 + "]" * 40),
            ("model", "5"),
        )
    ),
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_body_is_a_400_that_quotes_no_prompt(http: httpx2.Client, body: bytes) -> None:
    answer = http.post("/v1/completions", content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    "messages",
    ["[]", "null", '"hi"', "[{}]", '[{"role": "king", "content": "x"}]', '[{"role": "user", "content": 5}]',
     '[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]', '[{"content": "x"}]'],
)  # fmt: skip
def test_malformed_messages_are_400(http: httpx2.Client, messages: str) -> None:
    assert http.post("/v1/chat/completions", content=f'{{"messages": {messages}}}').status_code == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["prompt", "messages", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "seed", "n",
          "stream", "stream_options", "stop", "model", "ignore_eos", "return_token_ids", "logprobs",
          "top_logprobs", "cache_salt"]  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.dictionaries(st.sampled_from(FIELDS), JSON), chat=st.booleans())
def test_no_body_is_a_500(http: httpx2.Client, body: dict[str, object], chat: bool) -> None:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    assert http.post(path, content=json.dumps(body)).status_code < 500


def test_values_that_ask_for_nothing_are_fine(http: httpx2.Client) -> None:
    nothing = {"stop": None, "n": 1, "logprobs": None, "presence_penalty": 0.0, "echo": False, "user": "me"}
    assert ask(http, max_tokens=1, **nothing).status_code == 200


def test_unknown_fields_are_ignored_and_counted(http: httpx2.Client) -> None:
    before = metrics(http)["advise_ignored_fields_total"]
    assert ask(http, max_tokens=1, user="me", no_such_field=[1], echo=False).status_code == 200
    assert metrics(http)["advise_ignored_fields_total"] == before + 2


def test_metrics_count_what_happened(http: httpx2.Client) -> None:
    before = metrics(http)
    ask(http, prompt="counted, and long enough for one page", max_tokens=5)
    ask(http, prompt="counted, and long enough for one page", max_tokens=5)
    after = metrics(http)
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    assert grown['advise_requests_total{finish_reason="length"}'] == 2
    assert grown["advise_generated_tokens_total"] == 10
    assert grown["advise_prompt_tokens_total"] == 2 * 37
    assert grown["advise_prefix_hit_tokens_total"] == 32
    assert grown['advise_computed_tokens_total{phase="prefill"}'] == 2 * 37 - 32
    assert grown['advise_computed_tokens_total{phase="decode"}'] == 2 * 4
    assert grown["advise_ttft_seconds_count"] == 2
    assert grown["advise_tbt_seconds_count"] == 8
    assert after["advise_invariant_violations_total"] == 0
