"""The modelled transport against closed forms."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

import pytest

from engine.invariants import InvariantError
from engine.transfer.link import Link

Start = tuple[float, Hashable, int, int, float]


def ends(link: Link, starts: list[Start]) -> dict[Hashable, float]:
    """When each copy lands, driven as a simulator would; starts are (when, key, source, target, bytes)."""
    times: dict[Hashable, float] = {}
    todo = sorted(starts, key=lambda start: start[0])
    while todo or link.next_s < float("inf"):
        if todo and todo[0][0] <= link.next_s:
            now, key, source, target, size = todo.pop(0)
            link.start(key, source, target, size, now)
        else:
            now = link.next_s
            landed = link.landed(now)
            assert landed, "nothing landed when it should"
            times |= dict.fromkeys(landed, now)
        link.check_invariants()
    return times


def test_one_copy_takes_its_bytes_over_the_bandwidth_plus_the_latency() -> None:
    """DistServe: 512 tokens of OPT-66B are 1,207,959,552 bytes; over 25 GB/s 48.3 ms."""
    [end] = ends(Link(bytes_per_s=25e9, latency_s=0.002), [(3.0, "a", 0, 1, 1_207_959_552)]).values()
    assert end == pytest.approx(3 + 0.048318382 + 0.002, abs=1e-9)


@pytest.mark.parametrize("number", [2, 7])
def test_equal_copies_that_start_together_end_together(number: int) -> None:
    times = ends(Link(bytes_per_s=10.0, latency_s=0.5), [(0.0, i, 0, i + 1, 30.0) for i in range(number)])
    assert list(times.values()) == pytest.approx([number * 3.0 + 0.5] * number)


def test_copies_of_different_size_share_until_the_smaller_ends() -> None:
    """Sizes s1 <= s2 <= s3 at one port: s1 ends at 3 s1, s2 at s1 + 2 s2, s3 at s1 + s2 + s3 (bandwidth 1)."""
    times = ends(Link(bytes_per_s=1.0), [(0.0, "a", 0, 9, 1.0), (0.0, "b", 1, 9, 2.0), (0.0, "c", 2, 9, 4.0)])
    assert times == pytest.approx({"a": 3.0, "b": 5.0, "c": 7.0})


def test_a_copy_that_starts_later_slows_the_first_from_then_on() -> None:
    """10 bytes, alone for 4 s, then halved until it ends: 4 + 6 x 2 = 16 s; the other at 4 + 12 + 4."""
    times = ends(Link(bytes_per_s=1.0), [(0.0, "a", 0, 1, 10.0), (4.0, "b", 0, 2, 10.0)])
    assert times == pytest.approx({"a": 16.0, "b": 20.0})


def test_ports_of_other_instances_and_the_other_direction_are_free() -> None:
    starts: list[Start] = [(0.0, "a", 0, 1, 5.0), (0.0, "b", 1, 0, 5.0), (0.0, "c", 2, 3, 5.0)]
    assert ends(Link(bytes_per_s=1.0), starts) == pytest.approx({"a": 5.0, "b": 5.0, "c": 5.0})


def test_a_copy_runs_at_the_smaller_of_its_shares() -> None:
    """Two copies leave 0, two arrive at 2; the one in both pairs has half of each, as have the others."""
    starts: list[Start] = [(0.0, "a", 0, 1, 4.0), (0.0, "b", 0, 2, 4.0), (0.0, "c", 3, 2, 4.0)]
    assert ends(Link(bytes_per_s=1.0), starts) == pytest.approx({"a": 8.0, "b": 8.0, "c": 8.0})
    four: list[Start] = [*starts, (0.0, "d", 4, 2, 4.0)]
    # b, c and d have a third each until 12 s; a has half, which ends it at 8 s.
    assert ends(Link(bytes_per_s=1.0), four) == pytest.approx({"a": 8.0, "b": 12.0, "c": 12.0, "d": 12.0})


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_the_mean_of_poisson_copies_is_that_of_processor_sharing(load: float) -> None:
    """M/G/1-PS: D / (1 - load) whatever the sizes; half are three times the others. Batch means, 4 sigma."""
    random, now, starts = Random(8), 0.0, list[Start]()
    for key in range(12_000):
        now += random.expovariate(load / 2.0)
        starts.append((now, key, 0, 1, random.choice([1.0, 3.0])))
    times = ends(Link(bytes_per_s=1.0), starts)
    stays = [times[key] - at for at, key, *_ in starts]
    batches = [sum(stays[i : i + 400]) / 400 for i in range(0, len(stays), 400)]
    mean = sum(batches) / len(batches)
    error = (sum((one - mean) ** 2 for one in batches) / (len(batches) - 1) / len(batches)) ** 0.5
    assert abs(mean - 2.0 / (1 - load)) < 4 * error
    assert error < 0.1 * mean


def test_a_copy_whose_instance_died_never_lands_and_leaves_its_share() -> None:
    link = Link(bytes_per_s=1.0, latency_s=1.0)
    link.start("a", 0, 1, 10.0, 0.0)
    link.start("b", 0, 2, 10.0, 0.0)
    link.cancel("a", 4.0)
    link.cancel("unknown", 4.0)
    assert link.next_s == pytest.approx(4 + 8 + 1)
    link.landed(12.5)
    link.cancel("b", 12.5)  # all sent, not landed
    assert link.next_s == float("inf")
    assert link.landed(20.0) == []


def test_nothing_to_copy_takes_the_latency() -> None:
    assert ends(Link(bytes_per_s=1.0, latency_s=0.25), [(1.0, "a", 0, 1, 0.0)]) == {"a": 1.25}


def test_time_does_not_go_back() -> None:
    link = Link(bytes_per_s=1.0)
    link.start("a", 0, 1, 1.0, 5.0)
    with pytest.raises(InvariantError, match="time"):
        link.landed(4.0)


def test_copies_land_however_late_the_clock_is() -> None:
    """At 10^6 s a clock moves in steps of 10^-10 s: what is left of a copy then must not wait for less."""
    random, link = Random(3), Link(bytes_per_s=450e9)
    now, open_copies = 1e6, 0
    for key in range(2000):
        now += random.expovariate(50.0)
        while link.next_s <= now:
            landed = link.landed(link.next_s)
            assert landed, "the clock stands still"
            open_copies -= len(landed)
        link.start(key, 0, random.randrange(1, 3), random.uniform(1e6, 4e9), now)
        open_copies += 1
    while open_copies:
        landed = link.landed(link.next_s)
        assert landed, "the clock stands still"
        open_copies -= len(landed)
