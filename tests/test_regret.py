"""benchmarks/regret.py: the best of the grid is measured again before the ratio, and a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from advisor.advice.search.hardware import Hardware
from advisor.simulation.outcome import Outcome
from benchmarks import regret
from benchmarks._regret_plan import ALTERNATIVES, grid, ground, slept, survey
from benchmarks._regret_results import FACTORS, FRESH, faults, regrets, table
from benchmarks._regret_traffic import kinds
from benchmarks._silicon import Silicon
from benchmarks._three_cell import Cell
from benchmarks._three_results import ADVISED, Arm, CellRecord, PlanRecord, Results, SetupRecord
from engine.config import PoolConfig, RouterConfig
from engine.step_time.model import StepShape

SETUP = SetupRecord(
    setup="emulated", code="code", seed=0, at="2026-01-01T00:00:00", machine="here", words="words"
)
ARMS = (ADVISED, "a", "b")
Good = Mapping[tuple[str, int], int]  # of 100 requests, by arm and seed; another load has as many


def plan_for(setup: SetupRecord) -> Callable[..., PlanRecord]:
    def advise(kind: object, _setup: SetupRecord) -> PlanRecord:
        pools = (PoolConfig(kv_tokens=100_000).model_dump(mode="json"),)
        arm = Arm(words="words", pools=pools, router=RouterConfig().model_dump(mode="json"))
        return PlanRecord(
            setup=setup.setup, code=setup.code, seed=setup.seed, kind=kind.name, digest=kind.digest, devices=2,
            goodput_rps=20.0, time_scale=1.0, verdict="change", advice="a layout", advised=ADVISED,
            arms=dict.fromkeys(ARMS, arm),
        )  # fmt: skip

    return advise


def cell_record(cell: Cell, good: int, red: tuple[str, ...] = ()) -> CellRecord:
    return CellRecord(
        **cell.key, at="2026-01-01", requests=100, good=good, good_rate=good / 10, predicted_good=90,
        predicted_rate=9.0, ttft_p90_s=None, predicted_ttft_p90_s=None, tpot_p90_s=None,
        predicted_tpot_p90_s=None, hit_rate=None, predicted_hit_rate=None, misses={}, red=red,
        client_share=0.1, router_share=0.2, wall_s=1.0,
    )  # fmt: skip


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells need no engine where nothing measures them."""
    nothing = SimpleNamespace(hardware=lambda *_: None)
    monkeypatch.setattr(regret, "_engine", lambda *_: nullcontext(""))
    monkeypatch.setattr(regret, "ground", lambda *_: nothing)
    monkeypatch.setattr(regret, "warm_up", lambda *_: None)
    monkeypatch.setattr(regret, "predict", lambda *_: None)


def run(path: Path, good: Good, measured: list[Cell], red: tuple[str, ...] = ()) -> Results:
    results = Results(path)

    def measure(_url: str, cell: Cell, _predicted: Outcome) -> CellRecord:
        measured.append(cell)
        return cell_record(cell, good[cell.arm, cell.plan.seed], red)

    wanted = regret.Wanted(kinds=("chat",))
    regret.run(SETUP, results, wanted, advise=plan_for(SETUP), measure=measure)
    return results


def of_chat(results: Results) -> list[float | None]:
    plan = results.last(PlanRecord, kind="chat")
    assert plan is not None
    return [one.value for one in regrets(results, plan)]


LUCKY = {(ADVISED, 0): 80, ("a", 0): 95, ("b", 0): 70} | {
    (arm, seed): good for seed in FRESH for arm, good in ((ADVISED, 81), ("a", 90))
}


@pytest.mark.usefixtures("no_engine")
def test_the_ratio_is_of_fresh_seeds_alone(tmp_path: Path) -> None:
    """95 of the grid was luck: again it has 90, the advice 81, so that a tenth is lost."""
    results = Results(tmp_path / "r.jsonl")
    measured: list[Cell] = []
    results.add(SETUP)
    results = run(tmp_path / "r.jsonl", LUCKY, measured)
    assert of_chat(results) == [pytest.approx(0.1)] * 3
    again = [(cell.arm, cell.factor, cell.plan.seed) for cell in measured[len(ARMS) * len(FACTORS) :]]
    assert sorted(again) == sorted((arm, f, seed) for arm in (ADVISED, "a") for f in FACTORS for seed in FRESH)
    assert any("regret 10.0%" in one for one in faults(results, "emulated"))
    text = table(results, "emulated")
    assert "| chat | 0.9 x | a | 80 | 95 | 162 | 180 | 10.0% |" in text
    assert "most 10.0%; the limit is 5%" in text


@pytest.mark.usefixtures("no_engine")
def test_paired_cells_have_the_same_requests_and_fresh_ones_have_others(tmp_path: Path) -> None:
    measured: list[Cell] = []
    run(tmp_path / "r.jsonl", LUCKY, measured)
    by_seed: dict[tuple[float, int], set[bytes]] = {}
    for cell in measured:
        by_seed.setdefault((cell.factor, cell.plan.seed), set()).add(cell.trace.arrival_s.tobytes())
    assert all(len(some) == 1 for some in by_seed.values())
    assert len(set.union(*by_seed.values())) == len(FACTORS) * (1 + len(FRESH))
    assert len({cell.prompt_seed for cell in measured}) == len(measured)  # none meets another's cache


