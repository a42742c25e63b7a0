"""In which order waiting requests are considered for admission. docs/scheduling.md bounds the waiting.

A policy only orders: whether a request fits is the scheduler's decision. It sees the queue first come first,
with preempted requests in front, and leaves those there: their clients have seen tokens already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Literal

from engine.sequence import Sequence

AGING_TOKENS_PER_S = 500.0  # ours, docs/scheduling.md: a prefix of 4,000 cached tokens may overtake for 8 s
FCFS_ABOVE_WAITING = 128  # SGLang drops prefix order above this queue length

CachedTokens = Callable[[Sequence], int]
Policy = Callable[[Collection[Sequence], CachedTokens], Iterable[Sequence]]


def fcfs(waiting: Collection[Sequence], _cached: CachedTokens) -> Iterable[Sequence]:
    """First come, first served."""
    return waiting


def prefix_first(waiting: Collection[Sequence], cached: CachedTokens) -> Iterable[Sequence]:
    """Longest cached prefix first, with aging: highest cached tokens + waited seconds x AGING_TOKENS_PER_S.

    Longest-prefix-first approximates SGLang's optimal order. The aging is ours: a
    request with h cached tokens overtakes only those that came less than h / AGING_TOKENS_PER_S before it.
    """
    if len(waiting) > FCFS_ABOVE_WAITING:
        return waiting

    def rank(seq: Sequence) -> tuple[bool, float]:
        # All age at one rate, so the clock cancels out of the comparison.
        return not seq.preemptions, seq.arrival_s * AGING_TOKENS_PER_S - cached(seq)

    return sorted(waiting, key=rank)


def policy_for(name: Literal["fcfs", "prefix_first"]) -> Policy:
    """The policy that a pool's `queue_policy` names."""
    return prefix_first if name == "prefix_first" else fcfs
