"""The two-call protocol: what `kv_transfer_params` say, what is believed, and two launches behind a stand-in.

Bodies are those that vllm-router 0.1.17 was recorded to send (docs/two-call.md). The servers' output depends on
every position of the KV that it was made from (`helpers.server_kv`), so equal text means the right KV.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx2
import msgspec
import pytest
from helpers.server import blocks, client, events, eventually, metrics
from helpers.server_kv import kv_engine
from helpers.two_call import ASK, SECRET, StandIn, first_call, second_call
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig, PoolConfig, RouterConfig
from engine.errors import InputError
from engine.fleet.fleet import Fleet
from engine.request import Request, SamplingParams
from engine.server import messages
from engine.server.bodies import ChatBody, CompletionBody, parse
from engine.server.errors import ApiError
from engine.server.front import Front
from engine.server.links import Links
from engine.server.metrics import Metrics
from engine.server.observer import Observer
from engine.server.two_call import (
    MAX_PASS_CHARS,
    Handoff,
    KvTransferParams,
    TwoCall,
    believes_token,
    secret_of,
)
from engine.step import TokenLogprobs
from engine.transfer.layout import KvLayout, Peer

LAYOUT = KvLayout(model="m", dtype="float32", block_size=16, layers=2, kv_heads=2, head_dim=8)
PEER = Peer(transport="shared_memory", nonce="n" * 32, address="/tmp/advise-x/kv-n.sock", layout=LAYOUT)  # noqa: S108
FAR = Peer(transport="tcp", nonce="n" * 32, address="10.0.0.7:4711", layout=LAYOUT)
NEAR = Peer(transport="tcp", nonce="n" * 32, address="127.0.0.1:4711", layout=LAYOUT)
REQUEST = Request("cmpl-1", (1, 2, 3), SamplingParams(max_tokens=8), namespace="ours")
HANDOFF = Handoff("cmpl-9", PEER, 70, 16, TokenLogprobs(-0.5, ((70, -0.5), (71, -1.5))))


def config(*roles: str, **router: Any) -> EngineConfig:
    pools = tuple(PoolConfig.model_validate({"role": role}) for role in roles)
    return EngineConfig(pools=pools, router=RouterConfig(**router))


def side(role: str, secret: str | None = SECRET, layout: KvLayout | None = LAYOUT, **router: Any) -> TwoCall:
    return TwoCall(config(role, **router), secret, lambda: layout)


def brought(text: str | None) -> KvTransferParams:
    return KvTransferParams(do_remote_prefill=True, do_remote_decode=False, advise=text)


def pass_of(handoff: Handoff, request: Request = REQUEST, secret: str = SECRET) -> str:
    return side("prefill", secret).offer(request, handoff).advise


def test_what_a_prefill_server_offers_is_what_the_decode_server_finds() -> None:
    offer = side("prefill").offer(REQUEST, HANDOFF)
    assert (offer.do_remote_prefill, offer.do_remote_decode) == (True, False)
    assert offer.remote_engine_id == PEER.nonce
    # As the router carries it: through JSON, every field as it was.
    params = KvTransferParams.model_validate_json(msgspec.json.encode(offer))
    assert side("decode").handoff(params, [REQUEST]) == HANDOFF


def test_over_tcp_the_fields_of_nixl_say_where() -> None:
    offer = side("prefill").offer(REQUEST, msgspec.structs.replace(HANDOFF, peer=FAR))
    assert (offer.remote_host, offer.remote_port) == ("10.0.0.7", 4711)


def test_bodies_without_it_are_ordinary() -> None:
    for params in (None, KvTransferParams(), KvTransferParams(do_remote_decode=False, do_remote_prefill=False)):
        for role in ("prefill", "decode", "colocated"):
            assert not side(role, None).keeps(params)
            assert side(role, None).handoff(params, [REQUEST]) is None


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_without_a_secret_it_is_refused_and_said_how(role: str) -> None:
    asked = KvTransferParams(do_remote_decode=role == "prefill", do_remote_prefill=role == "decode")
    with pytest.raises(ApiError, match="ADVISE_KV_SECRET") as refused:
        side(role, None).keeps(asked)
    assert (refused.value.status, refused.value.param) == (400, "kv_transfer_params")


@pytest.mark.parametrize(
    ("role", "asked", "why"),
    [
        ("decode", KvTransferParams(do_remote_decode=True), "not just prefill"),
        ("prefill", KvTransferParams(do_remote_prefill=True), "not just decode"),
        ("colocated", KvTransferParams(do_remote_decode=True), "both phases itself"),
        ("prefill", KvTransferParams(do_remote_decode=True, do_remote_prefill=True), "exclude"),
    ],
)
def test_calls_that_are_not_for_this_server_are_refused(role: str, asked: KvTransferParams, why: str) -> None:
    with pytest.raises(ApiError, match=why) as refused:
        side(role).keeps(asked)
    assert refused.value.status == 400


def refused(asked: KvTransferParams, *requests: Request, server: TwoCall | None = None) -> str:
    with pytest.raises(ApiError) as refusal:
        (server or side("decode")).handoff(asked, requests or [REQUEST])
    assert (refusal.value.status, refusal.value.param) == (400, "kv_transfer_params")
    return refusal.value.message


@pytest.mark.parametrize(
    "other",
    [replace(REQUEST, prompt=(1, 2, 4)), replace(REQUEST, prompt=(1, 2)), replace(REQUEST, namespace="theirs")],
)
def test_kv_of_another_prompt_or_another_tenant_is_refused(other: Request) -> None:
    """It would stay in the prefix cache under this prompt, for everybody."""
    assert "not for this prompt" in refused(brought(pass_of(HANDOFF)), other)


def test_a_pass_of_another_secret_is_refused() -> None:
    assert "ADVISE_KV_SECRET" in refused(brought(pass_of(HANDOFF, secret="x" * 32)))


def test_a_pass_with_any_character_changed_is_refused() -> None:
    good = pass_of(HANDOFF)
    for at, was in enumerate(good.rstrip("=")):
        bad = good[:at] + ("A" if was != "A" else "B") + good[at + 1 :]
        refused(brought(bad))


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.hex()))
def test_whatever_a_client_makes_up_is_refused(text: str) -> None:
    refused(brought(text))


def test_a_signed_pass_of_another_version_is_refused() -> None:
    class Later(msgspec.Struct, frozen=True, array_like=True):
        kept_as: int
        peer: Peer = PEER

    later: Any = Later(3)
    assert "another version" in refused(brought(pass_of(later)))


def test_params_of_another_engine_are_refused() -> None:
    assert "not of an advise prefill server" in refused(brought(None))


def test_two_choices_of_one_pass_are_refused() -> None:
    assert "n: 1" in refused(brought(pass_of(HANDOFF)), REQUEST, replace(REQUEST, id="cmpl-2"))


def test_layouts_that_differ_are_refused_with_both_values() -> None:
    other = msgspec.structs.replace(LAYOUT, block_size=32)
    message = refused(brought(pass_of(HANDOFF)), server=side("decode", layout=other))
    assert message == "the KV layouts differ in block_size: ours is 32, theirs 16"


def test_while_no_instance_is_up_the_layout_is_the_pulls_concern() -> None:
    assert side("decode", layout=None).handoff(brought(pass_of(HANDOFF)), [REQUEST]) == HANDOFF


def test_hosts_that_are_not_loopback_are_refused_unless_configured() -> None:
    far = msgspec.structs.replace(HANDOFF, peer=FAR)
    asked = brought(pass_of(far))
    assert "router.kv_from" in refused(asked)
    assert "10.0.0.7" not in refused(asked)
    assert "router.kv_from" in refused(asked, server=side("decode", kv_from=("10.0.0.70",)))
    assert side("decode", kv_from=("10.0.0.7",)).handoff(asked, [REQUEST]) == far
    near = msgspec.structs.replace(HANDOFF, peer=NEAR)
    assert side("decode").handoff(brought(pass_of(near)), [REQUEST]) == near


def test_a_token_that_min_tokens_may_have_changed_is_not_believed() -> None:
    def believed(**sampling: Any) -> bool:
        return believes_token(replace(REQUEST, sampling=SamplingParams(**{"max_tokens": 8, **sampling})))

    assert believed()
    assert believed(min_tokens=4)  # greedy: the likeliest token that does not end is the likeliest, or it ended
    assert believed(min_tokens=4, temperature=1.0)
    assert believed(temperature=1.0, top_p=0.9)
    assert not believed(min_tokens=1, temperature=1.0, top_p=0.9)
    assert not believed(min_tokens=1, temperature=1.0, top_k=5)
    assert not believed(max_tokens=1)


def test_only_one_side_of_a_split_shares_its_secret_and_no_short_one() -> None:
    environment = {"ADVISE_KV_SECRET": SECRET}
    assert secret_of(config("prefill"), environment) == secret_of(config("decode"), environment) == SECRET
    assert secret_of(config("prefill", "decode"), environment) is None
    assert secret_of(config("colocated"), environment) is None
    assert secret_of(config("prefill"), {}) is None
    with pytest.raises(InputError, match="shorter than 16"):
        secret_of(config("prefill"), {"ADVISE_KV_SECRET": "x" * 15})


BODY = {"model": "hashes", "prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0.0, "seed": 7, "logprobs": 2}


def test_the_recorded_bodies_are_read() -> None:
    first = parse(CompletionBody, msgspec.json.encode(first_call(BODY)))
    assert side("prefill").keeps(first.kv_transfer_params)
    carried = {"remote_engine_id": "e1", "remote_block_ids": [1, 2], "remote_port": 5600, "tp_size": 1}
    params = {"do_remote_prefill": True, "do_remote_decode": False, "advise": "x", **carried}
    second = parse(CompletionBody, msgspec.json.encode(second_call(BODY, params)))
    assert second.kv_transfer_params == brought("x")
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 8}
    read = parse(ChatBody, msgspec.json.encode(first_call(chat)))
    assert (read.max_tokens, read.max_completion_tokens) == (1, 1)


@pytest.mark.parametrize(
    "params",
    [
        3,
        "x",
        [],
        {"do_remote_decode": "true"},
        {"do_remote_prefill": 1},
        {"do_remote_prefill": True, "advise": 5},
        {"do_remote_prefill": True, "advise": {"a": 1}},
        {"do_remote_prefill": True, "advise": "A" * (MAX_PASS_CHARS + 1)},
    ],
)
def test_params_of_a_wrong_shape_are_refused(params: object) -> None:
    with pytest.raises(ApiError, match="kv_transfer_params") as refusal:
        parse(CompletionBody, msgspec.json.encode({**BODY, "kv_transfer_params": params}))
    assert refusal.value.status == 400


class Sent:
    """`Instances` of one decode instance that is up; what it was sent."""

    def __init__(self) -> None:
        self.members = [SimpleNamespace(state="up")]
        self.orders: list[messages.Order] = []

    def send(self, index: int, order: messages.Order) -> None:
        assert index == 0
        self.orders.append(order)

    def take(self) -> list[messages.Order]:
        orders, self.orders = self.orders, []
        return orders


def test_a_source_of_another_fleet_is_renewed_pulled_under_its_own_name_and_told() -> None:
    sent, pool = Sent(), PoolConfig(role="decode")
    instances: Any = sent
    observer = Observer(Metrics(), ["decode-0"], [pool])
    front = Front(Fleet([pool], RouterConfig()), instances, observer, links=Links(), clock=lambda: 0.0)
    ticket = front.adopt(REQUEST, HANDOFF, asyncio.Event(), stream=True)
    assert (ticket.tokens, ticket.logprobs, ticket.cached_tokens) == ([70], [HANDOFF.logprobs], 16)
    [reserve] = sent.take()
    assert isinstance(reserve, messages.Reserve)
    front.heard(0, messages.Reserved(REQUEST.id, reserve.attempt, None))
    front.heard(0, messages.Beat(0.0, 0.0))
    assert sent.take() == [messages.Tell(PEER, "cmpl-9", still=True)]
    front.heard(0, messages.Reserved(REQUEST.id, reserve.attempt, 0))
    assert sent.take() == []  # it said no, and was not asked again
    front._do(front._fleet.tick(0.0), 0.0)
    [reserve] = sent.take()
    assert isinstance(reserve, messages.Reserve)
    front.heard(0, messages.Reserved(REQUEST.id, reserve.attempt, 2))
    assert sent.take() == [messages.Pull(REQUEST.id, reserve.attempt, 2, 3, PEER, "cmpl-9")]
    front.heard(0, messages.Pulled(REQUEST.id, reserve.attempt, "ok", 8, 0.1, "shared_memory"))
    assert sent.take() == [
        messages.StartDecode(REQUEST.id, reserve.attempt, 70),
        messages.Tell(PEER, "cmpl-9", still=False),
    ]
    front.check_invariants()


class Servers:
    """A launch of each side, and a whole one to compare with."""

    def __init__(self, stack: ExitStack) -> None:
        self.http: dict[str, httpx2.Client] = {}
        for role in ("prefill", "decode", "colocated"):
            self.http[role] = stack.enter_context(client(stack.enter_context(kv_engine(role))))
        self.router = StandIn(self.http["prefill"], self.http["decode"])
        self.prompts = 0

    def body(self, tokens: int = 40, **fields: Any) -> dict[str, Any]:
        """A prompt that nobody has seen."""
        self.prompts += 1
        prompt = [1 + (self.prompts * 7919 + at * at) % 250 for at in range(tokens)]
        common = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        return common | {"return_token_ids": True} | fields

    def colocated(self, body: dict[str, Any], path: str = "/v1/completions") -> Any:
        return self.http["colocated"].post(path, json=body).json()["choices"]

    def count(self, name: str, role: str = "decode") -> float:
        return metrics(self.http[role]).get(f"advise_{name}", 0.0)

    def transferred(self) -> float:
        return self.count('fleet_events_total{event="transferred"}')

    def nothing_is_held(self, role: str) -> bool:
        return blocks(metrics(self.http[role]), f"{role}-0")["used"] == 0


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("ADVISE_KV_SECRET", SECRET)
        yield Servers(stack)


PREFILLED = 'computed_tokens_total{instance="decode-0",phase="prefill"}'


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 100])
def test_tokens_are_those_of_one_server_and_the_prompt_is_computed_once(servers: Servers, tokens: int) -> None:
    body, before, pulled = servers.body(tokens), servers.count(PREFILLED), servers.transferred()
    answer = servers.router.post("/v1/completions", body)
    assert answer.json()["choices"] == servers.colocated(body)
    assert answer.json()["usage"]["completion_tokens"] == 12
    assert servers.transferred() == pulled + 1
    assert servers.count(PREFILLED) == before
    # Long before the lease of 30 s is over.
    eventually(lambda: servers.nothing_is_held("prefill"), "the KV is let go", within_s=5)
    eventually(lambda: servers.nothing_is_held("decode"), "the request is over", within_s=5)


def test_a_stream_has_the_first_token_first(servers: Servers) -> None:
    body = servers.body(stream=True, stream_options={"include_usage": True})
    pulled = servers.transferred()
    *chunks, usage, done = events(servers.router.post("/v1/completions", body).text)
    ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])]
    [whole] = servers.colocated({**body, "stream": False, "stream_options": None})
    assert (ids, done) == (whole["token_ids"], "[DONE]")
    assert usage["usage"]["completion_tokens"] == 12
    assert servers.transferred() == pulled + 1


def test_chats_are_handed_over(servers: Servers) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 9, "temperature": 0}
    body |= {"ignore_eos": True, "cache_salt": "tenant"}
    pulled = servers.transferred()
    answer = servers.router.post("/v1/chat/completions", body)
    assert answer.json()["choices"] == servers.colocated(body, "/v1/chat/completions")
    assert servers.transferred() == pulled + 1


@pytest.mark.parametrize("fields", [{"max_tokens": 1}, {"n": 2}, {"max_tokens": 2}])
def test_what_is_not_handed_over_is_served_by_the_decode_server(servers: Servers, fields: Any) -> None:
    body = servers.body(**fields)
    answer = servers.router.post("/v1/completions", body)
    assert answer.json()["choices"] == servers.colocated(body)
    eventually(lambda: servers.nothing_is_held("prefill"), "nothing is kept", within_s=5)


def test_a_first_token_that_ends_the_text_leaves_nothing_kept(servers: Servers) -> None:
    """The fake's end of sequence is token 0; one prompt in 256 meets it at once."""
    body = servers.body(ignore_eos=False)
    for first in range(1, 250):
        prompts = [[first, second] for second in range(1, 17)]
        choices = servers.colocated({**body, "prompt": prompts, "max_tokens": 1})
        ends = [prompt for prompt, choice in zip(prompts, choices, strict=True) if choice["token_ids"] == [0]]
        if ends:
            body["prompt"] = ends[0]
            break
    call = servers.http["prefill"].post("/v1/completions", json=first_call(body)).json()
    assert (call["choices"][0]["finish_reason"], call["kv_transfer_params"]) == ("stop", None)
    answer = servers.router.post("/v1/completions", body)
    assert answer.json()["choices"] == servers.colocated(body)
    eventually(lambda: servers.nothing_is_held("prefill"), "nothing is kept", within_s=5)


