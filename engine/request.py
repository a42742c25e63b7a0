"""A request as the engine sees it: token ids, how to sample, and where it is in its life.

States: QUEUED -> PREFILL -> DECODE -> {FINISHED, ABORTED, FAILED}; a preempted request goes back to QUEUED
with its tokens kept. `TRANSITIONS` is the whole table.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How output tokens are chosen and when they end.

    `temperature` 0 is greedy. Otherwise temperature, then top-k (0: off), then top-p, then a Gumbel argmax
    with noise keyed by (seed, position): the same request gives the same tokens whatever the batch, the
    chunking or a preemption. `min_tokens` suppresses end-of-sequence until that many tokens are out;
    `ignore_eos` for good.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for; never changes.

    `namespace` keeps prefixes of different owners apart (`engine.kv.identity.namespace`). `page_keys[i]`
    names the i-th full page of prompt plus output for the prefix cache; without keys a page is named by its
    tokens. A simulator that knows which blocks are equal, but not their tokens, gives keys.
    """

    id: str
    prompt: Sequence[int] = field(repr=False)
    sampling: SamplingParams
    namespace: str = ""
    page_keys: Sequence[Hashable] | None = field(default=None, repr=False)


class Status(Enum):
    """Where a request is in its life."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Terminal: nothing happens to the request any more."""
        return not TRANSITIONS[self]


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.PREFILL, Status.ABORTED, Status.FAILED}),
    Status.PREFILL: frozenset({Status.DECODE, Status.QUEUED, Status.FINISHED, Status.ABORTED, Status.FAILED}),
    Status.DECODE: frozenset({Status.QUEUED, Status.FINISHED, Status.ABORTED, Status.FAILED}),
    Status.FINISHED: frozenset(),
    Status.ABORTED: frozenset(),
    Status.FAILED: frozenset(),
}
