"""A ticket: one request between HTTP and the engine loop.

The engine's thread hands what happened to the event loop in batches; there, and only there, a ticket changes:
waiting -> admitted (its first step starts) -> ended. A ticket ends exactly once.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from engine.request import Request
from engine.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request ended (`stop`, `length`, `abort`, `error`) and the prompt tokens it found in the cache."""

    reason: str
    cached_tokens: int = 0


class Ticket:
    """One request and what has come of it.

    `arrived` is in seconds of the engine's clock. `logprobs` go with `tokens` where the request asks for them.
    `wake` is set at the end, and with `stream` at each token; requests of one answer share it.
    """

    __slots__ = (
        "_each_token",
        "admitted",
        "arrived",
        "cached_tokens",
        "ending",
        "logprobs",
        "request",
        "tokens",
        "wake",
    )

    def __init__(
        self, request: Request, arrived: float, *, stream: bool, wake: asyncio.Event | None = None
    ) -> None:
        self.request = request
        self.arrived = arrived
        self.admitted = False
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs | None] = []
        self.cached_tokens = 0
        self.ending: Ending | None = None
        self.wake = asyncio.Event() if wake is None else wake
        self._each_token = stream

    def push(self, token: int) -> None:
        """One more output token."""
        self.tokens.append(token)
        if self._each_token:
            self.wake.set()

    def end(self, ending: Ending) -> None:
        """The request is over."""
        self.ending = ending
        self.cached_tokens = ending.cached_tokens
        self.wake.set()

    async def ended(self) -> Ending:
        """Wait for the end."""
        while self.ending is None:
            await self.wake.wait()
            self.wake.clear()
        return self.ending
