"""Binomial budgets against the published table and scipy's tests; blocks of time; ending early; the words."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from advisor.simulation.slo import Slo
from advisor.validation.attained import attained
from advisor.validation.classes import ClassScore
from advisor.validation.metrics import Latencies, Latency, Score
from advisor.validation.record import Record
from advisor.validation.statistics import (
    Evidence,
    Sequential,
    allowed,
    block_interval,
    certified_up_to,
    evidence,
    evidence_of,
    refuted_from,
    requests_needed,
    word_of,
)


@pytest.mark.parametrize(
    ("requests", "certified", "refuted"),
    [(100, 4, 16), (200, 12, 28), (300, 21, 40), (500, 38, 62), (1000, 84, 117), (2000, 177, 223)],
)
def test_budgets_for_90_percent(requests: int, certified: int, refuted: int) -> None:
    # The reference's table, exact binomial, one-sided 95 %.
    assert certified_up_to(requests, 0.9) == certified
    assert refuted_from(requests, 0.9) == refuted


@pytest.mark.parametrize(
    ("target", "confidence", "needed"),
    [
        (0.90, 0.95, (29, 46, 103, 167, 286, 627)),
        (0.95, 0.95, (59, 93, 208, 336, 577, 1260)),
        (0.99, 0.95, (299, 473, 1049, 1693, 2902, 6323)),
        (0.90, 0.99, (44, 64, 127, 197, 325, 681)),
    ],
)
def test_requests_that_certify_with_so_many_misses(
    target: float, confidence: float, needed: tuple[int, ...]
) -> None:
    misses = (0, 1, 5, 10, 20, 50)
    assert tuple(requests_needed(m, target, confidence) for m in misses) == needed
    for most, requests in zip(misses, needed, strict=True):  # one request fewer, and they no longer do
        assert certified_up_to(requests, target, confidence) == most
        assert certified_up_to(requests - 1, target, confidence) == (most - 1 if most else None)


@pytest.mark.parametrize(("requests", "share"), [(300, 0.94), (1000, 0.923)])
def test_power_of_the_certificate(requests: int, share: float) -> None:
    # The reference: at this true share a run is certified about 80 % of the time.
    budget = certified_up_to(requests, 0.9)
    assert float(binom.cdf(budget, requests, 1 - share)) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(("good", "requests"), [(0, 7), (7, 7), (278, 300), (91, 100), (1, 1), (1830, 2000)])
def test_bounds_are_clopper_and_pearsons(good: int, requests: int) -> None:
    found = evidence(good, requests, 0.9)
    ours = binomtest(good, requests).proportion_ci(confidence_level=0.90, method="exact")  # 5 % on either side
    assert (found.low, found.high) == pytest.approx((ours.low, ours.high), abs=1e-9)
    assert found.share == good / requests


@given(st.integers(1, 3000), st.integers(0, 3000), st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]))
def test_budgets_bounds_and_words_say_the_same(requests: int, misses: int, target: float) -> None:
    misses %= requests + 1
    found = evidence(requests - misses, requests, target)
    by_test = binomtest(requests - misses, requests, target)
    assert (
        (word_of(found) == "PASS")
        == (found.low >= target)
        == (float(binom.sf(requests - misses - 1, requests, target)) <= 1 - 0.95)
    )
    assert (
        (word_of(found) == "FAIL")
        == (found.high <= target)
        == (float(binom.cdf(requests - misses, requests, target)) <= 1 - 0.95)
    )
    if word_of(found).startswith("LIKELY"):
        assert (word_of(found) == "LIKELY PASS") == (by_test.statistic >= target)


@pytest.mark.parametrize(
    ("good", "requests", "word"),
    [
        (279, 300, "PASS"), (278, 300, "LIKELY PASS"), (270, 300, "LIKELY PASS"), (269, 300, "LIKELY FAIL"),
        (261, 300, "LIKELY FAIL"), (260, 300, "FAIL"),
        (28, 28, "LIKELY PASS"), (29, 29, "PASS"),  # 0.9^29 is the first power below 0.05
        (0, 1, "LIKELY FAIL"), (0, 2, "FAIL"), (0, 0, "LIKELY PASS"),
    ],
)  # fmt: skip
def test_words(good: int, requests: int, word: str) -> None:
    assert word_of(evidence(good, requests, 0.9)) == word


def test_a_target_of_every_request_is_never_proven_and_refuted_by_one() -> None:
    assert certified_up_to(10_000, 1.0) is None
    assert refuted_from(10_000, 1.0) == 1
    assert word_of(evidence(10_000, 10_000, 1.0)) == "LIKELY PASS"
    assert word_of(evidence(9_999, 10_000, 1.0)) == "FAIL"
    with pytest.raises(ValueError, match="no number"):
        requests_needed(0, 1.0)


@given(st.integers(1, 5000), st.sampled_from(["0.5", "0.9", "0.95", "0.99", "0.995", "0.999", "1"]))
def test_allowed_is_exact(requests: int, target: str) -> None:
    assert allowed(requests, float(target)) == int(requests * (1 - Fraction(target)))


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.95, 1.0]))
def test_what_is_certain_early_holds_at_the_end(outcomes: list[bool], target: float) -> None:
    run = Sequential(len(outcomes), target)
    said = [run.add(good) for good in outcomes]
    truth = "keeps" if sum(outcomes) >= target * len(outcomes) - 1e-9 else "fails"
    assert said[-1] == truth
    certain = [one for one in said if one is not None]
    assert set(certain) == {truth}
    assert said == [None] * (len(said) - len(certain)) + certain  # never taken back


def test_certain_at_the_first_request_that_decides() -> None:
    run = Sequential(100, 0.9)
    assert [run.add(False) for _ in range(11)] == [None] * 10 + ["fails"]
    run = Sequential(100, 0.9)
    assert [run.add(True) for _ in range(90)] == [None] * 89 + ["keeps"]
    run = Sequential(1, 0.9)
    run.add(True)
    with pytest.raises(ValueError, match="2 of 1"):
        run.add(True)


def test_blocks_of_independent_requests_agree_with_the_binomial() -> None:
    rng = np.random.default_rng(1)
    at = np.sort(rng.uniform(0, 600, 6000))
    kept = rng.random(6000) < 0.9
    found = block_interval(at.tolist(), kept.tolist(), seed=0)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.block_s == pytest.approx(10, rel=0.02)
    assert found.high - found.low == pytest.approx(2 * 1.96 * (0.9 * 0.1 / 6000) ** 0.5, rel=0.15)
    assert found.low < kept.mean() < found.high


def test_blocks_of_requests_that_fail_together_are_wider_than_the_binomial() -> None:
    # One in ten stretches of 10 s fails as a whole: 60 outcomes, not 6,000.
    at = np.linspace(0, 600, 6000, endpoint=False)
    kept = np.random.default_rng(2).permutation(np.repeat([False, True], [6, 54]))[(at // 10).astype(int)]
    found = block_interval(at.tolist(), kept.tolist(), seed=0)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low == pytest.approx(2 * 1.96 * (0.9 * 0.1 / 60) ** 0.5, rel=0.3)


def test_no_interval_from_a_short_run_or_from_requests_that_fared_alike() -> None:
    records = [record(t_sched=0.2 * i, status="ok" if i % 9 else "timeout") for i in range(490)]  # 98 s
    short = evidence_of(records, Slo(ttft_s=1.0))
    assert (short.misses, short.block_low, short.block_high, short.block_s) == (55, None, None, None)
    longer = evidence_of([*records, record(t_sched=100.5)], Slo(ttft_s=1.0), seed=3)
    assert longer.block_low is not None
    assert longer.block_s == pytest.approx(5, abs=0.1)
    assert longer == evidence_of([*records, record(t_sched=100.5)], Slo(ttft_s=1.0), seed=3)
    assert evidence_of([record(t_sched=float(i)) for i in range(300)], Slo(ttft_s=1.0)).block_low is None


def test_evidence_goes_by_the_targets_of_the_class() -> None:
    records = [record(t_sched=0.0), record(t_sched=1.0, slo_class="route=/batch")]
    strict, patient = Slo(ttft_s=0.1), Slo(ttft_s=1.0)
    assert evidence_of(records, strict).misses == 2
    assert evidence_of(records, strict, {"route=/batch": patient}).misses == 1


def record(**changes: Any) -> Record:
    """One token half a second after a request was due."""
    at = changes.pop("t_sched")
    fields: dict[str, Any] = {
        "row": 0, "want_in": 1, "want_out": 1, "status": "ok", "t_send": at, "t_chunk": (at + 0.5,),
        "t_done": at + 0.5, "n_in": 1, "n_out": 1, "n_out_source": "usage",
    }  # fmt: skip
    return Record(t_sched=at, **(fields | changes))


# The word of a run and its sentence.


def run_of(good: int, requests: int, target: float = 0.9) -> tuple[Score, Evidence]:
    reached = Score(requests=requests, good=good, attainment=good / requests, good_rate_rps=None, misses={})
    return reached, evidence(good, requests, target)


def latencies(p99_gap_s: float | None = None) -> Latencies:
    gaps = None
    if p99_gap_s is not None:
        gaps = Latency(n=9, mean=0.01, p50=0.01, p90=0.01, p99=p99_gap_s, max=1.0)
    return Latencies(ttft=None, ttft_svc=None, tpot=None, tbt=gaps, max_gap=None, e2e=None, send_lag=None)


@pytest.mark.parametrize(
    ("good", "requests", "target", "word", "reason"),
    [
        (290, 300, 0.9, "PASS", "96.7% of 300 requests kept the targets, 10 missed; 90% wanted, "
         "which up to 21 misses prove at 95% confidence"),
        (275, 300, 0.9, "LIKELY PASS", "91.7% of 300 requests kept the targets, 25 missed; 90% wanted, "
         "which it takes at most 21 misses to prove"),
        (20, 20, 0.9, "LIKELY PASS", "100% of 20 requests kept the targets, 0 missed; 90% wanted, "
         "which it takes 29 requests at least to prove"),
        (20, 20, 1.0, "LIKELY PASS", "100% of 20 requests kept the targets, 0 missed; 100% wanted, "
         "which no number of requests proves"),
        (265, 300, 0.9, "LIKELY FAIL", "88.3% of 300 requests kept the targets, 35 missed; 90% wanted, "
         "which it takes 40 misses to refute"),
        (0, 1, 0.9, "LIKELY FAIL", "0% of 1 requests kept the targets, 1 missed; 90% wanted; "
         "too few to refute it"),
        (3900, 4000, 0.995, "FAIL", "97.5% of 4000 requests kept the targets, 100 missed; 99.5% wanted, "
         "which 29 misses or more refute at 95% confidence"),
    ],
)  # fmt: skip
def test_the_sentence(good: int, requests: int, target: float, word: str, reason: str) -> None:
    reached, found = run_of(good, requests, target)
    assert attained(reached, latencies(), Slo(ttft_s=1, attainment=target), found) == (word, reason)


def test_a_pooled_gap_above_its_target_is_a_likely_fail_unless_the_misses_prove_more() -> None:
    slo = Slo(tbt_s=0.2)
    assert attained(*with_gap(300, 0.19), slo, run_of(300, 300)[1])[0] == "PASS"
    word, reason = attained(*with_gap(300, 0.21), slo, run_of(300, 300)[1])
    assert word == "LIKELY FAIL"
    assert reason.endswith("but the P99 gap is 210 ms; 200 ms wanted")
    assert attained(*with_gap(100, 0.21), slo, run_of(100, 300)[1])[0] == "FAIL"
    assert attained(*with_gap(300, 0.21), Slo(ttft_s=1), run_of(300, 300)[1])[0] == "PASS"  # none was asked for


def with_gap(good: int, p99_gap_s: float) -> tuple[Score, Latencies]:
    return run_of(good, 300)[0], latencies(p99_gap_s)


def test_the_word_is_that_of_the_worst_class() -> None:
    reached, found = run_of(990, 1000)
    own, proof = run_of(70, 100)
    worst = ClassScore(
        name="route=/chat", slo=Slo(ttft_s=0.2), own_targets=True, share=0.1, score=own, evidence=proof
    )
    word, reason = attained(reached, latencies(), Slo(ttft_s=1), found, [worst])
    assert word == "FAIL"
    assert reason.startswith("70% of 100 requests of route=/chat kept its targets, 30 missed")
    others = worst.model_copy(update={"own_targets": False})
    assert attained(reached, latencies(), Slo(ttft_s=1), found, [others])[0] == "PASS"
