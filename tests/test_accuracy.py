"""benchmarks/accuracy.py: what agrees and what does not, where goodput is read off, and a run that goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from advisor.samples import write_sample
from benchmarks import accuracy
from benchmarks._accuracy_results import (
    BEYOND,
    FACTORS,
    PlanRecord,
    Record,
    RunRecord,
    SetupRecord,
    crossing,
    faults,
    loads,
    next_factor,
    table,
)
from benchmarks._accuracy_samples import SAMPLES
from benchmarks._three_results import Results
from engine.errors import MachineError

SETUP = SetupRecord(code="c", seed=0, at="2026-01-01", machine="here", words="words")
PLAN = PlanRecord(
    code="c", seed=0, sample="chat", digest="d", log_rps=2.0, log_s=1200.0, goodput_rps=10.0,
    interval_rps=(9.0, 11.0), advice="a layout", verdict="change", attainment=0.9,
    steps="step times calibrated", took_s=1.0,
)  # fmt: skip


def replayed(factor: float, good: float, predicted: float, **change: Any) -> RunRecord:
    """500 requests, shares of them good; at 1 x predicted with longer and shorter steps 0.8 and 0.95."""
    one = RunRecord(
        code="c", seed=0, sample="chat", digest="d", factor=factor, repeat=0, requests=500,
        length_s=500 / (10.0 * factor), good=round(500 * good), predicted=500 * predicted, slower=400,
        faster=475, ttft_p90_s=(0.5, 0.4), tpot_p90_s=(0.05, None), misses={}, client_share=0.1,
        wall_s=1.0, at="2026-01-01",
    )  # fmt: skip
    return msgspec.structs.replace(one, **change)


def results(tmp_path: Path, *runs: RunRecord) -> Results:
    kept = Results(tmp_path / "a.jsonl", Record)
    for one in (SETUP, PLAN, *runs):
        kept.add(one)
    return Results(tmp_path / "a.jsonl", Record)


def whole(low: float = 1.0, middle: float = 0.97, knee: float = 0.92, beyond: float = 0.8) -> list[RunRecord]:
    """Two replays a load; predicted are 1, 0.97 and 0.9. Goodput crosses 0.9 at 10 to 11.5 requests/s."""
    shares = {0.5: (low, 1.0), 0.8: (middle, 0.97), 1.0: (knee, 0.9), 1.15: (beyond, 0.8)}
    return [replayed(f, *pair, repeat=repeat) for f, pair in shares.items() for repeat in range(2)]


def test_what_agrees_has_no_fault(tmp_path: Path) -> None:
    kept = results(tmp_path, *whole())
    assert faults(kept, ["chat"]) == []
    assert "| chat | 0.8 x | 8.00 | 1,000 | 97.0% | 97.0% | +0.0 |" in table(kept)
    # From 0.92 at 10/s to 0.8 at 11.5/s, 0.9 lies a sixth of the way.
    assert "| chat | 10.00 | 9.00-11.00 | 10.25 | +2.5% | 10.00 |" in table(kept)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"low": 0.94}, "chat at 0.5 x: attainment -6.0 points"),
        ({"middle": 0.91}, "chat at 0.8 x: attainment -6.0 points"),
        ({"knee": 0.96}, "chat at 1 x: 96.0% is not between 80.0% and 95.0%"),
        ({"knee": 0.78}, "chat at 1 x: 78.0% is not between 80.0% and 95.0%"),
        ({"beyond": 0.93}, "chat: goodput was not found"),
    ],
)
def test_each_limit_is_held(tmp_path: Path, change: dict[str, float], fault: str) -> None:
    assert fault in faults(results(tmp_path, *whole(**change)), ["chat"])


def test_five_points_are_within_the_limit(tmp_path: Path) -> None:
    assert faults(results(tmp_path, *whole(low=0.95, middle=0.92)), ["chat"]) == []


def test_goodput_off_by_more_than_15_percent_is_a_fault(tmp_path: Path) -> None:
    """0.9 between 0.95 at 5/s and 0.85 at 8/s: 6.5/s of the 10 planned."""
    kept = results(tmp_path, *whole(low=0.95, middle=0.85, knee=0.8))
    assert "chat: goodput -35.0%" in faults(kept, ["chat"])


def test_too_few_requests_and_a_missing_log_are_faults(tmp_path: Path) -> None:
    kept = results(tmp_path, *whole()[1:])
    assert faults(kept, ["chat", "agent"]) == ["agent: not planned", "chat at 0.5 x: 500 of 1,000 requests"]


def test_an_invalid_replay_does_not_count(tmp_path: Path) -> None:
    bad = replayed(0.5, 0.0, 1.0, repeat=2, why="send_lag")
    kept = results(tmp_path, *whole(), bad)
    assert faults(kept, ["chat"]) == []
    assert loads(kept, PLAN)[0].requests == 1000
    assert "1 INVALID" in table(kept)


def test_the_search_for_goodput_goes_up_or_down_until_it_is_between_two_loads(tmp_path: Path) -> None:
    kept = loads(results(tmp_path, *whole(beyond=0.95)), PLAN)
    assert next_factor(kept, 0.9) == 1.3
    assert crossing(kept, 0.9) is None
    (tmp_path / "x").mkdir()
    low = loads(results(tmp_path / "x", *whole()), PLAN)
    assert next_factor(low, 0.9) is None
    under = [one for one in low if one.factor == 1.15]  # 0.8
    assert next_factor(under, 0.9) == 0.35


@dataclass
class Fake:
    """Measures as told, and counts."""

    knee: float = 1.2
    asked: int = 0
    invalid: int = 0

    def __call__(
        self, _ready: Any, _url: str, factor: float, repeat: int, _tried: int, _fewest: int
    ) -> RunRecord:
        self.asked += 1
        why = "send_lag" if self.asked <= self.invalid else None
        return replayed(factor, 1.0 if factor < self.knee else 0.5, 1.0, repeat=repeat, requests=400, why=why)


READY: Any = SimpleNamespace(plan=PLAN, slo=SimpleNamespace(attainment=0.9))


def test_a_run_measures_until_there_is_enough_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    """1,000 requests in replays of 400 are three; beyond, 500 are two; the knee at 1.2 is behind 1.15."""
    kept, fake = results(tmp_path), Fake()
    accuracy.run(READY, kept, fake, "")
    assert {one.factor for one in loads(kept, PLAN)} == {*FACTORS, *BEYOND[:2]}
    assert fake.asked == 3 * len(FACTORS) + 2 * 2
    accuracy.run(READY, Results(tmp_path / "a.jsonl", Record), fake, "")
    assert fake.asked == 13  # nothing was left to do
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(b"".join(lines[:7]) + lines[7][:30])
    accuracy.run(READY, Results(cut, Record), fake, "")
    assert fake.asked == 13 + (15 - 7)


def test_an_invalid_replay_is_run_again_and_three_of_them_are_given_up(tmp_path: Path) -> None:
    fake = Fake(invalid=1)
    accuracy.run(READY, results(tmp_path), fake, "")
    assert fake.asked == 14
    (tmp_path / "x").mkdir()
    with pytest.raises(MachineError, match=r"no replay of chat at 0\.5 x is valid"):
        accuracy.run(READY, results(tmp_path / "x"), Fake(invalid=10**6), "")


def test_windows_of_repeats_lie_within_the_log_and_apart() -> None:
    bounds = [
        tuple(map(float, accuracy.window_of(PLAN, 120.0, repeat).split("..")))
        for repeat in range(accuracy.MOST_REPEATS)
    ]
    assert len(set(bounds)) == accuracy.MOST_REPEATS
    for start, end in bounds:
        assert start - 0.25 * 120.0 >= 0
        assert end <= PLAN.log_s
        assert end - start == pytest.approx(120.0)
    assert accuracy.window_of(PLAN, 1200.0, 0) == "all"


def test_four_sample_logs_of_their_kinds(tmp_path: Path) -> None:
    """Each holds the thousand requests that the planner needs; what its name says is in its lines."""
    assert len(SAMPLES) == len({sample.digest for sample in SAMPLES}) == 4
    for sample in SAMPLES:
        assert write_sample(tmp_path / sample.name, sample.service, 0) > 1000
        rows = [msgspec.json.decode(line) for line in (tmp_path / sample.name).read_bytes().splitlines()]
        words = np.array([sum(len(m["content"].split()) for m in row["request"]["messages"]) for row in rows])
        turns = np.array([len(row["request"]["messages"]) // 2 for row in rows])
        heads = len({row["request"]["messages"][0]["content"] for row in rows})
        if sample.name == "documents":
            assert heads == len(rows)
            assert 150 < np.median(words) < 320
        if sample.name in ("chat", "agent"):
            assert heads == 1
            assert turns.max() > 5
        if sample.name == "bursts":
            assert np.median(words) < 60
            assert turns.max() == 1


@pytest.mark.slow
def test_smoke_replays_a_plan_on_an_emulated_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--smoke", "--log", str(tmp_path / "a.jsonl"), "--work", str(tmp_path / "work")]
    assert accuracy.main(given) in (0, 1)
    kept = Results(tmp_path / "a.jsonl", Record)
    [plan] = kept.every(PlanRecord)
    for factor in FACTORS:
        [one] = [one for one in loads(kept, plan) if one.factor == factor]
        assert one.requests >= plan.fewest
        # As sent as planned, to the sessions that were drawn.
        assert one.offered_rps == pytest.approx(factor * plan.goodput_rps, rel=0.5)
    before = (tmp_path / "a.jsonl").read_bytes()
    accuracy.main([*given, "--keep"])
    assert (tmp_path / "a.jsonl").read_bytes() == before
    assert "| smoke | 0.8 x |" in capsys.readouterr().out
