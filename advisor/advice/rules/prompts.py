"""Prompt layout: content that repeats but does not lead the prompt cannot be reused."""

from __future__ import annotations

from advisor.advice.finding import Finding
from advisor.advice.rules.rule import Rule
from advisor.workload.model import PromptLayout

MISPLACED = 0.10
WORTH_MOVING = {"tokens": 64, "bytes": 256}

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


FIXED_BEHIND = Rule(
    "ADV502",
    "First requests share more behind their first difference than before it: move that to the front",
    "shared behind the first difference >= 64 tokens, more than leads, and a better hit rate in front",
    ("SGLang, section 3: reuse needs equal leading tokens", "ours: 64, on a sample with the text at hand"),
)


def fixed_behind(layout: PromptLayout) -> Finding | None:
    """Instructions after the task, or a date, name or id before them: every session computes them again."""
    gain = layout.hit_rate_reordered - layout.hit_rate
    if layout.shared_behind < max(WORTH_MOVING[layout.unit], layout.leading + 1) or gain <= 0:
        return None
    return FIXED_BEHIND.found(
        "do",
        {
            f"leading_{layout.unit}": layout.leading,
            f"trailing_{layout.unit}": layout.trailing,
            f"shared_behind_{layout.unit}": layout.shared_behind,
            "hit_rate": layout.hit_rate,
            "hit_rate_reordered": layout.hit_rate_reordered,
            "first_requests": layout.first_requests,
        },
        saving=f"{gain:.1%} of prompt tokens; {layout.shared_behind:,} {layout.unit} of a first request",
        next="compare the two examples: put what is fixed before what differs (--show-text prints them)",
        examples=layout.examples,
    )
