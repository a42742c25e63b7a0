"""What a source keeps, and until when."""

from __future__ import annotations

import math

from engine.transfer.held import Held


def test_kv_is_kept_until_its_time_is_over_and_not_a_moment_longer() -> None:
    held = Held(30.0)
    held.keep("r", [3, 1], 7, now=100.0)
    kept = held.look("r", 129.999)
    assert kept is not None
    assert (kept.blocks, kept.tokens) == ((3, 1), 7)
    assert held.look("r", 130.0) is None
    assert held.look("other", 100.0) is None
    assert (held.expired(129.999), held.expired(130.0)) == ([], ["r"])


def test_a_renewal_counts_from_when_it_comes_and_comes_too_late_after_expiry() -> None:
    held = Held(30.0)
    held.keep("a", [1], 1, now=0.0)
    held.keep("b", [2], 1, now=1.0)
    assert held.next_expiry_s == 30.0
    assert held.renew("a", 29.0)
    assert held.next_expiry_s == 31.0
    assert held.look("a", 58.9) is not None
    assert not held.renew("b", 31.0)
    assert held.look("b", 31.0) is None
    assert not held.renew("c", 0.0)
    assert held.expired(59.0) == ["b", "a"], "longest ago first"


def test_what_is_dropped_is_gone_and_may_be_dropped_again() -> None:
    held = Held(math.inf)
    held.keep("r", [1], 1, now=0.0)
    assert held.expired(1e12) == []
    held.drop("r")
    held.drop("r")
    assert held.look("r", 0.0) is None
    assert (len(held), held.next_expiry_s) == (0, None)


def test_a_renewal_is_the_same_keeping_and_keeping_again_is_another() -> None:
    held = Held(30.0)

    def serial() -> int:
        kept = held.look("r", 1.0)
        assert kept is not None
        return kept.serial

    held.keep("r", [1, 2], 8, now=0.0)
    first = serial()
    held.renew("r", 1.0)
    assert serial() == first
    held.keep("r", [3, 4], 8, now=1.0)
    assert serial() != first
    held.drop("r")
    held.keep("r", [1, 2], 8, now=1.0)
    assert serial() != first
