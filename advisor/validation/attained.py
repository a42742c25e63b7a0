"""The word for a run, and its reason: one sentence with N, the misses, and what they would have to be.

PASS and FAIL are proven by the misses, LIKELY PASS and LIKELY FAIL are measured and prove nothing. With a TBT
target the pooled P99 gap must keep it too; that is a point estimate, so alone it makes a run LIKELY FAIL.
Classes with targets of their own must each reach them: the word is that of the worst.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.simulation.slo import Slo
from advisor.validation.classes import ClassScore
from advisor.validation.metrics import Latencies, Score
from advisor.validation.statistics import Attained, Evidence, requests_needed, word_of

BEST_FIRST: tuple[Attained, ...] = ("PASS", "LIKELY PASS", "LIKELY FAIL", "FAIL")


def attained(
    score: Score, latencies: Latencies, slo: Slo, evidence: Evidence, classes: Sequence[ClassScore] = ()
) -> tuple[Attained, str]:
    """The word and its reason. `score` and `evidence` are of all requests, each by the targets of its class."""
    reached = f"{share(score.attainment)} of {score.requests} requests kept the targets, {proof(evidence)}"
    found = [(word_of(evidence), reached)]
    gaps = latencies.tbt
    if slo.tbt_s is not None and gaps is not None and gaps.p99 > slo.tbt_s:
        wanted = f"the P99 gap is {gaps.p99 * 1e3:.0f} ms; {slo.tbt_s * 1e3:.0f} ms wanted"
        found.append(("LIKELY FAIL", f"{reached}, but {wanted}"))
    for one in classes:
        if one.own_targets and one.evidence is not None:
            kept = (
                f"{share(one.score.attainment)} of {one.score.requests} requests of {one.name} kept its targets"
            )
            found.append((word_of(one.evidence), f"{kept}, {proof(one.evidence)}"))
    return max(found, key=lambda each: BEST_FIRST.index(each[0]))


def proof(evidence: Evidence) -> str:
    """What the misses mean: `7 missed; 90% wanted, which up to 21 misses prove at 95% confidence`."""
    wanted = f"{evidence.misses} missed; {share(evidence.target)} wanted"
    word, sure = word_of(evidence), f"{evidence.confidence:.0%} confidence"
    if word == "PASS":
        return f"{wanted}, which up to {evidence.certified_up_to} misses prove at {sure}"
    if word == "FAIL":
        return f"{wanted}, which {evidence.refuted_from} misses or more refute at {sure}"
    if word == "LIKELY FAIL":
        most = evidence.refuted_from
        return (
            f"{wanted}, which it takes {most} misses to refute" if most else f"{wanted}; too few to refute it"
        )
    if evidence.certified_up_to is not None:
        return f"{wanted}, which it takes at most {evidence.certified_up_to} misses to prove"
    if evidence.target >= 1:
        return f"{wanted}, which no number of requests proves"
    least = requests_needed(0, evidence.target, evidence.confidence)
    return f"{wanted}, which it takes {least} requests at least to prove"


def share(value: float) -> str:
    """`93.4%`; no `.0`, and as many digits as it takes to tell it from 100 %."""
    for digits in (1, 2, 3):
        text = f"{value:.{digits}%}"
        if value >= 1 or not text.startswith("100"):
            break
    return text.replace(".0%", "%") if digits == 1 else text
