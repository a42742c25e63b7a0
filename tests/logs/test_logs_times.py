"""Units, zones and text forms of times."""

from __future__ import annotations

import datetime

import pytest

from advisor.logs.record import UnusableError
from advisor.logs.times import Clock, as_number, describe_span, find_zone, parse_bound
from engine.errors import InputError

UTC = datetime.UTC
NOW_S = 1_700_000_000  # 2023-11-14 22:13:20 UTC


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (NOW_S, "seconds since 1970"),
        (NOW_S + 0.0, "seconds since 1970"),
        (NOW_S * 10**3, "milliseconds since 1970"),
        (NOW_S * 10**6, "microseconds since 1970"),
        (NOW_S * 10**9, "nanoseconds since 1970"),
        (str(NOW_S * 10**9), "nanoseconds since 1970"),
        ("2023-11-14T22:13:20Z", "wall-clock time"),
        ("2023-11-14 22:13:20.0000000", "wall-clock time"),
        ("2023-11-14 22:13:20 UTC", "wall-clock time"),
        ("2023-11-14T23:13:20+0100", "wall-clock time"),
    ],
)
def test_one_instant_in_every_spelling(value: object, words: str) -> None:
    clock = Clock.of_sample([value], None, UTC)
    assert (clock.ns(value), clock.words, clock.epoch) == (NOW_S * 10**9, words, True)


@pytest.mark.parametrize(
    ("values", "second"),
    [
        ([0, 3000, 6000], 3 * 10**9),  # whole thousands: milliseconds (Mooncake)
        ([0.0, 61.114], 61_114_000_000),  # small floats: seconds (Qwen)
        ([19_440_110, 19_440_161], 19_440_161 * 10**9),  # an unknown midnight (BurstGPT_3)
    ],
)
def test_relative_numbers(values: list[float], second: int) -> None:
    clock = Clock.of_sample(values, None, UTC)
    assert not clock.epoch
    assert clock.ns(values[1]) == second


def test_the_flag_wins() -> None:
    assert Clock.of_sample([0, 3000], "us", UTC).ns(3000) == 3_000_000


def test_nanosecond_integers_are_exact() -> None:
    value = 1_789_372_800_120_000_001  # a float would lose the last digits
    assert Clock.of_sample([value], None, UTC).ns(value) == value


def test_naive_times_follow_the_zone_through_a_clock_change() -> None:
    clock = Clock.of_sample(["2026-10-25 01:30:00"], None, find_zone("Europe/Berlin"))
    # Summer time ends at 03:00 on that day, so the hours from 01:30 to 04:30 are four.
    assert clock.ns("2026-10-25 04:30:00") - clock.ns("2026-10-25 01:30:00") == 4 * 3600 * 10**9
    assert clock.naive


@pytest.mark.parametrize("value", ["yesterday", "", None, True, [], {}, "nan", float("nan"), float("inf")])
def test_what_is_no_time(value: object) -> None:
    with pytest.raises(UnusableError):
        Clock.of_sample([NOW_S], None, UTC).ns(value)


@pytest.mark.parametrize("value", [0, 12.5, -NOW_S, 10**30, 1e300])
def test_times_off_the_logs_clock(value: float) -> None:
    with pytest.raises(UnusableError, match=r"out of range|not understood"):
        Clock.of_sample([NOW_S], None, UTC).ns(value)


def test_bounds() -> None:
    clock = Clock.of_sample([NOW_S], None, UTC)
    assert parse_bound("2023-11-14T22:13:20", clock, "--since") == NOW_S * 10**9
    assert parse_bound(str(NOW_S * 1000), clock, "--since") == NOW_S * 10**9
    assert parse_bound("10m", Clock.of_sample([0, 1.5], None, UTC), "--since") == 600 * 10**9
    with pytest.raises(InputError, match="--until"):
        parse_bound("noon", clock, "--until")


@pytest.mark.parametrize(
    ("text", "number"), [(" 12 ", 12), ("1e3", 1000.0), ("-4", -4), ("1_000", None), ("0x1", None)]
)
def test_numbers_in_text(text: str, number: float | None) -> None:
    assert as_number(text) == number


def test_unknown_zone() -> None:
    with pytest.raises(InputError, match="Mars"):
        find_zone("Mars/Olympus")


@pytest.mark.parametrize(
    ("seconds", "text"), [(45, "45 seconds"), (3537, "59 minutes"), (3 * 86_400, "3 days")]
)
def test_spans(seconds: float, text: str) -> None:
    assert describe_span(seconds) == text
