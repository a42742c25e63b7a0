"""A ticket: one request between HTTP and the fleet. It lives in the event loop, and ends exactly once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from engine.request import Request
from engine.step import TokenLogprobs
from engine.transfer.layout import Peer


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request ended, and the prompt tokens it found in the cache.

    `reason`: `stop`, `length`, `abort`, `error`, or `unavailable` with the fleet's reason in `why`.
    """

    reason: str
    cached_tokens: int = 0
    why: str | None = None


class Origin(NamedTuple):
    """What the call says of where a request is from: its path, and the client's name of a session."""

    route: str | None = None
    session: str | None = None


class Ticket:
    """One request and what has come of it.

    `arrived` and `first_token_at` (None: none was computed here yet) are in seconds of the front's clock.
    `attempt` is the fleet's whose tokens count; `half`: it is the prefill of a split. `logprobs` go with
    `tokens` where the request asks for them. `wake` is set at the end, and with `stream` at each token;
    requests of one answer share it.
    """

    __slots__ = (
        "_each_token",
        "arrived",
        "attempt",
        "cached_tokens",
        "ending",
        "first_token_at",
        "half",
        "kept_at",
        "last_token_at",
        "logprobs",
        "origin",
        "request",
        "spoke",
        "tokens",
        "wake",
    )

    def __init__(
        self,
        request: Request,
        arrived: float,
        *,
        stream: bool,
        wake: asyncio.Event | None = None,
        origin: Origin = Origin(),  # noqa: B008 - immutable
    ) -> None:
        self.request = request
        self.arrived = arrived
        self.origin = origin
        self.half = False
        self.spoke = False  # this attempt has given a token
        self.tokens: list[int] = []
        self.first_token_at: float | None = None
        self.last_token_at = arrived
        self.logprobs: list[TokenLogprobs | None] = []
        self.cached_tokens = 0
        self.ending: Ending | None = None
        self.kept_at: Peer | None = None  # who keeps its KV for another fleet
        self.wake = asyncio.Event() if wake is None else wake
        self.attempt = 0
        self._each_token = stream

    def begin(self, attempt: int, *, half: bool = False) -> None:
        """From now on this attempt may speak, and no earlier one."""
        self.attempt, self.half, self.spoke = attempt, half, False

    def push(self, token: int) -> None:
        """One more output token."""
        self.tokens.append(token)
        if self._each_token:
            self.wake.set()

    def end(self, ending: Ending) -> None:
        """The request is over."""
        self.ending = ending
        self.wake.set()

    async def ended(self) -> Ending:
        """Wait for the end."""
        while self.ending is None:
            await self.wake.wait()
            self.wake.clear()
        return self.ending