@pytest.mark.usefixtures("no_engine")
def test_where_the_advice_is_best_there_is_nothing_to_regret(tmp_path: Path) -> None:
    measured: list[Cell] = []
    results = run(tmp_path / "r.jsonl", {(ADVISED, 0): 95, ("a", 0): 95, ("b", 0): 70}, measured)
    assert len(measured) == len(ARMS) * len(FACTORS)
    assert of_chat(results) == [0.0] * 3


@pytest.mark.usefixtures("no_engine")
def test_a_best_that_was_luck_gives_a_regret_below_zero(tmp_path: Path) -> None:
    good = LUCKY | {("a", seed): 54 for seed in FRESH}
    assert of_chat(run(tmp_path / "r.jsonl", good, [])) == [pytest.approx(-0.5)] * 3


@pytest.mark.usefixtures("no_engine")
def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    """Of each cut of the file the rest is measured, and no cell twice."""
    whole: list[Cell] = []
    results = run(tmp_path / "whole.jsonl", LUCKY, whole)
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    for cut in (1, 5, 12, len(lines)):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(b"".join(lines[:cut]) + (lines[cut][:20] if cut < len(lines) else b""))
        rest: list[Cell] = []
        again = run(path, LUCKY, rest)
        assert len(rest) == len(lines) - cut
        assert of_chat(again) == of_chat(results)


@pytest.mark.usefixtures("no_engine")
def test_a_doubted_cell_is_measured_three_times_and_then_is_a_fault(tmp_path: Path) -> None:
    measured: list[Cell] = []
    Results(tmp_path / "r.jsonl").add(SETUP)
    results = run(tmp_path / "r.jsonl", LUCKY, measured, red=("clock_lag",))
    assert len(measured) == 3 * (len(ARMS) * len(FACTORS) + 2 * len(FACTORS) * len(FRESH))
    assert any("a gate is red" in one for one in faults(results, "emulated"))


def test_what_is_open_is_a_fault(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl")
    results.add(SETUP)
    assert faults(results, "emulated") == ["0 of 6 workloads"]


def test_six_workloads_and_eight_alternatives_three_and_five_on_cores() -> None:
    assert (len(kinds("emulated")), ALTERNATIVES["emulated"]) == (6, 8)
    assert (len(kinds("cpu")), ALTERNATIVES["cpu"]) == (3, 5)
    hardware = planned_on(msgspec.structs.replace(SETUP, dtype="fp8"))
    for reuse in (False, True):
        found = list(grid(hardware, 8, reuse=reuse))
        distinct = {repr((one.pools, one.router)) for one in found}
        assert len(found) == len(distinct) == ALTERNATIVES["emulated"] + 1  # one may be the advice
        assert all(one.gpus == 8 for one in found)
        assert {pool.tp for one in found for pool in one.pools} == {2, 4, 8}
        assert {one.split for one in found} == {True, False}


def planned_on(setup: SetupRecord) -> Hardware:
    return replace(ground(setup), requests=1000).hardware(kinds("emulated")[0], 0)


def test_the_emulation_sleeps_measured_steps_that_the_planner_has_not_seen(shared: Path) -> None:
    """Of the rows themselves: half within 6 %, nine of ten within 20 %; the planner's own are others."""
    silicon = shared / "silicon"
    setup = survey("emulated", "code", 0, quick=True, calibration=None, silicon=silicon)
    planned = planned_on(setup)
    real = slept(msgspec.json.decode(msgspec.json.encode(setup), type=SetupRecord), planned)
    for tp in (1, 2, 4, 8):
        shapes, seconds = Silicon(silicon).table("trtllm09-h100", "llama2-70b", "fp8", tp)
        errors = sorted(
            abs(real.step_time(tp).seconds(shape) / second - 1)
            for shape, second in zip(shapes, seconds, strict=True)
        )
        assert errors[len(errors) // 2] < 0.06
        assert errors[len(errors) * 9 // 10] < 0.20
        step = StepShape((), 16, 16 * 500)
        assert abs(real.step_time(tp).seconds(step) / planned.step_time(tp).seconds(step) - 1) > 0.02


@pytest.mark.slow
def test_smoke_measures_a_plan_and_an_alternative(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.jsonl"
    assert regret.main(["--smoke", "--out", str(out)]) in (0, 1)  # 1: a gate doubts a cell here
    cells = Results(out).every(CellRecord)
    assert {(cell.arm, cell.factor) for cell in cells} == {
        (a, f) for a in (ADVISED, "budget 64") for f in FACTORS
    }
    assert all(cell.good == cell.requests == cell.predicted_good > 0 for cell in cells)
    before = out.read_bytes()
    regret.main(["--smoke", "--keep", "--out", str(out)])
    assert out.read_bytes() == before  # nothing was left to do
    assert "| smoke | 0.9 x | advised |" in capsys.readouterr().out
