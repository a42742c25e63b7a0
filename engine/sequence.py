"""A request in the scheduler's hands: its tokens so far, its KV blocks, and where it is in its life.

The states are those of `engine.request.TRANSITIONS`. There are no phases beyond them: `computed` positions
chase `length`, one chunk or one token a step, and a preempted request starts the chase again with its tokens
kept. All decodes of an instance step together, so a decoding sequence counts by its group's ticks
(`engine.decodes`): a step costs no work a sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.invariants import InvariantError
from engine.kv.cache import BlockTable
from engine.kv.identity import own_from, runs_of
from engine.request import Request, Status

if TYPE_CHECKING:
    from engine.decodes import DecodeGroup


class Sequence:
    """Mutable state of one request.

    `tokens` is prompt plus output where the content is known; the KV of the first `computed` of its `length`
    tokens is in the blocks, and steps that compute the first `scheduled` have been handed out. `admitted_s` and
    `cached_tokens`, the prefix hit, are of the first admission: recomputing after a preemption is never a hit.
    `overtaken` counts requests admitted past this one because its blocks did not fit. `order` counts
    admissions.
    """

    __slots__ = (
        "_computed",
        "_length",
        "admitted_s",
        "arrival_s",
        "cached_tokens",
        "ends_at",
        "group",
        "grows_at",
        "in_flight",
        "joined_at",
        "order",
        "overtaken",
        "preemptions",
        "prompt_length",
        "request",
        "scheduled",
        "status",
        "table",
        "tokens",
    )

    def __init__(self, request: Request, arrival_s: float, block_size: int) -> None:
        self.request = request
        self.arrival_s = arrival_s
        self.tokens = list(request.prompt) if request.runs is None else []
        self.table = BlockTable(request.namespace, runs_of(request, self.tokens, block_size), own_from(request))
        self.status = Status.QUEUED
        self.prompt_length = len(request.prompt)
        self._length = self.prompt_length
        self._computed = 0
        self.scheduled = 0
        self.in_flight = 0  # steps
        self.admitted_s: float | None = None
        self.cached_tokens = 0
        self.overtaken = 0
        self.preemptions = 0
        self.order = 0
        self.group: DecodeGroup | None = None
        self.joined_at = self.ends_at = self.grows_at = 0  # ticks of the group

    @property
    def known(self) -> bool:
        """Whether the content of the tokens is known."""
        return self.request.runs is None

    @property
    def computed(self) -> int:
        """Tokens whose KV is computed, in steps that are complete."""
        return self._computed if self.group is None else self._computed + self.group.tick - self.joined_at

    @property
    def length(self) -> int:
        """Tokens so far, prompt and output."""
        return self._length if self.group is None else self._length + self.group.tick - self.joined_at

    @property
    def busy(self) -> bool:
        """Whether a step in flight computes some of it."""
        return self.in_flight > 0 or (self.group is not None and self.group.in_flight > 0)

    @property
    def output_tokens(self) -> int:
        """Output tokens so far."""
        return self.length - self.prompt_length

    @property
    def lifetime_positions(self) -> int:
        """KV positions that this request can ever need: the last output token is never computed."""
        return self.prompt_length + self.request.sampling.max_tokens - 1

    def restart(self, computed: int) -> None:
        """The chase begins, behind `computed` tokens whose KV is there."""
        self._computed = self.scheduled = computed

    def advance(self, tokens: int) -> bool:
        """A step that computed `tokens` of those that were there before it is complete. Whether all are now."""
        self._computed += tokens
        return self._computed == self._length

    def append(self, token: int | None) -> None:
        """One more token, outside of a group."""
        self._length += 1
        self.keep(token)

    def keep(self, token: int | None) -> None:
        """Remember what a token is, if that is known."""
        if token is not None and self.known:
            self.tokens.append(token)

    def leave(self) -> None:
        """Out of its group, with what it has."""
        computed, length = self.computed, self.length
        self.group = None
        self._computed, self._length = computed, length

    def move(self, status: Status) -> None:
        """Enter `status`; InvariantError if the table of transitions has no such move."""
        if status not in self.status.after:
            raise InvariantError(f"no way from {self.status} to {status}")
        self.status = status
