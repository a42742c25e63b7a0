"""One request in flight: where it is, and how it goes on elsewhere.

    WAITING -> SERVING -> end                                            both phases on one instance
    WAITING -> PREFILLING -> QUEUED -> RESERVING -> PULLING -> DECODING -> end       a split
    QUEUED -> RESERVING -> PULLING -> DECODING -> end          its prefill was another fleet's
    RESERVING -> QUEUED           the decode side has no room now
    QUEUED, RESERVING, PULLING -> QUEUED     another decode instance: this one died, or a copy failed
    PULLING -> VOID -> WAITING, end          what is being copied is worthless, but the copy still writes
    any -> WAITING                its instance died; it goes on from the tokens produced

| phase | `source` | `target` |
|---|---|---|
| WAITING | - | - |
| SERVING, DECODING | - | runs it |
| PREFILLING | runs it | - |
| QUEUED | holds its KV, leased | will be asked for room |
| RESERVING, PULLING | holds its KV, leased | is asked for room, has reserved |
| VOID | - | has reserved, is written to |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from engine.fleet.roster import Instance
from engine.invariants import require
from engine.request import Request


class Phase(Enum):
    """Where a request is."""

    WAITING = "waiting"
    SERVING = "serving"
    PREFILLING = "prefilling"
    QUEUED = "queued"
    RESERVING = "reserving"
    PULLING = "pulling"
    VOID = "void"
    DECODING = "decoding"


LEASED = (Phase.QUEUED, Phase.RESERVING, Phase.PULLING)


class Journey:
    """A request from submission to its end, and after that until no copy writes for it.

    `request` is what the instances see now: the client's, continued by the tokens `produced` before this
    attempt. `token` is the first one of this attempt; until then `uncached` prompt tokens load its instance.
    """

    __slots__ = (
        "attempt",
        "deaths",
        "died_at",
        "ended",
        "failed_pulls",
        "original",
        "phase",
        "produced",
        "request",
        "source",
        "started",
        "target",
        "token",
        "uncached",
    )

    def __init__(self, request: Request) -> None:
        self.original = self.request = request
        self.phase = Phase.WAITING
        self.source: Instance | None = None
        self.target: Instance | None = None
        self.attempt = 0
        self.uncached = 0
        self.token = -1
        self.produced: tuple[int, ...] = ()
        self.failed_pulls = 0
        self.deaths = 0  # of instances that were computing it
        self.died_at = 0  # how many instances of the fleet had died then
        self.started = False  # its client has a token
        self.ended = False  # for its client; only a copy still writes

    def continue_from(self, produced: Sequence[int]) -> None:
        """The next attempt starts behind these output tokens of the original request."""
        self.produced = tuple(produced)
        self.request = continued(self.original, self.produced)


def continued(request: Request, produced: tuple[int, ...]) -> Request:
    """The rest of a request: its prompt and `produced`, at least one token short of `max_tokens`.

    Sampling noise is keyed by position and runs cover the output too, so both carry over as they are.
    """
    if not produced:
        return request
    sampling = request.sampling
    require(len(produced) < sampling.max_tokens, "a request that produced all its tokens is in flight")
    return replace(
        request,
        prompt=(*request.prompt, *produced),
        sampling=replace(
            sampling,
            max_tokens=sampling.max_tokens - len(produced),
            min_tokens=max(0, sampling.min_tokens - len(produced)),
        ),
    )
