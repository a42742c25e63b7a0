"""A request in the scheduler's hands: its tokens so far, its KV blocks, and where it is in its life.

The states are those of `engine.request.TRANSITIONS`. There are no phases beyond them: `computed` positions
chase `tokens`, one chunk or one token a step, and a preempted request starts the chase again with its tokens
kept.
"""

from __future__ import annotations

from engine.invariants import require
from engine.kv.cache import BlockTable
from engine.kv.identity import page_keys
from engine.request import TRANSITIONS, Request, Status


class Sequence:
    """Mutable state of one request.

    `tokens` is prompt plus output; the KV of its first `computed` is in the blocks. `admitted_s` and
    `cached_tokens`, the prefix hit, are of the first admission: recomputing after a preemption is never a
    hit. `overtaken` counts requests admitted past this one because its blocks did not fit.
    """

    __slots__ = (
        "admitted_s",
        "arrival_s",
        "cached_tokens",
        "computed",
        "overtaken",
        "preemptions",
        "request",
        "status",
        "table",
        "tokens",
    )

    def __init__(self, request: Request, arrival_s: float, block_size: int) -> None:
        self.request = request
        self.arrival_s = arrival_s
        self.tokens = list(request.prompt)
        self.table = BlockTable(request.namespace, page_keys(request, self.tokens, block_size))
        self.status = Status.QUEUED
        self.computed = 0
        self.admitted_s: float | None = None
        self.cached_tokens = 0
        self.overtaken = 0
        self.preemptions = 0

    @property
    def output_tokens(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """Tokens whose KV is not computed yet; at least 1 until the request ends."""
        return len(self.tokens) - self.computed

    @property
    def lifetime_positions(self) -> int:
        """KV positions that this request can ever need: the last output token is never computed."""
        return len(self.request.prompt) + self.request.sampling.max_tokens - 1

    def move(self, status: Status) -> None:
        """Enter `status`; InvariantError if the table of transitions has no such move."""
        require(status in TRANSITIONS[self.status], f"no way from {self.status} to {status}")
        self.status = status
