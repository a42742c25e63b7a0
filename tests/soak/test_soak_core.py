"""Many random events on engine core, scheduler, KV cache and both sides of a split, over the echo model.

helpers.core_soak says what happens and what is checked: invariants after each event, what steps in flight read
and write, every answer against the model alone, and at the end of a world every block free or cached.
"""

from __future__ import annotations

from collections import Counter

import pytest
from helpers.core_soak import soak

# What must have happened, of a million events; about a third of what does. Without it the run proves little.
ENOUGH = {
    "add": 40_000,
    "answers": 25_000,
    "hit tokens": 150_000,
    "preempted": 2_500,
    "several in flight": 25_000,
    "ahead": 6_000,
    "abort": 15_000,
    "fenced": 2_000,
    "fail": 2_000,
    "reserve": 3_000,
    "no room": 15_000,
    "copy": 3_000,
    "late": 800,
    "release": 5_000,
    "refused": 800,
}


def check(counts: Counter[str]) -> None:
    print(dict(counts))  # noqa: T201 - the figure that is asked for
    share = counts["events"] / 1_000_000
    rare = {what: counts[what] for what, least in ENOUGH.items() if counts[what] < least * share}
    assert not rare, f"too seldom: {rare}"


def test_20_000_random_events_of_the_core_leave_no_finding() -> None:
    check(soak(20_000))


@pytest.mark.slow
def test_1_000_000_random_events_of_the_core_leave_no_finding() -> None:
    counts = soak(1_000_000, seed=1_000_000)
    assert counts["events"] >= 1_000_000
    check(counts)
