"""Hosted APIs: when even the smallest deployment of one's own would stand idle."""

from __future__ import annotations

from advisor.advice.finding import Finding
from advisor.advice.rules.rule import Rule

IDLE = 0.10

MOSTLY_IDLE = Rule(
    "ADV601",
    "The smallest deployment would be mostly idle: consider a hosted API",
    "mean utilisation of one instance < 10 %, on GPUs",
    ("ours: 0.10",),
)


def mostly_idle(utilisation: float, no_operations: bool) -> Finding | None:
    """Rule 11. `no_operations`: nobody would run it, which turns the look into an advice."""
    if utilisation >= IDLE:
        return None
    return MOSTLY_IDLE.found(
        "do" if no_operations else "check",
        {"utilisation": utilisation, "no_operations": no_operations},
        next="compare with a hosted API's price; keep stable prompt content first, its cache needs that too",
    )
