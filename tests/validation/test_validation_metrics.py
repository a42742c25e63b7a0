"""Metrics and verdicts of hand-made records, against figures worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.simulation.slo import Slo
from advisor.validation.classes import ClassScore
from advisor.validation.gates import Gate, cache, judge
from advisor.validation.metrics import (
    e2e_s,
    gaps_s,
    latencies,
    miss,
    score,
    send_lag_s,
    tokens_per_chunk,
    tpot_s,
    ttft_s,
)
from advisor.validation.record import Record
from advisor.validation.statistics import evidence, evidence_of
from advisor.validation.verdict import decide

SLO = Slo(ttft_s=0.5, tpot_s=0.11, attainment=0.9)


def record(**changes: Any) -> Record:
    """Due at 10, sent at 10.1, tokens at 10.4, 10.5, 10.7 and 10.8."""
    fields: dict[str, Any] = {
        "row": 0, "t_sched": 10.0, "want_in": 100, "want_out": 4, "status": "ok", "t_send": 10.1,
        "t_chunk": (10.4, 10.5, 10.7, 10.8), "t_done": 10.9, "n_in": 100, "n_out": 4, "n_out_source": "usage",
    }  # fmt: skip
    return Record(**(fields | changes))


def test_latencies_of_one_request() -> None:
    one = latencies([record()])
    assert ttft_s(record()) == pytest.approx(0.4)  # from the scheduled arrival
    assert one.ttft_svc is not None
    assert one.ttft_svc.mean == pytest.approx(0.3)  # from the send
    assert one.send_lag is not None
    assert one.send_lag.p99 == pytest.approx(0.1)
    assert tpot_s(record()) == pytest.approx(0.4 / 3)
    assert gaps_s(record()) == pytest.approx([0.1, 0.2, 0.1])
    assert one.max_gap is not None
    assert one.max_gap.max == pytest.approx(0.2)
    assert one.e2e is not None
    assert one.e2e.p50 == pytest.approx(0.8)


def test_waiting_for_the_turn_before_is_a_delay_of_its_own_and_no_lag() -> None:
    held = record(held_s=0.08)  # due at 10.08, sent at 10.1
    assert send_lag_s(held) == pytest.approx(0.02)
    assert ttft_s(held) == pytest.approx(0.32)
    assert e2e_s(held) == pytest.approx(0.72)
    delay = latencies([held, record()]).dependency_delay
    assert delay is not None
    assert (delay.n, delay.mean) == (1, pytest.approx(0.08))
    assert latencies([record()]).dependency_delay is None


def test_tpot_counts_tokens_not_chunks() -> None:
    # Four tokens in two chunks: the same first and last token, the same TPOT; gaps are of chunks.
    packed = record(t_chunk=(10.4, 10.8))
    assert tpot_s(packed) == pytest.approx(0.4 / 3)
    assert tokens_per_chunk([packed, packed]) == 2
    assert gaps_s(packed) == pytest.approx([0.4])


def test_one_token_has_no_tpot_and_keeps_any() -> None:
    single = record(t_chunk=(10.4,), n_out=1, want_out=1)
    assert tpot_s(single) is None
    assert miss(single, Slo(tpot_s=1e-9)) is None
    assert latencies([single]).tpot is None


def test_percentiles_are_linear_interpolated() -> None:
    # TTFT 1..10 s: numpy's "linear", R's type 7: p50 = 5.5, p90 = 9.1, p99 = 9.91.
    ttft = latencies([record(t_chunk=(10.0 + i, 30.0)) for i in range(1, 11)]).ttft
    assert ttft is not None
    assert (ttft.p50, ttft.p90, ttft.p99) == pytest.approx((5.5, 9.1, 9.91))
    assert (ttft.n, ttft.mean, ttft.max) == (10, pytest.approx(5.5), pytest.approx(10))


@pytest.mark.parametrize(
    ("changes", "slo", "kind"),
    [
        ({}, Slo(ttft_s=0.41, tpot_s=0.14, tbt_s=0.21), None),
        ({}, Slo(ttft_s=0.39, tpot_s=0.14), "ttft"),
        ({}, Slo(ttft_s=0.41, tpot_s=0.13), "tpot"),
        ({}, Slo(ttft_s=0.39, tpot_s=0.13), "ttft+tpot"),
        ({}, Slo(ttft_s=0.41, tpot_s=0.14, tbt_s=0.19), "tbt"),
        ({}, Slo(), None),
        ({"status": "http_5xx", "t_chunk": ()}, Slo(), "http_5xx"),
        ({"status": "wrong_length"}, Slo(), "wrong_length"),
        ({"status": "unsent", "t_send": None, "t_chunk": ()}, Slo(), "unsent"),
        ({"t_chunk": ()}, Slo(ttft_s=9), "ttft"),
    ],
)
def test_why_a_request_is_not_good(changes: dict[str, Any], slo: Slo, kind: str | None) -> None:
    assert miss(record(**changes), slo) == kind


def test_attainment_is_joint_and_over_all_scheduled() -> None:
    good, bad = record(t_chunk=(10.1, 10.2, 10.3, 10.4)), record(t_chunk=(11.0, 11.1, 11.2, 11.3))
    slow = record(t_chunk=(10.1, 11.0, 12.0, 13.0))
    failed, unsent = record(status="http_429", t_chunk=()), record(status="unsent", t_send=None, t_chunk=())
    # Marginally 8 of 10 keep TTFT and 8 of 10 keep TPOT; jointly 6 of 10.
    result = score([good] * 6 + [bad, slow, failed, unsent], SLO, window_s=3.0)
    assert (result.requests, result.good, result.attainment) == (10, 6, 0.6)
    assert result.misses == {"http_429": 1, "tpot": 1, "ttft": 1, "unsent": 1}
    assert result.good_rate_rps == pytest.approx(2.0)
    assert score([good], SLO, window_s=0.0).good_rate_rps is None


def decided(good: int, bad: int, slo: Slo = SLO, gates: tuple[Gate, ...] = ()) -> str:
    good_one = record(t_chunk=(10.1, 10.2, 10.3, 10.4))
    records = [good_one] * good + [record(status="http_5xx", t_chunk=())] * bad
    proof = evidence_of(records, slo)
    word, reason = decide(score(records, slo, 1.0), latencies(records), slo, proof, gates)
    assert word == "INVALID" or (str(good + bad) in reason and str(bad) in reason)
    return word


def test_the_verdict_is_certified_or_says_that_it_is_not() -> None:
    # Exact binomial at 95 %: of 100 at most 4 misses certify 90 %, 16 refute it (reference/validation.md, A5).
    words = [decided(100 - misses, misses) for misses in (4, 5, 10, 11, 15, 16)]
    assert words == ["PASS", "LIKELY PASS", "LIKELY PASS", "LIKELY FAIL", "LIKELY FAIL", "FAIL"]
    # 28 requests without a miss certify nothing, 29 do.
    assert [decided(28, 0), decided(29, 0)] == ["LIKELY PASS", "PASS"]


def test_a_red_gate_makes_it_invalid_whatever_the_attainment() -> None:
    red = Gate(name="send_lag", colour="red", value=1.0, green=0.1, red=0.2, text="late")
    assert decided(100, 0, gates=(red,)) == "INVALID"
    assert decided(0, 100, gates=(red,)) == "INVALID"
    assert decided(100, 0, gates=(red.model_copy(update={"colour": "amber"}),)) == "PASS"


def test_with_a_tbt_target_the_pooled_p99_gap_must_keep_it_too() -> None:
    slo = Slo(tbt_s=0.15, attainment=0.5)
    # 6 of 10 requests are good, but 4 of 30 gaps are 0.2 s: the pooled P99 is 0.2 s.
    good, bad = record(t_chunk=(10.1, 10.2, 10.3, 10.4)), record()
    records = [good] * 6 + [bad] * 4
    word, reason = decide(score(records, slo, 1.0), latencies(records), slo, evidence_of(records, slo), ())
    assert (word, "P99 gap" in reason) == ("LIKELY FAIL", True)


def test_a_class_with_targets_of_its_own_must_keep_them() -> None:
    batch = Slo(ttft_s=100.0, attainment=0.95)
    good, late = record(t_chunk=(10.1, 10.2, 10.3, 10.4)), record(slo_class="batch", t_chunk=(90.0, 200.0))
    records = [good] * 80 + [late] * 20  # a TTFT of 80 s is late for the run and in time for the class
    assert score(records, SLO, 1.0).good == 80
    assert score(records, SLO, 1.0, {"batch": batch}).good == 100
    strict = batch_class(batch, records[80:], good=18)
    word, reason = decide(
        score(records, SLO, 1.0, {"batch": batch}), latencies(records), SLO,
        evidence_of(records, SLO, {"batch": batch}), (), classes=(strict,),
    )  # fmt: skip
    assert word == "LIKELY FAIL"
    assert "batch" in reason


def batch_class(slo: Slo, records: list[Record], good: int) -> ClassScore:
    """The class as scored, with so many good requests."""
    scored = score(records, slo, 1.0).model_copy(update={"good": good, "attainment": good / len(records)})
    proof = evidence(good, len(records), slo.attainment)
    return ClassScore(name="batch", slo=slo, own_targets=True, share=0.2, score=scored, evidence=proof)


def gate(records: list[Record], name: str, slo: Slo = SLO, end: Any = "complete") -> Gate:
    return next(gate for gate in judge(records, latencies(records), slo, end) if gate.name == name)


@pytest.mark.parametrize(
    ("ttft_s", "lag_s", "colour"),
    [
        # max(5 ms, 2 %) green, max(10 ms, 5 %) amber.
        (0.1, 0.0049, "green"),
        (0.1, 0.0051, "amber"),
        (0.1, 0.0099, "amber"),
        (0.1, 0.0101, "red"),
        (3.0, 0.059, "green"),
        (3.0, 0.061, "amber"),
        (3.0, 0.149, "amber"),
        (3.0, 0.151, "red"),
        (None, 0.0101, "red"),
    ],
)
def test_send_lag_thresholds(ttft_s: float | None, lag_s: float, colour: str) -> None:
    records = [record(t_send=10.0 + lag_s)] * 10
    assert gate(records, "send_lag", Slo(ttft_s=ttft_s)).colour == colour


@pytest.mark.parametrize(
    ("unsent", "colour"), [(0, "green"), (5, "green"), (6, "amber"), (10, "amber"), (11, "red")]
)
def test_arrivals_thresholds_of_a_thousand(unsent: int, colour: str) -> None:
    sent = [record(t_sched=i * 0.1, t_send=i * 0.1) for i in range(1000 - unsent)]
    rest = [record(t_sched=100.0, t_send=None, status="unsent", t_chunk=())] * unsent
    assert gate(sent + rest, "arrivals").colour == colour


def test_arrivals_that_take_longer_than_planned_are_a_lower_rate() -> None:
    # At 99 s, when the last was due, 98 had been sent (97 x 1.02 s = 98.94 s).
    slow = [record(t_sched=i * 1.0, t_send=i * 1.02) for i in range(100)]
    assert gate(slow, "arrivals").value == 0.98
    assert gate(slow, "arrivals").colour == "red"


@pytest.mark.parametrize(
    ("n_in", "colour"), [(1000, "green"), (1005, "green"), (1006, "amber"), (1010, "amber"), (1011, "red")]
)
def test_prompt_length_thresholds(n_in: int, colour: str) -> None:
    assert gate([record(want_in=1000, n_in=n_in)] * 3, "prompt_lengths").colour == colour


def test_one_prompt_far_off_is_not_green_and_no_usage_is_said() -> None:
    records = [record(want_in=1000, n_in=1000)] * 99 + [record(want_in=1000, n_in=1021)]
    assert gate(records, "prompt_lengths").colour == "amber"
    assert gate([record(n_in=None)], "prompt_lengths").colour == "amber"
    assert gate([record(n_in=None)], "prompt_lengths").value is None


@pytest.mark.parametrize(
    ("wrong", "colour"), [(0, "green"), (5, "green"), (6, "amber"), (10, "amber"), (11, "red")]
)
def test_output_length_thresholds_of_a_thousand(wrong: int, colour: str) -> None:
    records = [record()] * (1000 - wrong) + [record(status="wrong_length", n_out=3)] * wrong
    assert gate(records, "output_lengths").colour == colour


@pytest.mark.parametrize(("failed", "colour"), [(1, "green"), (2, "amber"), (50, "amber"), (51, "red")])
def test_error_thresholds_of_a_hundred(failed: int, colour: str) -> None:
    records = [record()] * (100 - failed) + [record(status="http_5xx", t_chunk=())] * failed
    assert gate(records, "errors").colour == colour


def test_an_unfinished_run_is_red() -> None:
    assert gate([record()], "completeness").colour == "green"
    assert gate([record()], "completeness", end="interrupted").colour == "red"
    assert gate([record()], "completeness", end="aborted").colour == "red"


@pytest.mark.parametrize(
    ("measured", "colour"),
    [(0, "green"), (500, "green"), (520, "green"), (521, "amber"), (550, "amber"), (551, "red")],
)
def test_more_from_the_cache_than_the_window_explains_was_there_before(measured: int, colour: str) -> None:
    assert cache(measured, expected=500, prompt_tokens=1000).colour == colour
