"""Requests with targets of their own: the flag, which request is in which class, and the worst class first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from advisor.logs.trace import Labels, Trace
from advisor.simulation.slo import Slo
from advisor.validation.classes import assign, by_class, parse_class, parse_classes, slos
from advisor.validation.metrics import score
from advisor.validation.record import Record
from engine.errors import InputError

RUN = Slo(ttft_s=1.0, tpot_s=0.1, tbt_s=0.3, attainment=0.9)


def test_a_class_as_the_flag_has_it() -> None:
    target = parse_class("route=/v1/chat:ttft=300ms,tpot=50ms,tbt=0.2,attainment=0.95")
    assert target.name == "route=/v1/chat"
    assert target.slo(RUN) == Slo(ttft_s=0.3, tpot_s=0.05, tbt_s=0.2, attainment=0.95)


def test_targets_that_are_not_named_are_the_runs_and_none_lifts_one() -> None:
    assert parse_class("client=batch:ttft=5m").slo(RUN) == Slo(
        ttft_s=300, tpot_s=0.1, tbt_s=0.3, attainment=0.9
    )
    lifted = parse_class("client=batch:tpot=none,tbt=none")
    assert lifted.slo(RUN) == Slo(ttft_s=1.0, attainment=0.9)


@pytest.mark.parametrize("value", ["llama:70b", "a=b", "a:b=c", "x y"])
def test_values_may_hold_colons_and_equals_signs(value: str) -> None:
    target = parse_class(f"model={value}:ttft=1s")
    assert (target.field, target.value) == ("model", value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not FIELD=VALUE:TARGETS"),
        ("route=/chat", "is not FIELD=VALUE:TARGETS"),
        ("route:ttft=1s", "is not FIELD=VALUE:TARGETS"),
        ("route=:ttft=1s", "is not FIELD=VALUE:TARGETS"),
        ("route=/chat:", "is not FIELD=VALUE:TARGETS"),
        ("user=7:ttft=1s", "field 'user' is not known"),
        ("route=/chat:e2e=1s", "target 'e2e=1s' is not understood"),
        ("route=/chat:ttft", "target 'ttft' is not understood"),
        ("route=/chat:ttft=1s,,", "target '' is not understood"),
        ("route=/chat:ttft=1s,ttft=2s", "names ttft twice"),
        ("route=/chat:ttft=soon", "--class ttft 'soon' is not understood"),
        ("route=/chat:ttft=0", "ttft=0 is not a time above 0"),
        ("route=/chat:attainment=1.5", "attainment=1.5 is not a share"),
        ("route=/chat:attainment=nan", "attainment=nan is not a share"),
        ("route=/chat:attainment=most", "attainment=most is not a share"),
        ("route=/chat:attainment=none", "attainment=none is not a share"),
    ],
)
def test_what_cannot_be_understood_says_why_and_how(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_class(text)
    assert says in caught.value.message
    assert caught.value.hint


def test_the_same_class_twice() -> None:
    with pytest.raises(InputError, match="given twice"):
        parse_classes(["client=a:ttft=1s", "client=b:ttft=1s", "client=a:tpot=1s"])


def labels(*values: str | None) -> Labels:
    names = tuple(dict.fromkeys(value for value in values if value is not None))
    codes = [-1 if value is None else names.index(value) for value in values]
    return Labels(names, np.array(codes, dtype=np.int64))


def trace(**columns: Any) -> Trace:
    count = 4
    return Trace(np.arange(float(count)), np.full(count, 8), np.full(count, 8), **columns)


def test_a_request_is_of_the_first_class_that_it_fits() -> None:
    of = trace(route=labels("/chat", "/batch", None, "/chat"), client=labels("a", "a", "b", "b"))
    targets = parse_classes(["route=/chat:ttft=1s", "client=a:ttft=2s"])
    assert assign(of, targets) == ["route=/chat", "client=a", None, "route=/chat"]
    assert assign(of, targets[::-1]) == ["client=a", "client=a", None, "route=/chat"]
    assert assign(of, []) == [None] * 4


def test_classes_that_the_log_cannot_tell() -> None:
    with pytest.raises(InputError) as caught:
        assign(trace(), parse_classes(["session=7:ttft=1s"]))
    assert (caught.value.why, caught.value.hint is None) == ("the log has no session of its requests", False)
    with pytest.raises(InputError) as caught:
        assign(trace(client=labels("alpha", "beta", None, None)), parse_classes(["client=alhpa:ttft=1s"]))
    assert caught.value.hint == "--class client=alpha:ttft=5s"


def test_a_class_without_requests_in_the_window_is_no_error() -> None:
    whole = trace(client=labels("a", "b", "b", "b"))
    targets = parse_classes(["client=a:ttft=1s"])
    assert assign(whole.take(np.array([1, 2, 3])), targets) == [None] * 3
    assert [one.name for one in by_class([record(0.5, None)], RUN, targets, 1.0)] == ["others"]


def record(ttft_s: float, slo_class: str | None) -> Record:
    return Record(
        0, 0.0, 8, 1, "ok", t_send=0.0, t_chunk=(ttft_s,), t_done=ttft_s, n_in=8, n_out=1, n_out_source="usage",
        slo_class=slo_class,
    )  # fmt: skip


def test_the_worst_class_by_its_own_target_comes_first() -> None:
    targets = parse_classes(["client=a:ttft=500ms,attainment=0.5", "client=b:ttft=5s,attainment=0.99"])
    a, b = "client=a", "client=b"
    records = [
        *[record(0.4, a)] * 6, *[record(0.6, a)] * 4,  # 60 %, ten points above its own 50 %
        *[record(4.0, b)] * 19, record(6.0, b),  # 95 %, four points below its own 99 %
        *[record(0.9, None)] * 9, *[record(1.1, "client=gone")],  # 90 %, as the run wants
    ]  # fmt: skip
    worst, others, best = by_class(records, RUN, targets, window_s=10.0)
    assert (worst.name, worst.own_targets, worst.share, worst.score.attainment) == (b, True, 0.5, 0.95)
    assert (others.name, others.own_targets, others.slo, others.score.attainment) == ("others", False, RUN, 0.9)
    assert (best.name, best.score.good, best.score.good_rate_rps) == (a, 6, 0.6)
    assert worst.evidence is not None
    assert (worst.evidence.misses, worst.evidence.requests, worst.evidence.target) == (1, 20, 0.99)
    assert sum(one.share for one in (worst, others, best)) == pytest.approx(1)


def test_all_requests_are_judged_by_the_targets_of_their_class() -> None:
    targets = parse_classes(["client=a:ttft=100ms", "client=b:ttft=5s"])
    records = [record(0.5, "client=a"), record(4.0, "client=b"), record(0.5, None), record(4.0, None)]
    assert score(records, RUN, 1.0, slos(targets, RUN)).good == 2
    parts = by_class(records, RUN, targets, 1.0)
    assert sum(one.score.good for one in parts) == 2


def test_without_classes_there_are_no_scores() -> None:
    assert by_class([record(0.5, None)], RUN, [], 1.0) == ()
