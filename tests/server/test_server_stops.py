"""Stop strings: the end does not depend on the token cuts, and nothing behind it is ever given out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import httpx2
import pytest
from helpers.server import blocks, client, events, eventually, fake_engine, metrics
from hypothesis import given
from hypothesis import strategies as st

from engine.server.stops import StopFinder

# Few letters, one of them of two bytes, so that stop strings overlap with themselves and each other.
LETTERS = st.sampled_from("ab\u00e9")
TEXT = st.text(LETTERS, max_size=30)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), min_size=1, max_size=4)


def by_definition(text: str, stops: list[str], *, keep: bool) -> str:
    """Character by character: the first place where the text so far ends with a stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end if keep else end - max(map(len, ending))]
    return text


@given(text=TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 30)), keep=st.booleans())
def test_streamed_pieces_join_to_what_the_whole_text_gives(
    text: str, stops: list[str], cuts: list[int], keep: bool
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    finder, given_out = StopFinder(stops, keep=keep), ""
    for start, end in pairwise(edges):
        given_out += finder.push(text[start:end])
        assert by_definition(text, stops, keep=keep).startswith(given_out)
        if finder.found:
            break
    given_out += finder.flush()
    assert given_out == by_definition(text, stops, keep=keep)
    assert finder.found == any(stop in text for stop in stops)


@given(text=TEXT, stops=STOPS)
def test_only_what_could_begin_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)
    given_out = finder.push(text)
    if not finder.found:
        held = text[len(given_out) :]
        assert not held or any(stop.startswith(held) for stop in stops)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with fake_engine("sleep:0.002") as engine, client(engine) as connection:
        yield connection


# The fake goes on behind "abc" with "llo héllo héllo ...", a token a byte.
@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [
        ("o h", "ll", 5),
        (["o h", "lo"], "l", 3),
        ("\u00e9", "llo h", 7),
        ("h\u00e9l", "llo ", 8),
        (["nowhere", " "], "llo", 4),
        ("llo", "", 3),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_ends_before_the_stop_string(
    http: httpx2.Client, stop: object, text: str, tokens: int, stream: bool
) -> None:
    asked = {"prompt": "abc", "max_tokens": 400, "stop": stop, "stream": stream, "return_token_ids": True}
    if stream:
        asked["stream_options"] = {"include_usage": True}
        *chunks, usage, _done = events(http.post("/v1/completions", json=asked).text)
        choices = [chunk["choices"][0] for chunk in chunks]
        said = "".join(choice["text"] for choice in choices)
        ids = [token for choice in choices for token in choice.get("token_ids", [])]
        reason, counted = choices[-1]["finish_reason"], usage["usage"]
    else:
        answer = http.post("/v1/completions", json=asked).json()
        (choice,) = answer["choices"]
        said, ids, reason = choice["text"], choice["token_ids"], choice["finish_reason"]
        counted = answer["usage"]
    assert (said, reason, counted["completion_tokens"], len(ids)) == (text, "stop", tokens, tokens)


def test_the_stop_string_may_be_kept(http: httpx2.Client) -> None:
    asked = {"prompt": "abc", "max_tokens": 40, "stop": "o h", "include_stop_str_in_output": True}
    assert http.post("/v1/completions", json=asked).json()["choices"][0]["text"] == "llo h"


def test_text_held_back_comes_out_where_no_stop_string_follows(http: httpx2.Client) -> None:
    asked = {"prompt": "abc", "max_tokens": 5, "stop": "o h!", "stream": True}
    *chunks, reason, _done = events(http.post("/v1/completions", json=asked).text)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["l", "l", "o h"]
    assert reason["choices"][0]["finish_reason"] == "length"


def test_stop_strings_within_min_tokens_do_not_count(http: httpx2.Client) -> None:
    asked = {"prompt": "abc", "max_tokens": 40, "min_tokens": 5, "stop": "l", "temperature": 0}
    answer = http.post("/v1/completions", json=asked).json()
    assert answer["choices"][0]["text"] == "llo h\u00e9"


def test_a_chat_stops_too(http: httpx2.Client) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stop": ["l"], "stream": True}
    *_, reason, _done = events(http.post("/v1/chat/completions", json=body).text)
    assert reason["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [True, False])
def test_a_stopped_request_frees_its_blocks_and_is_no_abort(stream: bool) -> None:
    with fake_engine("sleep:0.005") as engine, client(engine) as http:
        # Behind 101 bytes a character begins; a detokenizer would wait for ever for one cut in two.
        asked = {"prompt": "x" * 101, "max_tokens": 3000, "ignore_eos": True, "stop": "llo", "stream": stream}
        http.post("/v1/completions", json=asked)
        eventually(lambda: blocks(metrics(http))["used"] == 0, "the blocks are back")
        values = metrics(http)
        assert values['advise_requests_total{finish_reason="stop"}'] == 1
        assert 'advise_requests_total{finish_reason="abort"}' not in values
        # The step in flight, and one that may have begun before the loop heard of it.
        assert values["advise_generated_tokens_total"] < 50
