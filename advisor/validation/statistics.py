"""What a count of misses proves: exact binomial statements about a share, and the interval of a run of blocks.

Owns the budgets of misses, the words PASS, LIKELY PASS, LIKELY FAIL and FAIL for one share, and the test that
can end a replay early. The exact statements (Clopper and Pearson 1934) take requests as independent; those of
one run are not, since they queue behind one another, so the interval from blocks of time stands beside them.
Never reads a clock, never sends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from scipy.special import bdtr, bdtrc, betaincinv

from advisor.simulation.bootstrap import LEAST_BLOCKS, Interval, interval_of_difference
from advisor.simulation.slo import Slo
from advisor.validation.metrics import miss
from advisor.validation.record import Record
from advisor.workload.model import Report

Attained = Literal["PASS", "LIKELY PASS", "LIKELY FAIL", "FAIL"]
CONFIDENCE = 0.95
BLOCK_S = (5.0, 10.0)  # shortest and longest block of time, seconds


class Evidence(Report):
    """What the misses of one run say about the true attainment."""

    requests: int = Field(description="scheduled requests, N; with `of` gaps, gaps between tokens")
    misses: int
    of: Literal["requests", "gaps"] = Field("requests", description="what is counted")
    target: float = Field(description="attainment asked for")
    confidence: float = Field(0.95, description="of each one-sided statement")
    low: float = Field(description="exact one-sided lower bound of the attainment (Clopper-Pearson)")
    high: float = Field(description="exact one-sided upper bound")
    certified_up_to: int | None = Field(
        description="most misses of N that certify the target; null: N is too small for any"
    )
    refuted_from: int | None = Field(description="fewest misses of N that refute it; null: N is too small")
    block_low: float | None = Field(
        description="of the interval from blocks of time, since requests of one run depend on each other; "
        "null: the run is too short for it, or all its requests fared alike"
    )
    block_high: float | None
    block_s: float | None = Field(description="length of a block, seconds")

    @property
    def share(self) -> float:
        """Measured share that kept the targets; 1 of nothing."""
        return (self.requests - self.misses) / self.requests if self.requests else 1.0


def evidence(
    good: int,
    requests: int,
    target: float,
    confidence: float = CONFIDENCE,
    blocks: Interval | None = None,
    of: Literal["requests", "gaps"] = "requests",
) -> Evidence:
    """What `good` of `requests` says about a share that should reach `target`."""
    misses, doubt = requests - good, 1 - confidence
    known = blocks is not None and blocks.low is not None
    return Evidence(
        requests=requests,
        misses=misses,
        of=of,
        target=target,
        confidence=confidence,
        low=float(betaincinv(good, misses + 1, doubt)) if good else 0.0,
        high=float(betaincinv(good + 1, misses, confidence)) if misses else 1.0,
        certified_up_to=certified_up_to(requests, target, confidence),
        refuted_from=refuted_from(requests, target, confidence),
        block_low=blocks.low if blocks else None,
        block_high=blocks.high if blocks else None,
        block_s=blocks.block_s if blocks and known else None,
    )


def evidence_of(
    records: Sequence[Record],
    slo: Slo,
    of_class: Mapping[str, Slo] | None = None,
    *,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Evidence:
    """What the records of one run say, blocks of time and all. `seed` draws the blocks."""
    own = of_class or {}
    kept = [miss(record, own.get(record.slo_class or "", slo)) is None for record in records]
    blocks = block_interval([record.t_sched for record in records], kept, seed)
    return evidence(sum(kept), len(kept), slo.attainment, confidence, blocks)


def certified_up_to(requests: int, target: float, confidence: float = CONFIDENCE) -> int | None:
    """Most misses of so many requests that prove a share of at least `target`; None where not even 0 do.

    The largest m with P(at most m misses | share = target) <= 1 - confidence.
    """
    m = bisect_right(range(requests + 1), 1 - confidence, key=lambda m: float(bdtr(m, requests, 1 - target)))
    return m - 1 if m > 0 else None


def refuted_from(requests: int, target: float, confidence: float = CONFIDENCE) -> int | None:
    """Fewest misses of so many requests that prove a share below `target`; None where not even all do.

    The smallest m with P(at least m misses | share = target) <= 1 - confidence.
    """

    def less_likely(m: int) -> float:
        return -float(bdtrc(m - 1, requests, 1 - target)) if m else -1.0

    m = bisect_left(range(requests + 1), confidence - 1, key=less_likely)
    return m if m <= requests else None


def requests_needed(misses: int, target: float, confidence: float = CONFIDENCE) -> int:
    """Fewest requests of which so many misses still prove `target`. Raises ValueError for a target of 1."""
    if not 0 < target < 1:
        raise ValueError(f"no number of requests proves a share of {target:g}")
    most = misses + 1
    while bdtr(misses, most, 1 - target) > 1 - confidence:
        most *= 2
    return bisect_left(
        range(most), confidence - 1, lo=misses + 1, key=lambda n: -float(bdtr(misses, n, 1 - target))
    )


def allowed(requests: int, target: float) -> int:
    """Most misses with which the measured share still reaches `target`."""
    most = int(requests * (1 - target) + 0.5)  # rounded: 10 x (1 - 0.9) is a little under 1
    while most > 0 and (requests - most) / requests < target:
        most -= 1
    return most


def word_of(found: Evidence) -> Attained:
    """PASS and FAIL are proven at the confidence; LIKELY ones are what was measured and prove nothing."""
    if found.certified_up_to is not None and found.misses <= found.certified_up_to:
        return "PASS"
    if found.refuted_from is not None and found.misses >= found.refuted_from:
        return "FAIL"
    return "LIKELY PASS" if found.misses <= allowed(found.requests, found.target) else "LIKELY FAIL"


def block_interval(t_sched: Sequence[float], kept: Sequence[bool], seed: int) -> Interval | None:
    """The 95 % interval of the share from circular blocks of 5 to 10 s; longer in runs of over half an hour.

    None where all requests fared alike: drawn again they can only fare alike again. `low` and `high` are None
    where the run has fewer than 20 blocks.
    """
    if all(kept) or not any(kept):
        return None
    arrival_s, good = np.asarray(t_sched, dtype=np.float64), np.asarray(kept, dtype=np.bool_)
    shortest, longest = BLOCK_S
    block_s = min(longest, max(shortest, float(np.ptp(arrival_s)) / LEAST_BLOCKS))
    return interval_of_difference(arrival_s, good, np.zeros_like(good), block_s, seed)


class Sequential:
    """Says, request by request, when the measured share of a replay can no longer change sides.

    Fed every finished request once, in any order. `fails`: the misses are already more than N requests may
    have. `keeps`: even if all that are left missed, there would be few enough. So which side of the target the
    complete run would be on is certain, never guessed. What ending there does not preserve: the attainment
    itself (known only as a bound), PASS or FAIL against their LIKELY forms, a TBT target's pooled P99, the
    growth of requests in flight, and goodput as a good rate. `keeps` comes at the very end of a run at best,
    and a queue that grows may still show after it: end a probe on `fails` only.
    """

    def __init__(self, requests: int, target: float) -> None:
        self.requests = requests
        self.good = 0
        self.misses = 0
        self._allowed = allowed(requests, target)

    def add(self, good: bool) -> Literal["keeps", "fails"] | None:
        """One more request has finished; what is certain now."""
        self.good += good
        self.misses += not good
        self.check_invariants()
        if self.misses > self._allowed:
            return "fails"
        return "keeps" if self.requests - self.good <= self._allowed else None

    def check_invariants(self) -> None:
        """Raises ValueError where more requests finished than were scheduled."""
        if self.good + self.misses > self.requests:
            raise ValueError(f"{self.good + self.misses} of {self.requests} requests have finished")
