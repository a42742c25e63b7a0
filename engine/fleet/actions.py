"""What a Fleet asks of its driver. Plain data; instances are named by their index in the fleet.

The source of a Pull or a Release may be `engine.fleet.roster.FOREIGN`: the instance of another fleet that the
driver knows by the request.

The driver carries the actions for one instance out in the order given. `attempt` is unique within the fleet;
the driver hands it back with the answer, and answers to an attempt that is over are ignored. Release and
Abort may name a request that the instance does not know, or no longer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from engine.request import Request


class Serve(NamedTuple):
    """Run both phases of `request` on `instance`. Answers: `prefilled` at the first token, `finished`."""

    instance: int
    request: Request
    attempt: int


class Prefill(NamedTuple):
    """Run `prefill_half(request)` on `instance`. Answer: `prefilled`; `finished` at an end of sequence."""

    instance: int
    request: Request
    attempt: int


class Reserve(NamedTuple):
    """Reserve blocks for the request's whole life. Answer: `reserved`; `finished` if they can never fit."""

    instance: int
    request: Request
    attempt: int


class Pull(NamedTuple):
    """Copy the KV of positions `start` to `stop` from `source`, as it was started for the `epoch`th time.

    Answer: `pulled`, once all of it is there, or `pull_failed`, once nothing writes to `target` any more.
    """

    source: int
    target: int
    request_id: str
    attempt: int
    epoch: int
    start: int
    stop: int


class StartDecode(NamedTuple):
    """The KV on `instance` is good; decode after `token`, the first output token. Answer: `finished`."""

    instance: int
    request_id: str
    attempt: int
    token: int


class Release(NamedTuple):
    """Free the KV that `instance` kept after its prefill."""

    instance: int
    request_id: str


class Abort(NamedTuple):
    """End the request on `instance` in whatever state and free its blocks. No copy is writing to them."""

    instance: int
    request_id: str


class Reject(NamedTuple):
    """End the request for its client with an error. `reason` is a plain phrase."""

    request_id: str
    reason: str


Action = Serve | Prefill | Reserve | Pull | StartDecode | Release | Abort | Reject


def prefill_half(request: Request) -> Request:
    """What the prefill side of a split runs: one token, and the KV stays."""
    return replace(request, sampling=replace(request.sampling, max_tokens=1), keep_kv=True)
