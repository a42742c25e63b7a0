"""Flip points: at which value of something unknown the rule-made plan becomes another one.

Compares plans that differ in one assumption. Never judges which is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from advisor.advice.plan import Plan

ASSUMED_HITS = (0.3, 0.6)  # token hit rates to plan with where the log tells nothing; the plan itself takes 0


def flip_points(
    parameter: str, plan: Plan, assumed: Sequence[tuple[float, Plan]]
) -> tuple[dict[str, Any], ...]:
    """The assumed values, in their order, at which the plan changes, and what its changed settings become.

    Empty where one plan holds for all.
    """
    flips: list[dict[str, Any]] = []
    before = _settings(plan)
    for value, other in assumed:
        after = _settings(other)
        changed = {name: setting for name, setting in after.items() if setting != before.get(name)}
        if changed:
            flips.append({"parameter": parameter, "value": value, "becomes": changed})
        before = after
    return tuple(flips)


def _settings(plan: Plan) -> dict[str, Any]:
    """Verdict, devices, and the engine's settings by their path in engine.yaml."""
    candidate = plan.candidates[0]
    settings: dict[str, Any] = {"verdict": plan.verdict, "gpus_needed": plan.gpus_needed}
    for index, pool in enumerate(candidate.pools):
        settings |= {f"pools.{index}.{name}": value for name, value in pool.model_dump(mode="json").items()}
    return settings | {f"router.{name}": value for name, value in candidate.router.model_dump().items()}
