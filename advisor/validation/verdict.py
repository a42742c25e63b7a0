"""The verdict of a validation: one word, and the sentence that says what it rests on.

What the requests say is `attained`'s. INVALID: a gate is red, so the measurement says nothing about the server.
REHEARSED: what would have been another word came from an emulated fleet, which proves plumbing, not advice.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.simulation.slo import Slo
from advisor.validation.attained import attained
from advisor.validation.classes import ClassScore
from advisor.validation.gates import Gate
from advisor.validation.metrics import Latencies, Score
from advisor.validation.result import Word
from advisor.validation.statistics import Evidence


def decide(
    score: Score,
    latencies: Latencies,
    slo: Slo,
    evidence: Evidence,
    gates: Sequence[Gate],
    *,
    classes: Sequence[ClassScore] = (),
    emulates: str | None = None,
) -> tuple[Word, str]:
    """The verdict, and its reason in one sentence with N and the misses. `emulates`: a GPU that is not here."""
    red = [gate for gate in gates if gate.colour == "red"]
    if red:
        return "INVALID", "; ".join(f"{gate.name}: {gate.text}" for gate in red)
    word, reason = attained(score, latencies, slo, evidence, classes)
    if emulates is None:
        return word, reason
    return (
        "REHEARSED",
        f"would have been {word} ({reason}); {emulates} was emulated: this proves plumbing, not advice",
    )
