"""Other rates of one Load: whole nested sessions, the rate, the burstiness and the hits that theory gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers.workload_traces import azure, mooncake

from advisor.simulation.from_trace import load_of
from advisor.simulation.load import Load
from advisor.simulation.scaling import Window, busiest, scaled, time_scaled
from engine.request import Run

FACTORS = (0.1, 0.3, 0.55, 0.9, 1.0, 1.2, 1.7, 2.0, 2.6, 3.0)


def make_load(sessions: int, seed: int = 0) -> Load:
    """Chats of one to eight turns that begin at random within an hour.

    All share page 0, every ten share pages 1 to 3, all turns of one their history.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for session in range(sessions):
        arrival_s = rng.uniform(0, 3600)
        for turn in range(rng.integers(1, 9)):
            runs = (Run("system", 0, 1), Run(f"tools {session % 10}", 1, 4))
            runs += tuple(Run(f"chat {session} {past}", 4 + 2 * past, 6 + 2 * past) for past in range(turn + 1))
            rows.append((arrival_s, session, turn, runs, float(rng.exponential(20))))
            arrival_s += 10 + rows[-1][-1]
    rows.sort(key=lambda row: row[0])
    place = {(row[1], row[2]): index for index, row in enumerate(rows)}
    _, number = np.unique([row[1] for row in rows], return_inverse=True)
    return Load(
        arrival_s=np.array([row[0] for row in rows]),
        prompt_tokens=np.array([16 * row[3][-1].stop + 5 for row in rows]),
        output_tokens=rng.integers(1, 100, len(rows)),
        runs=tuple(row[3] for row in rows),
        block_size=16,
        session=number.astype(np.int64),
        parent=np.array([place.get((row[1], row[2] - 1), -1) for row in rows]),
        think_s=np.array([row[4] if row[2] else np.nan for row in rows]),
    )


Chat = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]


def chats(load: Load) -> dict[int, list[int]]:
    """Rows of each session."""
    rows: dict[int, list[int]] = {}
    for row, session in enumerate(load.session.tolist()):
        rows.setdefault(session, []).append(row)
    return rows


def shape(load: Load, rows: list[int], starts: bool = False) -> Any:
    """What stays of a session wherever it is: lengths and gaps; with `starts` where it is, too."""
    first = load.arrival_s[rows[0]]
    gaps = tuple(np.round(load.arrival_s[rows] - first, 6).tolist())
    lengths = tuple(load.prompt_tokens[rows].tolist()), tuple(load.output_tokens[rows].tolist())
    return (*lengths, gaps, round(float(first), 6)) if starts else (*lengths, gaps)


def counts(load: Load) -> dict[Any, int]:
    """How often there is a session of each shape."""
    found: dict[Any, int] = {}
    for rows in chats(load).values():
        key = shape(load, rows)
        found[key] = found.get(key, 0) + 1
    return found


@pytest.mark.parametrize("factor", FACTORS)
def test_sessions_stay_whole(factor: float):
    load = make_load(300)
    result = scaled(load, factor, 1)
    before, after = counts(load), counts(result)
    assert set(after) <= set(before)
    for key, count in after.items():
        assert int(factor) * before[key] <= count <= int(np.ceil(factor)) * before[key]
    assert np.all(np.diff(result.arrival_s) >= 0)
    assert result.arrival_s[0] >= load.arrival_s[0]
    assert result.arrival_s[-1] <= load.arrival_s[-1] + 1e-6
    assert sorted(chats(result)) == list(range(len(chats(result))))
    for rows in chats(result).values():
        assert result.parent[rows].tolist() == [-1, *rows[:-1]]
        assert np.isnan(result.think_s[rows[0]])
        assert np.isfinite(result.think_s[rows[1:]]).all()


@pytest.mark.parametrize("factor", FACTORS)
def test_the_rate_is_the_factor_to_within_a_session(factor: float):
    # At most half of the longest session, of 8, for each of the parts that are not whole.
    load = make_load(300)
    assert len(scaled(load, factor, 3)) == pytest.approx(factor * len(load), abs=4)


def test_rates_nest():
    load = make_load(300)
    seen: set[Any] = set()
    for factor in FACTORS:
        result = scaled(load, factor, 5)
        now = {shape(result, rows, starts=True) for rows in chats(result).values()}
        assert len(now) == len(chats(result))
        assert seen <= now
        seen = now


