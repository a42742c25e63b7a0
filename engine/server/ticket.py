"""A ticket: one request between HTTP and the engine loop.

The engine's thread hands what happened to the event loop in batches; there, and only there, a ticket changes:
waiting -> admitted (its first step starts) -> ended. A ticket ends exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from engine.request import Request


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request ended (`stop`, `length`, `abort`, `error`) and the prompt tokens it found in the cache."""

    reason: str
    cached_tokens: int = 0


class Ticket:
    """One request and what has come of it. `arrived` is in seconds of the engine's clock."""

    __slots__ = ("_each_token", "_wake", "admitted", "arrived", "ending", "request", "tokens")

    def __init__(self, request: Request, arrived: float, *, stream: bool) -> None:
        self.request = request
        self.arrived = arrived
        self.admitted = False
        self.tokens: list[int] = []
        self.ending: Ending | None = None
        self._wake = asyncio.Event()
        self._each_token = stream

    def push(self, token: int) -> None:
        """One more output token."""
        self.tokens.append(token)
        if self._each_token:
            self._wake.set()

    def end(self, ending: Ending) -> None:
        """The request is over."""
        self.ending = ending
        self._wake.set()

    async def ended(self) -> Ending:
        """Wait for the end."""
        while self.ending is None:
            await self._wake.wait()
            self._wake.clear()
        return self.ending

    async def batches(self) -> AsyncIterator[list[int]]:
        """The output tokens as they come, several at once where the reader was slow; ends with the request."""
        sent = 0
        while True:
            if sent < len(self.tokens):
                fresh = self.tokens[sent:]
                sent += len(fresh)
                yield fresh
            elif self.ending is not None:
                return
            else:
                await self._wake.wait()
                self._wake.clear()