def test_a_stop_string_that_the_first_token_completes_ends_the_text_and_lets_go(servers: Servers) -> None:
    body = servers.body()
    text = servers.colocated(body)[0]["text"]
    answer = servers.router.post("/v1/completions", body | {"stop": [text[0]]})
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert answer.json()["choices"] == servers.colocated(body | {"stop": [text[0]]})
    eventually(lambda: servers.nothing_is_held("prefill"), "the KV is let go", within_s=5)
    eventually(lambda: servers.nothing_is_held("decode"), "the request is over", within_s=5)


def test_a_pass_is_good_once_then_the_prompt_is_computed_again(servers: Servers) -> None:
    body = servers.body()
    given = servers.http["prefill"].post("/v1/completions", json=first_call(body)).json()["kv_transfer_params"]
    answers = []
    for _ in range(2):
        answers.append(servers.http["decode"].post("/v1/completions", json=second_call(body, given)).json())
        eventually(lambda: servers.nothing_is_held("prefill"), "the KV is let go", within_s=5)
    assert [one["choices"] for one in answers] == [servers.colocated(body)] * 2
    assert servers.count('kv_transfers_total{result="expired",transport="shared_memory"}') >= 1


def test_a_pass_for_another_prompt_is_refused_over_http(servers: Servers) -> None:
    body, other = servers.body(), servers.body()
    given = servers.http["prefill"].post("/v1/completions", json=first_call(body)).json()["kv_transfer_params"]
    answer = servers.http["decode"].post("/v1/completions", json=second_call(other, given))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "kv_transfer_refused"
    done = servers.http["decode"].post("/v1/completions", json=second_call(body, given))
    assert done.json()["choices"] == servers.colocated(body)


