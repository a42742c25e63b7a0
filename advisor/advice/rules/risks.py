"""Risks of a plan once it runs: single points of failure, and traffic that moves away from the log."""

from __future__ import annotations

from advisor.advice.finding import Finding
from advisor.advice.rules.rule import Rule

DRIFT = 0.25

LONE_SIDE = Rule(
    "ADV801",
    "A split of this size has one instance on a side: its loss stops everything",
    "split candidate with fewer than 4 copies of the model",
    ("DistServe, section 4.3: one decode failure can take down every prefill instance mapped to it",),
)
REPLAN = Rule(
    "ADV802",
    "Plan again when the traffic moves",
    "always, with a plan: mean U, O, R or h off by more than 25 % over an hour, or attainment missed twice",
    ("DistServe, section 4.3: replanning on a significant shift", "ours: 25 %, an hour, two windows"),
)


def lone_side(copies: int) -> Finding | None:
    """Rule 10: with 2 or 3 copies, one phase has a single instance."""
    if copies >= 4:
        return None
    return LONE_SIDE.found("check", {"copies": copies}, next="router on_partner_loss: colocate in engine.yaml")


def replan_when(uncached_mean: float, output_mean: float, rate_rps: float, hit: float | None) -> Finding:
    """Rule 12: the values to watch; 25 % either way."""
    return REPLAN.found(
        "check",
        {
            "uncached_mean": uncached_mean,
            "output_mean": output_mean,
            "rate_rps": rate_rps,
            "hit_rate_tokens": hit,
            "tolerance": DRIFT,
        },
        next="advise analyze NEW_LOG --compare-to advise-out",
    )
