"""The OpenAPI document is what the server does, and docs/api.md says the same.

Schemathesis sends generated bodies, fitting the document and not, and checks every answer against it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
import schemathesis
from helpers.server import client, events, fake_engine
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from engine.config import PoolConfig
from engine.server.bodies import NOT_SERVED, ChatBody, CompletionBody, GenerationBody
from engine.server.openapi import document

DOC = Path(__file__).resolve().parents[2] / "docs" / "api.md"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    negative_data_rejection,
]
POSTS = ["/v1/completions", "/v1/chat/completions"]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    # A short context, so that a chat that fills it is short too.
    with fake_engine(pool=PoolConfig(kv_tokens=256)) as engine, client(engine) as connection:
        yield connection


def fuzz(http: httpx2.Client, path: str, examples: int) -> None:
    # Without its security: this server has no key, so a request without one is none to refuse.
    served = http.get("/openapi.json").json()
    del served["security"]
    schema = schemathesis.openapi.from_dict(served)
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    cases = st.one_of([schema[path]["POST"].as_strategy(generation_mode=mode) for mode in modes])
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    bounds = settings(deadline=None, suppress_health_check=quiet, phases=[Phase.generate], derandomize=True)
    statuses = set()

    @settings(bounds, max_examples=examples)
    @given(case=cases)
    def conforms(case: Any) -> None:
        statuses.add(case.call_and_validate(base_url=str(http.base_url), checks=CHECKS).status_code)

    conforms()
    assert {200, 400} <= statuses


@pytest.mark.parametrize("path", POSTS)
def test_answers_to_generated_bodies_conform(http: httpx2.Client, path: str) -> None:
    fuzz(http, path, 60)


@pytest.mark.slow
@pytest.mark.parametrize("path", POSTS)
def test_answers_to_many_generated_bodies_conform(http: httpx2.Client, path: str) -> None:
    fuzz(http, path, 1000)


def test_the_document_is_valid_and_names_every_route(http: httpx2.Client) -> None:
    served = http.get("/openapi.json").json()
    assert served == json.loads(json.dumps(document()))
    schemathesis.openapi.from_dict(served).validate()
    for path, methods in served["paths"].items():
        for method in methods:
            assert http.request(method, path).status_code not in (404, 405), path
    for path in ("/docs", "/redoc", "/v1", "/v1/embeddings", "/tokenize"):
        assert http.get(path).status_code == 404


def validator(name: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", **document()})


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}, {"n": 2, "return_token_ids": True}])
def test_chunks_of_streams_have_the_shape_of_answers(http: httpx2.Client, fields: dict[str, Any]) -> None:
    asked = {"max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}, **fields}
    text = validator("Answer_TextChoice_")
    for chunk in events(http.post("/v1/completions", json=asked | {"prompt": "abc"}).text)[:-1]:
        text.validate(chunk)
    asked |= {"messages": [{"role": "user", "content": "x"}], "logprobs": "logprobs" in fields}
    chat = validator("Answer_ChatChoice_")
    for chunk in events(http.post("/v1/chat/completions", json=asked).text)[:-1]:
        chat.validate(chunk)


@pytest.mark.parametrize("model", [CompletionBody, ChatBody])
def test_the_table_of_fields_in_the_docs_is_that_of_the_models(model: type[GenerationBody]) -> None:
    text = DOC.read_text()
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else f"`{json.dumps(field.default)}`"
        assert f"| `{name}` | {default} | {field.description} |" in text
    named = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `") and "`/" not in line}
    assert named == {*CompletionBody.model_fields, *ChatBody.model_fields}
    assert all(f"`{name}`" in text for name in NOT_SERVED)
