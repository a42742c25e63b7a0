"""`--where`, `--since`, `--until` and `--log-share` take what they say, and count the rest."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from helpers.logs import accounted, read_lines

from advisor.logs.options import ReadOptions
from engine.errors import InputError

NOW = 1_700_000_000  # 2023-11-14 22:13:20 UTC
ROWS: list[dict[str, Any]] = [
    {"ts": NOW + i, "prompt_tokens": i + 1, "model": "ab"[i % 2], "session": f"s{i // 4}", "user": f"u{i % 3}"}
    for i in range(400)
]


def select(tmp_path: Path, **options: Any) -> list[int]:
    trace = read_lines(tmp_path, ROWS, options=ReadOptions(**options))
    assert accounted(trace)
    return [count - 1 for count in trace.prompt_tokens.tolist()]


def test_where(tmp_path: Path) -> None:
    assert select(tmp_path, where=(("model", "b"),)) == list(range(1, 400, 2))
    assert select(tmp_path, where=(("model", "b"), ("client", "u0"))) == list(range(3, 400, 6))
    assert select(tmp_path, where=(("session", "s1"), ("session", "s3"))) == [4, 5, 6, 7, 12, 13, 14, 15]


def test_where_that_matches_nothing_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        select(tmp_path, where=(("model", "c"),))
    assert caught.value.hint == "--where model=a; --where model=b"
    with pytest.raises(InputError) as caught:
        select(tmp_path, where=(("client", "nobody"),))
    assert "u1" not in f"{caught.value.message} {caught.value.why} {caught.value.hint}"


@pytest.mark.parametrize(
    ("since", "until", "first", "last"),
    [
        ("2023-11-14T22:13:30Z", None, 10, 399),
        (None, str(NOW + 10), 0, 9),
        ("2023-11-14 22:13:30", f"{NOW + 20}000", 10, 19),
    ],
)
def test_window(tmp_path: Path, since: str | None, until: str | None, first: int, last: int) -> None:
    kept = select(tmp_path, since=since, until=until)
    assert (kept[0], kept[-1], len(kept)) == (first, last, last - first + 1)


def test_window_of_relative_times(tmp_path: Path) -> None:
    rows = [{"arrived_at": i + 0.5, "prompt_tokens": i + 1} for i in range(100)]
    trace = read_lines(tmp_path, rows, options=ReadOptions(since="10s", until="1m"))
    assert (trace.prompt_tokens[0], trace.prompt_tokens[-1]) == (11, 60)


def test_share_takes_whole_sessions_and_follows_the_seed(tmp_path: Path) -> None:
    kept = select(tmp_path, log_share=Fraction(1, 4))
    sessions = {row // 4 for row in kept}
    assert kept == [row for row in range(400) if row // 4 in sessions]
    assert 10 <= len(sessions) <= 42  # of 100: within 4 standard deviations of 25
    assert kept == select(tmp_path, log_share=Fraction(1, 4))
    assert kept != select(tmp_path, log_share=Fraction(1, 4), seed=1)


@pytest.mark.parametrize("share", [Fraction(0), Fraction(3, 2), Fraction(-1, 2)])
def test_impossible_shares(share: Fraction) -> None:
    with pytest.raises(InputError, match="--log-share"):
        ReadOptions(log_share=share)
