"""A Step is one forward pass: what the scheduler hands to an executor, and what comes back.

Everything here is plain data (small ints), so that a Step can be logged, compared, sent to another rank or
run by a model of the hardware. Block 0 of every KV pool is the trash block: it belongs to no request, padding
writes go there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from engine.request import SamplingParams

PREVIOUS = -1
"""Stands for a token that nobody knows yet; see `StepRow`."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One request's share of a step.

    `tokens` are the query tokens at positions `start .. start + len(tokens) - 1`; the KV of every earlier
    position already sits in the blocks. `blocks` covers `start + len(tokens)` positions: position p lives in
    block `blocks[p // block_size]` at offset `p % block_size`. A decode row has one token. `sample` says that
    the last query token's logits yield a new token, whose position is `start + len(tokens)`. `output_index`
    counts the output tokens before that one: a sampler must not yield end-of-sequence while it is under
    `sampling.min_tokens`. The token of a decode may be PREVIOUS: the one that the step before, still in flight,
    samples for the same request.
    """

    request_id: str
    tokens: tuple[int, ...] = field(repr=False)
    start: int
    blocks: tuple[int, ...]
    sample: bool
    prefill: bool
    sampling: SamplingParams = field(repr=False)
    output_index: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over `rows`, decode rows first. `id` counts up by one per step of an engine core."""

    id: int
    rows: tuple[StepRow, ...]

    @property
    def query_tokens(self) -> int:
        """Tokens computed in this step, prefill and decode."""
        return sum(len(row.tokens) for row in self.rows)


class TokenLogprobs(NamedTuple):
    """A sampled token's natural-log probability, and `(token, logprob)` of the likeliest ones, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step produced: per row of the Step, the sampled token id, or None where `sample` was false.

    `logprobs`: likewise, None where a row did not ask; None altogether where none did.
    """

    step_id: int
    tokens: tuple[int | None, ...]
    logprobs: tuple[TokenLogprobs | None, ...] | None = None


class Handle(Protocol):
    """A step in flight."""

    def result(self) -> StepResult:
        """Block until the step is done. Raises whatever the executor raised."""
        ...


class Executor(Protocol):
    """Who carries a Step out: torch on a device, or a model of one."""

    def submit(self, step: Step) -> Handle:
        """Start `step`; steps run in the order submitted."""
        ...
