"""A request as the engine sees it: token ids, how to sample, and where it is in its life.

States: QUEUED -> PREFILL -> DECODE -> {FINISHED, ABORTED, FAILED}; a preempted request goes back to QUEUED with
its tokens kept. In a split the decode side goes QUEUED -> PULLING -> DECODE. `TRANSITIONS` is the whole table.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How output tokens are chosen and when they end.

    `temperature` 0 is greedy. Otherwise temperature, then top-k (0: off), then top-p, then a Gumbel argmax
    with noise keyed by (seed, position): the same request gives the same tokens whatever the batch, the
    chunking or a preemption. `min_tokens` suppresses end-of-sequence until that many tokens are out;
    `ignore_eos` for good. `logprobs`: with each token its logprob and those of the so many likeliest.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None


class Run(NamedTuple):
    """Pages `start` to `stop` of a request. Others have them under the same key, all or the leading ones."""

    key: Hashable
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for; never changes.

    `namespace` keeps prefixes of different owners apart (`engine.kv.identity.namespace`). `runs` name the
    leading full pages of prompt plus output for the prefix cache, without a gap; without them a page is named
    by its tokens. A simulator that knows which blocks are equal, but not their tokens, gives runs, and then the
    content of `prompt` does not matter. `keep_kv`: at its end the blocks stay until `EngineCore.release_kv`,
    for another instance to pull.
    """

    id: str
    prompt: Sequence[int] = field(repr=False)
    sampling: SamplingParams
    namespace: str = ""
    runs: Sequence[Run] | None = field(default=None, repr=False)
    keep_kv: bool = False


class Status(Enum):
    """Where a request is in its life. `after`: the states that may follow; `ended`: there are none."""

    QUEUED = "queued"
    PREFILL = "prefill"
    PULLING = "pulling"
    DECODE = "decode"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"

    def __init__(self, _: str) -> None:
        self.after: tuple[Status, ...] = ()
        self.ended = True


TRANSITIONS: dict[Status, tuple[Status, ...]] = {
    Status.QUEUED: (Status.PREFILL, Status.PULLING, Status.ABORTED, Status.FAILED),
    Status.PULLING: (Status.DECODE, Status.ABORTED, Status.FAILED),
    Status.PREFILL: (Status.DECODE, Status.QUEUED, Status.FINISHED, Status.ABORTED, Status.FAILED),
    Status.DECODE: (Status.QUEUED, Status.FINISHED, Status.ABORTED, Status.FAILED),
}
for _status, _after in TRANSITIONS.items():
    _status.after, _status.ended = _after, False
