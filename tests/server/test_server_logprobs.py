"""Logprobs in both shapes of OpenAI's API. Their values are checked in tests/engine/test_torch_logprobs.py."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import openai
import pytest
from helpers.server import client, events, fake_engine


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with fake_engine() as engine, client(engine) as connection:
        yield connection


def complete(http: httpx2.Client, **fields: object) -> httpx2.Response:
    return http.post("/v1/completions", json={"prompt": "abc", "temperature": 0, **fields})


# Behind "abc" the fake says "llo h\xc3\xa9", a token a byte, each with -0.5; other places go to A, B, ...
def test_a_completion_has_the_legacy_shape(http: httpx2.Client) -> None:
    logprobs = complete(http, max_tokens=7, logprobs=2).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["l", "l", "o", " ", "h", "bytes:\\xc3", "bytes:\\xa9"],
        "token_logprobs": [-0.5] * 7,
        "top_logprobs": [
            {token: -0.5, "A": -1.5} for token in ["l", "l", "o", " ", "h", "bytes:\\xc3", "bytes:\\xa9"]
        ],
        "text_offset": [0, 1, 2, 3, 4, 5, 5],
    }


def test_logprobs_0_gives_the_token_itself(http: httpx2.Client) -> None:
    logprobs = complete(http, max_tokens=2, logprobs=0).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"l": -0.5}, {"l": -0.5}]
    assert complete(http, max_tokens=2).json()["choices"][0]["logprobs"] is None


def test_the_chunks_of_a_stream_join_to_the_whole(http: httpx2.Client) -> None:
    asked = {"max_tokens": 7, "logprobs": 1, "stop": "o h!"}
    whole = complete(http, **asked).json()["choices"][0]["logprobs"]
    chunks = [c["choices"][0] for c in events(complete(http, **asked, stream=True).text)[:-1]]
    for key, values in whole.items():
        assert [value for c in chunks if c["logprobs"] for value in c["logprobs"][key]] == values
    # Tokens whose text is held back have their chunk all the same.
    assert [c["text"] for c in chunks] == ["l", "l", "", "", "", "", "o h\u00e9", ""]


def test_a_chat_has_its_content_shape(http: httpx2.Client) -> None:
    body = {"messages": [{"role": "user", "content": "xyz"}], "max_tokens": 2, "logprobs": True}
    (choice,) = http.post("/v1/chat/completions", json=body | {"top_logprobs": 2}).json()["choices"]
    said = choice["message"]["content"]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == list(said)
    for entry in choice["logprobs"]["content"]:
        assert entry["bytes"] == list(entry["token"].encode())
        assert [top["token"] for top in entry["top_logprobs"]] == [entry["token"], "A"]
        assert [top["logprob"] for top in entry["top_logprobs"]] == [-0.5, -1.5]
    (bare,) = http.post("/v1/chat/completions", json=body).json()["choices"]
    assert [entry["top_logprobs"] for entry in bare["logprobs"]["content"]] == [[], []]


@pytest.mark.parametrize(
    "fields", ['"top_logprobs": 2', '"logprobs": 1', '"logprobs": true, "top_logprobs": 21']
)
def test_a_chat_refuses_what_does_not_fit(http: httpx2.Client, fields: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "x"}}], {fields}}}'
    assert http.post("/v1/chat/completions", content=body).status_code == 400


def test_each_choice_has_its_own(http: httpx2.Client) -> None:
    answer = complete(http, prompt=["abc", "abcd"], n=2, max_tokens=2, logprobs=0).json()
    tokens = [choice["logprobs"]["tokens"] for choice in answer["choices"]]
    assert tokens == [["l", "l"], ["l", "l"], ["l", "o"], ["l", "o"]]


def test_the_official_client_reads_both(http: httpx2.Client) -> None:
    with openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="unused", max_retries=0) as api:
        text = api.completions.create(model="fake", prompt="abc", max_tokens=2, logprobs=1)
        assert text.choices[0].logprobs is not None
        assert text.choices[0].logprobs.tokens == ["l", "l"]
        chat = api.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "x"}],
            max_tokens=1,
            logprobs=True,
            top_logprobs=1,
        )
        assert chat.choices[0].logprobs is not None
        assert chat.choices[0].logprobs.content is not None
        assert chat.choices[0].logprobs.content[0].top_logprobs[0].logprob == -0.5
