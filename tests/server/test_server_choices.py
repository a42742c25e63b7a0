"""Several choices and several prompts in one call, and the seeds that choices draw with."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from helpers.server import LONG, blocks, client, events, eventually, fake_engine, leave_open, metrics

from engine.config import PoolConfig
from engine.server.choices import choice_seed


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with fake_engine() as engine, client(engine) as connection:
        yield connection


def ask(http: httpx2.Client, **fields: object) -> httpx2.Response:
    return http.post("/v1/completions", json={"max_tokens": 4, "temperature": 0, **fields})


def test_choices_come_in_the_order_of_the_prompts(http: httpx2.Client) -> None:
    """The fake goes on where the prompt ends: behind 3 bytes with "llo ", behind 4 with "lo h"."""
    answer = ask(http, prompt=["abc", "abcd"], n=2).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in answer["choices"]] == ["llo ", "llo ", "lo h", "lo h"]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (7, 16)


def test_lists_of_token_ids_are_prompts(http: httpx2.Client) -> None:
    answer = ask(http, prompt=[[97] * 3, [97] * 4]).json()
    assert [c["text"] for c in answer["choices"]] == ["llo ", "lo h"]


def test_a_stream_gives_each_chunk_its_choice_and_one_usage(http: httpx2.Client) -> None:
    answer = ask(http, prompt=["abc", "abcd"], n=2, stream=True, stream_options={"include_usage": True})
    *chunks, usage, done = events(answer.text)
    texts, reasons = dict.fromkeys(range(4), ""), {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert choice["index"] not in reasons, "a chunk behind the choice's end"
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == {0: "llo ", 1: "llo ", 2: "lo h", 3: "lo h"}
    assert reasons == dict.fromkeys(range(4), "length")
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 16, "[DONE]")
    assert len({chunk["id"] for chunk in [*chunks, usage]}) == 1


def test_every_choice_of_a_chat_stream_begins_with_the_role(http: httpx2.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True, "n": 3}
    chunks = events(http.post("/v1/chat/completions", json=body).text)[:-1]
    roles = [c["choices"][0]["index"] for c in chunks if "role" in c["choices"][0]["delta"]]
    assert roles == [0, 1, 2]


def test_choices_of_one_prompt_compute_it_once(http: httpx2.Client) -> None:
    """Of 100 prompt tokens, six full blocks of 16 are shared; the last 4 are computed by every choice."""
    before = metrics(http)
    usage = ask(http, prompt="nobody else begins like this " + "y" * 71, n=5).json()["usage"]
    eventually(lambda: metrics(http)["advise_requests_running"] == 0, "all are over")
    after = metrics(http)
    name = 'advise_computed_tokens_total{phase="prefill"}'
    assert after[name] - before[name] == 100 + 4 * 4
    assert usage["prompt_tokens"] == 100
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_choices_end_by_themselves_and_their_stop_strings_too(http: httpx2.Client) -> None:
    answer = ask(http, prompt=["abc", "abcd"], stop="o ", max_tokens=50).json()
    assert [(c["text"], c["finish_reason"]) for c in answer["choices"]] == [("ll", "stop"), ("l", "stop")]


def test_a_queue_without_room_for_all_choices_takes_none() -> None:
    pool = PoolConfig(max_seqs=1)
    with fake_engine("sleep:0.005", pool=pool, max_queued=4) as engine, client(engine) as http:
        open_requests = [leave_open(engine.url, **LONG)]
        eventually(lambda: metrics(http)["advise_requests_running"] == 1, "one runs")
        open_requests.append(leave_open(engine.url, **LONG))
        eventually(lambda: metrics(http)["advise_requests_queued"] == 1, "one waits")
        refused = ask(http, prompt="x", n=4)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert metrics(http)["advise_requests_queued"] == 1
        assert ask(http, prompt="x", n=5).status_code == 400  # it could never be taken
        for connection in open_requests:
            connection.close()
        eventually(lambda: metrics(http)["advise_requests_running"] == 0, "both are aborted")
        assert ask(http, prompt="x", n=4).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["x" * 100, "y"])
def test_a_client_that_leaves_aborts_all_choices(stream: bool, prompt: str) -> None:
    with fake_engine("sleep:0.005") as engine, client(engine) as http:
        asked = {**LONG, "prompt": prompt, "n": 4}
        connection = leave_open(engine.url, **asked, stream=stream)
        eventually(lambda: metrics(http)["advise_requests_running"] == 4, "all choices run")
        connection.close()
        eventually(lambda: metrics(http)["advise_requests_running"] == 0, "all choices are aborted")
        after = metrics(http)
        assert after['advise_requests_total{finish_reason="abort"}'] == 4
        assert blocks(after)["used"] == 0


def test_choices_that_wait_for_the_first_are_aborted_with_it() -> None:
    """The first step takes long, and the client is gone before it ends."""
    with fake_engine("sleep:0.3") as engine, client(engine) as http:
        connection = leave_open(engine.url, **LONG, n=4)
        connection.close()
        name = 'advise_requests_total{finish_reason="abort"}'
        eventually(lambda: metrics(http).get(name) == 4, "all choices are aborted")
        assert ask(http, prompt="x", max_tokens=1).status_code == 200


def test_the_first_choice_has_the_given_seed_and_others_draw_apart() -> None:
    for seed in (0, 1, 2**63 - 1):
        seeds = [choice_seed(seed, choice) for choice in range(8)]
        assert seeds[0] == seed
        assert len(set(seeds)) == 8
        assert all(0 <= one < 2**63 for one in seeds)
    near = {choice_seed(seed, choice) for seed in range(1000) for choice in range(8)}
    assert len(near) == 8000
