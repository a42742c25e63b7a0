"""Routes: counted, and shown without anything that could name a person, a tenant or a deployment."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.workload_traces import make_labels
from hypothesis import given
from hypothesis import strategies as st

from advisor.workload.routes import measure_routes, safe_route

PUBLIC = {"v1", "chat", "completions", "embeddings", "openai", "deployments", "models"}


@pytest.mark.parametrize(
    ("route", "shown"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("POST /v1/messages", "/v1/messages"),
        ("https://tenant.example/v1/embeddings?api-key=k#x", "/v1/embeddings"),
        ("/openai/deployments/acme-prod/chat/completions", "/openai/deployments/*/chat/completions"),
        ("/v1beta/models/my-model:generateContent", "/v1beta/models/*:generateContent"),
        ("/users/42/chat", "/*/*/chat"),
        ("acompletion", "acompletion"),
        ("alice", "*"),
        ("", "*"),
    ],
)
def test_only_public_words_are_shown(route: str, shown: str) -> None:
    assert safe_route(route) == shown


@given(st.lists(st.one_of(st.sampled_from(sorted(PUBLIC)), st.text(max_size=8).map(lambda text: "7" + text))))
def test_nothing_else_gets_through(parts: list[str]) -> None:
    # No word of an API starts with a 7.
    shown = safe_route("/".join(parts))
    words = {word for part in shown.split("/") for word in part.split(":")} - {"", "*"}
    assert words <= PUBLIC | {text for part in parts for text in part.split(":")[1:] if text in PUBLIC}
    assert "7" not in shown


def test_routes_that_show_the_same_are_one_entry() -> None:
    routes = make_labels(
        ["/v1/chat/completions"] * 3 + ["/t/a/chat", "/t/b/chat", "/t/b/chat", "/t/c/chat", ""]
    )
    rows = measure_routes(routes, 8)
    assert [(row.name, row.routes, row.requests) for row in rows] == [
        ("/*/*/chat", 3, 4),
        ("/v1/chat/completions", 1, 3),
        (None, 0, 1),
    ]


def test_names_of_other_models_rows_do_not_count() -> None:
    labels = make_labels(["/v1/chat/completions", "/v1/completions"]).take(np.array([0, 0]))
    assert [(row.name, row.requests) for row in measure_routes(labels, 2)] == [("/v1/chat/completions", 2)]


def test_a_log_without_routes_says_so() -> None:
    (row,) = measure_routes(None, 7)
    assert (row.name, row.routes, row.requests) == (None, 0, 7)
    assert measure_routes(None, 0) == ()
