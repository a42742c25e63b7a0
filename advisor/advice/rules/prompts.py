"""Prompt layout: content that repeats but does not lead the prompt cannot be reused."""

from __future__ import annotations

from advisor.advice.finding import Finding
from advisor.advice.rules.rule import Rule

MISPLACED = 0.10

STABLE_FIRST = Rule(
    "ADV501",
    "Put stable content first, volatile content last",
    "share of prompt tokens repeated at any position - token hit rate > 0.10",
    ("SGLang, section 3: reuse needs equal leading tokens", "ours: 0.10"),
)


def stable_first(any_position_share: float, hit_unlimited: float) -> Finding | None:
    """Repeated content that sits behind something volatile (a date, an id) is recomputed every time."""
    misplaced = any_position_share - hit_unlimited
    if misplaced <= MISPLACED:
        return None
    return STABLE_FIRST.found(
        "do",
        {"any_position_share": any_position_share, "hit_rate_unlimited": hit_unlimited},
        saving=f"up to {misplaced:.1%} of prompt tokens",
        next="move dates, names and ids behind the instructions and tool descriptions",
    )
