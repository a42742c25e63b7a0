"""Faults on purpose: what `--fault` says, and that they come as often as it says."""

from __future__ import annotations

import math

import pytest

from engine.errors import InputError
from engine.faults import TransferFaults, check_fault, link_factor, slow_factor, transfer_faults


def test_each_fault_is_that_fault_alone() -> None:
    assert (slow_factor("slow-steps:3"), transfer_faults("slow-steps:3", seed=0)) == (3.0, None)
    assert (slow_factor(None), transfer_faults(None, seed=0)) == (1.0, None)
    for fault in ("transfer-fail:1", "transfer-corrupt:1", "link-rate:5e6", "slow-link:10"):
        check_fault(fault)
        assert slow_factor(fault) == 1.0
    failing, corrupting, slow, slower = (
        transfer_faults(fault, seed=0)
        for fault in ("transfer-fail:1", "transfer-corrupt:1", "link-rate:5e6", "slow-link:10")
    )
    assert failing is not None
    assert corrupting is not None
    assert slow is not None
    assert slower is not None
    assert (failing.draw(), corrupting.draw(), slow.draw()) == ("fail", "corrupt", None)
    assert (failing.bytes_per_s, corrupting.bytes_per_s, slow.bytes_per_s) == (None, None, 5e6)
    assert (slow.slower, slower.slower, slower.bytes_per_s, slower.draw()) == (1.0, 10.0, None, None)
    assert (link_factor("slow-link:10"), link_factor("link-rate:5e6"), link_factor(None)) == (10.0, 1.0, 1.0)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["fail", "corrupt"])
def test_faults_come_as_often_as_they_should(kind: str, share: float) -> None:
    """Within five standard deviations of a binomial; the same seed gives the same ones."""
    number = 20_000
    one, other = (transfer_faults(f"transfer-{kind}:{share}", seed=7) for _ in range(2))
    assert one is not None
    assert other is not None
    drawn = [one.draw() for _ in range(number)]
    assert drawn == [other.draw() for _ in range(number)]
    hits = sum(fault is not None for fault in drawn)
    assert abs(hits - number * share) <= 5 * math.sqrt(number * share * (1 - share))
    assert dict(one.counts) == ({kind: hits} if hits else {})
    assert {fault for fault in drawn if fault} <= {kind}


def test_other_seeds_give_other_faults() -> None:
    draws = [
        [faults.draw() for _ in range(100)] for faults in (TransferFaults(fail=0.5, seed=n) for n in (1, 2))
    ]
    assert draws[0] != draws[1]


@pytest.mark.parametrize(
    "fault",
    ["", "slow-steps", "slow-steps:0.5", "transfer-fail:1.1", "transfer-fail:nan", "transfer-corrupt:-0.1",
     "slow-link:0.9", "slow-link:inf", "slow-link:fast", "link-rate:10", "no-such:1"],
)  # fmt: skip
def test_a_fault_that_is_none_is_refused_with_those_that_are(fault: str) -> None:
    with pytest.raises(InputError) as caught:
        check_fault(fault)
    assert "transfer-corrupt: 0 to 1" in str(caught.value.why)