def test_a_prefill_server_takes_first_calls_as_they_are_only(servers: Servers) -> None:
    for wrong in ({"max_tokens": 2}, {"stream": True}):
        answer = servers.http["prefill"].post("/v1/completions", json=first_call(servers.body()) | wrong)
        assert answer.status_code == 400
        assert "max_tokens: 1" in answer.json()["error"]["message"]
    ask = servers.http["decode"].post("/v1/completions", json=servers.body() | {"kv_transfer_params": ASK})
    assert ask.status_code == 400


def test_a_source_that_dies_between_the_calls_costs_a_prefill_only(servers: Servers) -> None:
    before = servers.count(PREFILLED)
    pids = [one["pid"] for one in servers.http["prefill"].get("/health").json()["instances"]]

    def kill() -> None:
        os.kill(pids[0], signal.SIGKILL)

    body = servers.body(100)
    answer = servers.router.post("/v1/completions", body, between=kill)
    assert answer.json()["choices"] == servers.colocated(body)
    assert servers.count(PREFILLED) == before + 101  # the prompt and the token that came with it
    # The next call waits for the instance to be started again.
    body = servers.body(100)
    pulled = servers.transferred()
    assert servers.router.post("/v1/completions", body).json()["choices"] == servers.colocated(body)
    assert servers.transferred() == pulled + 1


def test_kv_is_pulled_over_tcp(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISE_KV_SECRET", SECRET)
    with kv_engine("prefill", router={"transport": "tcp"}) as engine, client(engine) as http:
        body = servers.body(100)
        answer = StandIn(http, servers.http["decode"]).post("/v1/completions", body)
        assert answer.json()["choices"] == servers.colocated(body)
        assert servers.count('kv_transfers_total{result="ok",transport="tcp"}') == 1
        eventually(lambda: blocks(metrics(http), "prefill-0")["used"] == 0, "the KV is let go", within_s=5)
