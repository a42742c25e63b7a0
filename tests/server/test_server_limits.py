"""Limits of heads and bodies, and request ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from helpers.server import client, fake_engine
from hypothesis import given
from hypothesis import strategies as st

from engine.server.limits import MAX_BODY_BYTES, MAX_DEPTH, MAX_HEAD_BYTES, is_too_deep

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('[]{}"\\a\u00e9'), max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=40,
)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with fake_engine() as engine, client(engine) as connected:
        yield connected


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(value=JSON, around=st.integers(MAX_DEPTH - 6, MAX_DEPTH + 2), ascii_only=st.booleans())
def test_depth_is_that_of_the_parsed_value(value: object, around: int, ascii_only: bool) -> None:
    for level in range(around):
        value = [value, "["] if level % 2 else {"a{": value}
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert is_too_deep(text.encode()) == (depth(value) > MAX_DEPTH)


@pytest.mark.parametrize("raw", [b"[" * 10**6, b"[" * 10**6 + b"]" * 10**6, b'{"a":' * 10**5, b"[[]" * 10**5])
def test_deep_text_is_found_whether_it_ends_or_not(raw: bytes) -> None:
    assert is_too_deep(raw)


def test_brackets_within_a_prompt_have_no_depth(http: httpx2.Client) -> None:
    prompt = "[{" * 500 + '\\"'
    assert http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).status_code == 200


def test_the_longest_prompt_of_a_validation_fits_a_body() -> None:
    """131,072 tokens of a vocabulary of 200,000: more than any model that we launch."""
    assert len(json.dumps({"prompt": [199_999] * 131_072})) < MAX_BODY_BYTES


def test_a_declared_length_over_the_limit_is_413_before_the_body_comes(http: httpx2.Client) -> None:
    head = {"content-length": str(MAX_BODY_BYTES + 1)}
    answer = http.post("/v1/completions", content=b"x" * (MAX_BODY_BYTES + 1), headers=head)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("size", [MAX_HEAD_BYTES, 10 * MAX_HEAD_BYTES])
def test_a_head_over_the_limit_is_431(http: httpx2.Client, size: int) -> None:
    answer = http.get("/health", headers={"x-large": "x" * size})
    assert answer.status_code == 431
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert answer.headers["x-request-id"]


def test_a_request_id_comes_back_if_it_is_plain(http: httpx2.Client) -> None:
    for given_id in ("a", "Trace_1.2-3", "x" * 64):
        assert http.get("/health", headers={"x-request-id": given_id}).headers["x-request-id"] == given_id
    for given_id in ("", "a b", "http://evil", "../x", "x" * 65, "\u00e9", "a\tb"):
        headers = [(b"x-request-id", given_id.encode())]
        answered = http.get("/nope", headers=headers).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{16}", answered)


def test_the_same_request_id_twice_is_two_requests(http: httpx2.Client) -> None:
    asked = {"prompt": "abc", "max_tokens": 2}
    answers = [http.post("/v1/completions", json=asked, headers={"x-request-id": "same"}) for _ in range(2)]
    assert [answer.headers["x-request-id"] for answer in answers] == ["same", "same"]
    assert len({answer.json()["id"] for answer in answers} | {"same"}) == 3


def test_the_log_names_the_request_and_its_answer_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISE_API_KEY", "sesame42")
    with fake_engine() as engine, client(engine, authorization="Bearer sesame42") as http:
        answer = http.post("/v1/completions", json={"prompt": "abc"}, headers={"x-request-id": "mine"})
        http.get("/v1/models", headers={"authorization": "Bearer sesame43", "x-request-id": "stranger"})
        assert f"request mine: 200 {answer.json()['id']}" in engine.tail()
        assert "request stranger: 401 -" in engine.tail()
        assert "sesame" not in engine.tail()
