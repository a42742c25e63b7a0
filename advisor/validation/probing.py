"""What one replay of a search says of its rate, and how long it must be. Pure functions of the records.

Two objectives. Goodput: the joint attainment reaches its target. Capacity, Sarathi-Serve's (its capacity
search: P99 and median): the pooled P99 gap keeps the TBT target and the median queueing delay stays within 2 s.
Either way a run whose requests in flight kept growing does not keep its rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.logs.trace import FloatColumn
from advisor.simulation.slo import Slo
from advisor.validation.metrics import gaps_s, miss, ttft_s
from advisor.validation.record import COMPLETE, OPEN, Record
from advisor.validation.saturation import saturation
from advisor.validation.statistics import Evidence, allowed, block_interval, evidence, requests_needed

QUEUEING_S = 2.0  # most median queueing delay of the capacity objective
GAPS_SHARE = 0.99  # of the gaps that must keep the TBT target: P99
FAILED_SHARE = 0.01  # of the requests, that may fail where only gaps are judged (ours)
LEAST_S = 60.0
BLOCKS_OF_E2E = 3.0  # times P99 E2E that a probe is long at least
MISSES = 20  # so many must be allowed to a run that is to prove its target: 286 requests for 90 %
LEAST_REQUESTS = 300  # where the target is 1, which none prove


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one run says; the rest of a Probe is what was asked."""

    judged: Literal["keeps", "fails"]
    why: str  # one clause
    evidence: Evidence
    growth: float | None  # of requests in flight, last third over middle third, minus 1


def judge_attainment(
    records: Sequence[Record],
    slo: Slo,
    of_class: Mapping[str, Slo] | None = None,
    *,
    seed: int = 0,
    ended_early: bool = False,
) -> Judgement:
    """Whether the run reached the attainment, with a TBT target its pooled P99 too, and could have gone on.

    `ended_early`: `Sequential` said that it fails. What then has no outcome counts as kept, so that the share
    is the most that the complete run could have reached.
    """
    own = of_class or {}
    kept = [
        (ended_early and record.status in OPEN) or miss(record, own.get(record.slo_class or "", slo)) is None
        for record in records
    ]
    blocks = None if ended_early else block_interval([record.t_sched for record in records], kept, seed)
    found = evidence(sum(kept), len(kept), slo.attainment, blocks=blocks)
    reached = f"{'at most ' if ended_early else ''}{found.share:.1%} kept the targets"
    grown = saturation(records)
    if found.misses > allowed(found.requests, found.target):
        return Judgement("fails", reached, found, grown.growth)
    if slo.tbt_s is not None and (gap_s := _p99_gap_s(_gaps(records))) > slo.tbt_s:
        return Judgement("fails", f"{reached}, but the P99 gap is {gap_s * 1e3:.0f} ms", found, grown.growth)
    if grown.oversaturated:
        return Judgement("fails", f"{reached}, but requests pile up: {grown.text}", found, grown.growth)
    return Judgement("keeps", reached, found, grown.growth)


def judge_capacity(records: Sequence[Record], tbt_s: float, *, idle_ttft_s: float = 0.0) -> Judgement:
    """Whether the run keeps Sarathi-Serve's capacity rule. The evidence is of gaps: 99 % within `tbt_s`.

    A client cannot see when a request was scheduled. The queueing delay here is the median TTFT less
    `idle_ttft_s`, the median TTFT of the same traffic on an idle endpoint, predicted or measured; without one
    it is TTFT itself, prefill and all, which errs towards `fails`.
    """
    gaps = _gaps(records)
    found = evidence(int(np.count_nonzero(gaps <= tbt_s)), len(gaps), GAPS_SHARE, of="gaps")
    grown = saturation(records)
    failed = sum(record.status not in COMPLETE for record in records) / len(records)
    firsts = [first for record in records if (first := ttft_s(record)) is not None]
    delay_s = float(np.median(firsts)) - idle_ttft_s if firsts else float("inf")
    gap_s = _p99_gap_s(gaps)
    why = f"P99 gap {gap_s * 1e3:.0f} ms, median queueing delay {max(delay_s, 0.0):.2f} s"
    if failed > FAILED_SHARE:
        return Judgement("fails", f"{failed:.1%} of the requests failed", found, grown.growth)
    if gap_s > tbt_s or delay_s > QUEUEING_S:
        return Judgement("fails", why, found, grown.growth)
    if grown.oversaturated:
        return Judgement("fails", f"{why}, but requests pile up: {grown.text}", found, grown.growth)
    return Judgement("keeps", why, found, grown.growth)


def probe_seconds(rate_rps: float, e2e_p99_s: float, target: float) -> float:
    """How long a probe must be: 60 s, three times the P99 of E2E, and enough requests for a verdict."""
    requests = requests_needed(MISSES, target) if target < 1 else LEAST_REQUESTS
    return max(LEAST_S, BLOCKS_OF_E2E * e2e_p99_s, requests / rate_rps)


def _gaps(records: Sequence[Record]) -> FloatColumn:
    """Gaps of complete requests, pooled, seconds."""
    return np.array([gap for record in records if record.status == "ok" for gap in gaps_s(record)])


def _p99_gap_s(gaps: FloatColumn) -> float:
    return float(np.percentile(gaps, 99)) if len(gaps) else 0.0