def test_one_seed_gives_one_load_and_another_another():
    load = make_load(100)
    for factor in (0.5, 2.5):
        one, same, other = (scaled(load, factor, seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one.arrival_s, same.arrival_s)
        assert one.runs == same.runs
        assert len(one) != len(other) or not np.array_equal(one.arrival_s, other.arrival_s)


def keys(load: Load, prefix: str) -> set[Any]:
    """Keys that come from those of `make_load` that begin like this."""
    found = {run.key for runs in load.runs for run in runs}
    return {key for key in found if (key if isinstance(key, str) else key[-1]).startswith(prefix)}


def test_copies_share_what_sessions_share_and_nothing_else():
    load = make_load(100)
    result = scaled(load, 3.0, 0)
    assert keys(result, "system") == {"system"}
    assert keys(result, "tools") == keys(load, "tools")
    assert len(keys(result, "chat")) == 3 * len(keys(load, "chat"))
    owner: dict[Any, int] = {}
    for session, runs in zip(result.session.tolist(), result.runs, strict=True):
        for run in runs[2:]:
            assert owner.setdefault(run.key, session) == session


def hit_pages(load: Load) -> int:
    """Pages that an earlier request had, without limit; keys of these loads have one length."""
    seen: set[Any] = set()
    hits = 0
    for runs in load.runs:
        hits += sum(run.stop - run.start for run in runs if run.key in seen)
        seen.update(run.key for run in runs)
    return hits


def test_hits_of_copies_are_those_of_their_sessions_and_of_what_all_share():
    # Pages less the first use of each key: shared keys are new once, those of a chat once a copy.
    load = make_load(100)
    pages = sum(runs[-1].stop for runs in load.runs)
    shared = 1 + 3 * 10
    private = pages - shared - hit_pages(load)
    assert hit_pages(scaled(load, 3.0, 0)) == 3 * pages - shared - 3 * private
    assert hit_pages(scaled(load, 0.5, 0)) / sum(
        runs[-1].stop for runs in scaled(load, 0.5, 0).runs
    ) == pytest.approx(hit_pages(load) / pages, abs=0.02)


def dispersion(arrival_s: npt.NDArray[np.float64], window_s: float) -> float:
    """Variance over mean of counts in consecutive windows, the last one dropped."""
    count = np.bincount(((arrival_s - arrival_s[0]) // window_s).astype(np.int64))[:-1]
    return float(count.var() / count.mean())


def test_bursts_stay_bursts(shared: Path):
    # traces/README.md: variance over mean is 71.6 at 10 s. Copies shifted apart add both; of requests left out
    # at random, with p kept, it is 1 + p (71.6 - 1). The mean of seeds, as shifts may meet.
    load = load_of(azure(shared, "code"), 16)
    assert dispersion(load.arrival_s, 10) == pytest.approx(71.6, abs=0.05)
    doubled = [dispersion(scaled(load, 2.0, seed).arrival_s, 10) for seed in range(20)]
    assert np.mean(doubled) == pytest.approx(71.6, rel=0.1)
    halved = [dispersion(scaled(load, 0.5, seed).arrival_s, 10) for seed in range(5)]
    assert np.mean(halved) == pytest.approx(1 + 0.5 * 70.6, rel=0.05)
    assert dispersion(time_scaled(load, 2.0).arrival_s, 5) == pytest.approx(71.6, abs=0.05)


def test_mooncake_copies_hit_as_often(shared: Path):
    load = load_of(mooncake(shared), 512)
    result = scaled(load, 2.0, 0)
    assert len(result) == 2 * len(load)
    assert sum(map(len, result.runs)) == 2 * sum(map(len, load.runs))
    shared_keys = {run.key for run in load.runs[0]} & {run.key for run in result.runs[0]}
    assert shared_keys  # the first block of the trace is in every prompt
    assert len({run.key for runs in result.runs for run in runs}) > 1.5 * len(
        {run.key for runs in load.runs for run in runs}
    )


def test_time_scaled_to_a_rate(shared: Path):
    # The issue: Azure code, first 2,000 requests, scaled to 4 requests a second.
    load = load_of(azure(shared, "code"), 16).take(np.arange(2000))
    result = time_scaled(load, 4 * load.span_s / len(load))
    assert len(result) / result.span_s == pytest.approx(4)
    assert result.arrival_s[0] == load.arrival_s[0]


def test_the_busiest_window_is_the_one_of_all_with_the_most_requests():
    load = make_load(200)
    result = busiest(load, 120)
    most = max(
        int(np.sum((load.arrival_s >= at) & (load.arrival_s < at + 120))) for at in load.arrival_s.tolist()
    )
    assert len(result) == most
    assert result.span_s < 120
    assert len(busiest(load, 1e9)) == len(load)
    assert result.parent.max() < len(result)


def test_of_equally_busy_windows_the_one_with_the_most_tokens_counts():
    load = make_load(50).take(np.arange(4))
    load = type(load)(
        arrival_s=np.array([0.0, 1.0, 100.0, 101.0]),
        prompt_tokens=np.array([10, 10, 10, 11]),
        output_tokens=np.ones(4, dtype=np.int64),
        runs=((),) * 4,
        block_size=16,
        session=np.arange(4),
        parent=np.full(4, -1),
        think_s=np.full(4, np.nan),
    )
    assert busiest(load, 10).arrival_s.tolist() == [100.0, 101.0]


def test_nothing_scales_to_nothing_and_no_rate_is_an_error():
    load = make_load(3)
    assert len(scaled(load, 1e-9, 0)) > 0
    empty = load.take(np.arange(0))
    assert len(scaled(empty, 2.0, 0)) == len(busiest(empty, 60)) == 0
    with pytest.raises(ValueError, match="scale"):
        scaled(load, 0.0, 0)


@pytest.mark.parametrize("factor", [0.4, 1.0, 1.3, 2.0, 4.6])
def test_a_window_of_another_rate_is_what_comes_in_it(factor: float) -> None:
    load, window = make_load(120), Window(1000.0, 1300.0)
    whole, part = scaled(load, factor, 2), scaled(load, factor, 2, window)
    inside = np.flatnonzero(window.holds(whole.arrival_s))
    assert 0 < len(inside) < len(whole)
    expected = whole.take(inside)
    for column in ("arrival_s", "prompt_tokens", "output_tokens", "parent"):
        assert getattr(part, column).tolist() == getattr(expected, column).tolist()
    assert part.runs == expected.runs
    assert sorted(chats(part).values()) == sorted(chats(expected).values())
