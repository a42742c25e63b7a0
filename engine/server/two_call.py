"""The two-call protocol of vllm-router: a prefill server says where the KV is, a decode server pulls it.

    router -> prefill server    do_remote_decode: one token, and its KV stays, under a lease
    prefill server -> router    `kv_transfer_params`, among them a pass
    router -> decode server     the whole request with those params: pull, decode behind the token, let go

Owns what is in `kv_transfer_params`. All that the decode side believes is in the pass: it names the source, the
token and this very prompt, and is signed with the secret that both launches share (ADVISE_KV_SECRET). So what a
client makes up, or takes from another prompt, is refused before anything of it is read: KV of another prompt
would stay in the prefix cache for others. The fields that vLLM's NIXL connector has are given for whoever
logs them, and never read. Pulls nothing itself. The protocol as recorded: docs/two-call.md.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from engine.config import EngineConfig
from engine.errors import InputError
from engine.request import Request
from engine.server.errors import ApiError
from engine.server.guard import is_loopback
from engine.step import TokenLogprobs
from engine.transfer.layout import KvLayout, Peer, mismatch

SECRET_VARIABLE = "ADVISE_KV_SECRET"  # noqa: S105 - its name
MIN_SECRET_CHARS = 16  # ours; `openssl rand -hex 32` gives 64
MAX_PASS_CHARS = 8192  # ours; with 20 logprobs a pass is about 1,000 long
_PARAM = "kv_transfer_params"
_PURPOSE = b"two-call pass 1\0"  # no proof of the KV plane, made with the same secret, is one of these
_PROOF_BYTES = 32


class KvTransferParams(BaseModel):
    """What a router sends. Fields that are not here are vLLM's connector's, and ignored."""

    model_config = ConfigDict(strict=True, frozen=True, hide_input_in_errors=True)

    do_remote_decode: bool | None = Field(None, description="keep the KV for another server")
    do_remote_prefill: bool | None = Field(None, description="the KV is on another server")
    advise: str | None = Field(None, max_length=MAX_PASS_CHARS, description="the prefill server's pass")


class Handoff(msgspec.Struct, frozen=True, array_like=True):
    """A prefill that another server has done: `peer` keeps its KV as `kept_as`, and `token` came out."""

    kept_as: str
    peer: Peer
    token: int
    cached_tokens: int
    logprobs: TokenLogprobs | None = None


class KvOffer(msgspec.Struct, frozen=True, kw_only=True):
    """`kv_transfer_params` of an answer, which a router hands to a decode server as they are."""

    do_remote_prefill: bool = True
    do_remote_decode: bool = False
    remote_engine_id: str
    remote_block_ids: tuple[int, ...] = ()
    remote_host: str | None
    remote_port: int | None
    advise: str


_handoffs = msgspec.msgpack.Decoder(Handoff)


def secret_of(config: EngineConfig, environment: Mapping[str, str] = os.environ) -> str | None:
    """The secret that a launch of one side shares with the other; None for a whole fleet, or without one.

    Raises InputError where it is too short.
    """
    secret = environment.get(SECRET_VARIABLE)
    if not secret or _side(config) is None:
        return None
    if len(secret) < MIN_SECRET_CHARS:
        raise InputError(
            f"{SECRET_VARIABLE} is shorter than {MIN_SECRET_CHARS} characters",
            why="whoever guesses it can read and replace KV",
            hint=f"export {SECRET_VARIABLE}=$(openssl rand -hex 32)",
        )
    return secret


class TwoCall:
    """One server's side of the protocol. `layout` gives that of its KV, None while no instance is up."""

    def __init__(self, config: EngineConfig, secret: str | None, layout: Callable[[], KvLayout | None]) -> None:
        self._side = _side(config)
        self._hosts: Collection[str] = config.router.kv_from
        self._secret = secret.encode() if secret else None
        self._layout = layout

    def keeps(self, asked: KvTransferParams | None) -> bool:
        """Whether this is the first call. Raises ApiError 400 where this server does not take such calls."""
        if asked is None:
            return False
        if asked.do_remote_decode and asked.do_remote_prefill:
            raise _refusal("do_remote_decode and do_remote_prefill exclude each other")
        for wanted, side in ((asked.do_remote_decode, "prefill"), (asked.do_remote_prefill, "decode")):
            if wanted and self._secret is None and self._side is not None:
                raise _refusal(f"{_PARAM} needs a secret: set the same {SECRET_VARIABLE} for both launches")
            if wanted and self._side != side:
                raise _refusal(f"this server has not just {side} instances: it does both phases itself")
        return bool(asked.do_remote_decode)

    def offer(self, request: Request, handoff: Handoff) -> KvOffer:
        """What the answer to the first call says of the KV that is kept."""
        peer = handoff.peer
        host, _, port = peer.address.rpartition(":") if peer.transport == "tcp" else ("", "", "")
        body = msgspec.msgpack.encode(handoff)
        signed = base64.urlsafe_b64encode(self._proof(body, request) + body).decode()
        return KvOffer(
            remote_engine_id=peer.nonce,
            remote_host=host or None,
            remote_port=int(port) if port else None,
            advise=signed,
        )

    def handoff(self, asked: KvTransferParams | None, requests: Sequence[Request]) -> Handoff | None:
        """What the second call brings, for its one choice. Raises ApiError 400 that says what is wrong."""
        if asked is None or not asked.do_remote_prefill:
            return None
        if asked.advise is None:
            raise _refusal("there is no pass in `advise`: these are not of an advise prefill server")
        if len(requests) > 1:
            raise _refusal("KV is handed over for one prompt and n: 1 only")
        handoff = self._opened(asked.advise, requests[0])
        ours = self._layout()
        why = mismatch(ours, handoff.peer.layout) if ours is not None else None
        if why is not None:
            raise _refusal(why)
        host, _, _ = handoff.peer.address.rpartition(":")
        if handoff.peer.transport == "tcp" and not (is_loopback(host) or host in self._hosts):
            raise _refusal("the KV is on a host that is neither loopback nor in router.kv_from")
        return handoff

    def _opened(self, text: str, request: Request) -> Handoff:
        """The content of a pass whose signature is right, for this prompt."""
        try:
            signed = base64.b64decode(text.encode(), b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise _refusal("the pass in `advise` is damaged") from None
        body = signed[_PROOF_BYTES:]
        if not hmac.compare_digest(signed[:_PROOF_BYTES], self._proof(body, request)):
            raise _refusal(
                "the pass in `advise` is not for this prompt, model and cache_salt, or the prefill server has "
                f"another {SECRET_VARIABLE}"
            )
        try:
            return _handoffs.decode(body)
        except msgspec.DecodeError:  # signed with our secret: by another version
            raise _refusal("the pass in `advise` is of another version of advise") from None

    def _proof(self, body: bytes, request: Request) -> bytes:
        if self._secret is None:
            raise RuntimeError("a pass without a secret")
        what = msgspec.msgpack.encode((body, request.namespace, tuple(request.prompt)))
        return hmac.digest(self._secret, _PURPOSE + what, "sha256")


def believes_token(request: Request) -> bool:
    """Whether the first token of the first call is the one that `request` would get, and not its last.

    The first call does not know of `min_tokens`: vllm-router sends 1 whatever its client asked for. Where that
    keeps an end of sequence out before top-k or top-p, another token may be drawn.
    """
    sampling = request.sampling
    filters = sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1)
    return sampling.max_tokens > 1 and not (filters and sampling.min_tokens > 0)


def _side(config: EngineConfig) -> str | None:
    """The one role of all instances, where that is half of a split."""
    roles = {pool.role for pool in config.pools}
    return None if len(roles) > 1 or roles == {"colocated"} else roles.pop()


def _refusal(why: str) -> ApiError:
    return ApiError(400, why, param=_PARAM, code="kv_transfer_refused")
