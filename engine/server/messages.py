"""What a router and its instances say to each other: plain data, framed by `engine.server.channel`.

The router's messages are the fleet's actions in a form that travels; an instance's are the answers to them, its
tokens, and how it is. `attempt` is the fleet's: every answer hands it back, so that what comes late is known to
be late. Times are durations, never clock readings: two hosts share no clock.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.core import CoreStats, FinishReason
from engine.request import Request, SamplingParams
from engine.step import TokenLogprobs
from engine.transfer.layout import Peer, Transport


class Wire(msgspec.Struct, frozen=True, array_like=True):
    """A request as it travels; in the engine no request has runs."""

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    namespace: str
    keep_kv: bool

    @classmethod
    def of(cls, request: Request) -> Wire:
        """The form that travels."""
        return cls(request.id, tuple(request.prompt), request.sampling, request.namespace, request.keep_kv)

    def request(self) -> Request:
        """The form that an engine core takes."""
        return Request(self.id, self.prompt, self.sampling, self.namespace, keep_kv=self.keep_kv)


class Start(msgspec.Struct, frozen=True, tag=True, array_like=True, kw_only=True):
    """The first message: what this instance is. `config` is the whole EngineConfig, `pool` its pool in it.

    `epoch` counts its starts. `first_device` is the first of its devices, in the order of the pools. `folder`,
    mode 0700, is the launch's own, for Unix sockets; `secret` the launch's.
    """

    config: dict[str, Any]
    pool: int
    index: int
    name: str
    epoch: int
    dtype: str
    transport: Transport | Literal["auto"] | None  # None: its KV never moves
    first_device: int
    folder: str
    secret: str
    kv_host: str = "127.0.0.1"
    dummy: bool = False
    step_log: str | None = None
    fault: str | None = None
    emulation: str | None = None
    oversubscribe: bool = False


class Add(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Run a request, `waited_s` after it came in; one with `keep_kv` is the prefill half of a split."""

    request: Wire
    attempt: int
    waited_s: float


class Abort(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """End a request in whatever state; nobody waits for its end."""

    request_id: str


class Reserve(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Reserve blocks for the request's whole life."""

    request: Wire
    attempt: int


class Pull(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Copy positions `start` to `stop` from `peer`, which keeps the KV as `kept_as`, into reserved blocks."""

    request_id: str
    attempt: int
    start: int
    stop: int
    peer: Peer
    kept_as: str | None = None  # the same name


class StartDecode(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The KV is good: decode behind `token`."""

    request_id: str
    attempt: int
    token: int


class Release(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Free the KV that was kept after a prefill."""

    request_id: str


class Renew(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """These leases are still wanted."""

    request_ids: tuple[str, ...]


class Tell(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Tell `peer`, an instance of another fleet, whether what it keeps as `kept_as` is still wanted."""

    peer: Peer
    kept_as: str
    still: bool


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Finish the step in flight and end."""


Order = Add | Abort | Reserve | Pull | StartDecode | Release | Renew | Tell | Stop


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A token of a request, and its end where it was the last: see `engine.core.TokenEvent`."""

    request_id: str
    attempt: int
    token: int | None
    reason: FinishReason | None
    cached_tokens: int
    queued_s: float
    logprobs: TokenLogprobs | None = None


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance is once it has loaded: see `engine.server.backend.Backend`. Sizes in tokens."""

    dtype: str
    device: str
    devices: tuple[str, ...]
    threads: int
    vocab_size: int
    max_len: int
    kv_tokens_planned: int
    kv_tokens: int
    load_s: float
    note: str | None = None


class Probed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The numbers that this instance computes in; the others of its fleet are to take the same."""

    dtype: str


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """It serves. `peer`: where its KV can be pulled from, None where it never moves."""

    info: Info
    peer: Peer | None


class Stepped(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A step is over. `emulated`: how long the model makes it, and how late it was; seconds of the wall."""

    events: list[Event]
    prefill_tokens: int
    decode_tokens: int
    seconds: float
    stats: CoreStats
    emulated: tuple[float, float] | None = None


class Rested(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """There is nothing to do. `books_wrong`: the idle self-check found the block accounting wrong."""

    stats: CoreStats
    books_wrong: bool = False


class Reserved(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Answer to Reserve; `cached_tokens` None: no room now."""

    request_id: str
    attempt: int
    cached_tokens: int | None


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Answer to Add and Reserve: the request can never run here."""

    request_id: str
    attempt: int
    why: str


class Pulled(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Answer to Pull: nothing writes any more. `result` is `ok` or one word why the copy does not count."""

    request_id: str
    attempt: int
    result: str
    bytes: int
    seconds: float
    transport: str


class Beat(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """It lives. Its step in flight has run for `busy_s`; since its start it has used a core for `cpu_s`."""

    busy_s: float
    cpu_s: float


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True, kw_only=True):
    """It ends, with this error; `exit_code` as everywhere: 2 input, 3 environment, 5 bug."""

    message: str
    where: str | None = None
    why: str | None = None
    hint: str | None = None
    exit_code: int = 5


Report = Probed | Ready | Stepped | Rested | Reserved | Refused | Pulled | Beat | Failed
