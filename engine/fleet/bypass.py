"""Conditional bypass: when the decode side of a split prefills a request itself (rule 8b; Dynamo, PPD)."""

from __future__ import annotations

from collections.abc import Iterable

from engine.fleet.roster import Instance

UNCACHED_TOKENS = 2048  # Dynamo: only below this many uncached tokens ...
UNCACHED_SHARE = 0.7  # ... and below this share of the prompt
FULL_STEPS = 8  # ours: a prefill instance with this many steps of prompt tokens to compute is full


def stays_on_decode_side(prompt_tokens: int, cached_tokens: int) -> bool:
    """Few enough of the prompt's tokens are uncached on the decode side, absolutely and relatively."""
    uncached = prompt_tokens - cached_tokens
    return uncached < UNCACHED_TOKENS and uncached < UNCACHED_SHARE * prompt_tokens


def queue_is_full(prefill: Iterable[Instance]) -> bool:
    """Every prefill instance has more work than it should queue."""
    return all(one.tokens >= FULL_STEPS * one.pool.token_budget for one in prefill)
