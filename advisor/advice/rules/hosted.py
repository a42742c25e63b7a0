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


def mostly_idle(
    utilisation: float,
    no_operations: bool,
    *,
    own_usd: float | None = None,
    hosted_usd: float | None = None,
    hosted: str | None = None,
) -> Finding | None:
    """Rule 11. `no_operations`: nobody would run it, which turns the look into an advice.

    `own_usd` is the rent of the GPUs that the plan needs, `hosted_usd` what the API that `hosted` names, with
    its date, asks for the same traffic; a month. None: not known.
    """
    if utilisation >= IDLE:
        return None
    evidence: dict[str, float | int | str | bool | None] = {
        "utilisation": utilisation,
        "no_operations": no_operations,
        "own_usd_per_month": own_usd,
        "hosted_usd_per_month": hosted_usd,
        "hosted": hosted,
    }
    saving = None
    if hosted_usd is not None:
        own = "" if own_usd is None else f", GPUs of one's own {own_usd:,.0f} USD"
        saving = f"{hosted} asks {hosted_usd:,.0f} USD a month{own}"
    return MOSTLY_IDLE.found(
        "do" if no_operations else "check",
        evidence,
        saving=saving,
        next="compare with a hosted API's price; keep stable prompt content first, its cache needs that too",
    )
