"""benchmarks/three_ideas.py: a cell counts what really was good, and a run goes on wherever it was ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from helpers.fake_server import Program, fake_server

from advisor.advice.host import HostCosts, save_host_costs
from advisor.deploy.calibrate import host_path, step_times_path
from advisor.simulation.deployment import Deployment, Pool
from advisor.simulation.from_trace import load_of
from advisor.simulation.outcome import Outcome
from advisor.simulation.simulate import simulate
from advisor.simulation.slo import Slo
from advisor.validation.client import Exchange
from advisor.validation.prompts import PromptFactory, expected_cached_tokens
from benchmarks import three_ideas
from benchmarks._three_cell import Cell, measure_cell, missed
from benchmarks._three_plan import ground_of, layout_of, predict, survey
from benchmarks._three_results import (
    ADVISED,
    ARMS,
    FACTORS,
    Arm,
    CellRecord,
    PlanRecord,
    Results,
    SetupRecord,
    table,
)
from benchmarks._three_traffic import Group, Kind, kinds
from engine.config import PoolConfig, RouterConfig
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.files import Key, save_calibrations
from engine.step_time.published import TableStepTime

SETUP = SetupRecord(
    setup="emulated", code="code", seed=0, at="2026-01-01T00:00:00", machine="here", words="words"
)
FIRST = kinds("emulated")[0]
S = 1_000_000_000  # nanoseconds


def arm(**pool: object) -> Arm:
    pools = (PoolConfig.model_validate({"kv_tokens": 100_000, **pool}).model_dump(mode="json"),)
    return Arm(words="words", pools=pools, router=RouterConfig().model_dump(mode="json"))


def plan_for(kind: Kind, setup: SetupRecord = SETUP, **change: object) -> PlanRecord:
    plan = PlanRecord(
        setup=setup.setup, code=setup.code, seed=setup.seed, kind=kind.name, digest=kind.digest, devices=2,
        goodput_rps=20.0, time_scale=1.0, verdict="change", advice="a layout", advised="together",
        arms={name: arm() for name in ARMS},
    )  # fmt: skip
    return msgspec.structs.replace(plan, **change)


def cell_record(cell: Cell, good: int = 5) -> CellRecord:
    plan = cell.plan
    return CellRecord(
        setup=plan.setup, code=plan.code, seed=plan.seed, kind=plan.kind, digest=plan.digest, arm=cell.arm,
        factor=cell.factor, seconds=cell.seconds, at="2026-01-01", requests=9, good=good, good_rate=0.5,
        predicted_good=6, predicted_rate=0.625, ttft_p90_s=None, predicted_ttft_p90_s=None, tpot_p90_s=None,
        predicted_tpot_p90_s=None, hit_rate=None, predicted_hit_rate=None, misses={}, red=(),
        client_share=0.1, router_share=0.2, wall_s=1.0,
    )  # fmt: skip


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells need no engine where nothing measures them."""

    monkeypatch.setattr(three_ideas, "_engine", lambda *_: nullcontext(""))
    monkeypatch.setattr(three_ideas, "_hardware", lambda *_: None)
    monkeypatch.setattr(three_ideas, "warm_up", lambda *_: None)
    monkeypatch.setattr(three_ideas, "predict", lambda *_: None)


def run(path: Path, measure: Callable[[str, Cell, Outcome], CellRecord], **wanted: object) -> Results:
    results = Results(path)
    three_ideas.run(
        SETUP, results, three_ideas.Wanted(**wanted), advise=lambda kind, _: plan_for(kind), measure=measure
    )
    return results


@pytest.mark.usefixtures("no_engine")
def test_a_run_that_is_ended_anywhere_goes_on_and_prints_the_same_table(tmp_path: Path) -> None:
    done: list[tuple[str, float]] = []

    def measure(_url: str, cell: Cell, _predicted: Outcome) -> CellRecord:
        done.append((cell.arm, cell.factor))
        return cell_record(cell, good=len(cell.arm))

    whole = run(tmp_path / "whole.jsonl", measure, kinds=(FIRST.name,))
    whole.add(SETUP)
    expected, first = table(whole, "emulated"), [*done]
    assert len(first) == len(set(first)) == len(ARMS) * len(FACTORS)
    content = (tmp_path / "whole.jsonl").read_bytes()
    for cut in (10, len(content) // 2, content.rindex(b"\n", 0, -1) - 7):  # a kill ends a file anywhere
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(content[:cut])
        had = {(one.arm, one.factor) for one in Results(path).records if isinstance(one, CellRecord)}
        done.clear()
        again = run(path, measure, kinds=(FIRST.name,))
        again.add(SETUP)
        assert done == [one for one in first if one not in had]
        assert table(Results(path), "emulated") == table(again, "emulated") == expected


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(("doubted", "measured"), [(0, 1), (1, 2), (9, 3)])
def test_a_cell_that_a_gate_doubts_is_measured_again_and_the_last_one_counts(
    doubted: int, measured: int, tmp_path: Path
) -> None:
    done: list[CellRecord] = []
    seeds: set[int] = set()

    def measure(_url: str, cell: Cell, _predicted: Outcome) -> CellRecord:
        seeds.add(cell.prompt_seed)
        red = ("clock_lag",) if cell.factor == 1.0 and len(done) < doubted + 1 else ()
        done.append(msgspec.structs.replace(cell_record(cell, good=len(done)), red=red))
        return done[-1]

    wanted = {"kinds": (FIRST.name,), "arms": ("nothing",)}
    results = run(tmp_path / "cells.jsonl", measure, **wanted)
    assert [one.factor for one in done].count(1.0) == measured
    assert len(seeds) == len(done)  # the engine would find the prompts of an earlier try in its cache
    assert results.last(CellRecord, factor=1.0) == done[measured]
    run(tmp_path / "cells.jsonl", measure, **wanted)
    assert len(done) == measured + 2  # nothing is left to do, doubted or not


@pytest.mark.usefixtures("no_engine")
def test_cells_of_other_code_traffic_or_length_are_measured_again(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    plan = plan_for(FIRST)
    cell = Cell(FIRST, plan, ARMS[0], 1.0, 2.0, 2)
    results.add(cell_record(replace(cell, plan=msgspec.structs.replace(plan, code="older"))))
    results.add(cell_record(replace(cell, plan=msgspec.structs.replace(plan, digest="other traffic"))))
    results.add(cell_record(replace(cell, seconds=3.0)))
    done = []
    three_ideas.run(
        SETUP,
        results,
        three_ideas.Wanted((FIRST.name,), (ARMS[0],), 2.0),
        advise=lambda kind, _: plan_for(kind),
        measure=lambda _url, cell, _predicted: done.append(cell.factor) or cell_record(cell),
    )
    assert tuple(done) == FACTORS


def test_the_table_has_measured_beside_predicted_and_marks_what_is_advised(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    plan = plan_for(FIRST, advised=ADVISED, arms={**{name: arm() for name in ARMS}, ADVISED: arm()})
    for record in (SETUP, plan):
        results.add(record)
    good = Cell(FIRST, plan, ADVISED, 1.3, 12.0, 2)
    results.add(cell_record(good))
    results.add(msgspec.structs.replace(cell_record(replace(good, factor=0.7)), red=("clock_lag",)))
    lines = table(results, "emulated").splitlines()
    # 9 requests in 12 s on 2 devices; where none was sent yet, the 20 a second that are planned.
    assert f"| **{FIRST.name}** | *offered* | 0.375 | 10 | 0.375 |" in lines
    assert "| | advised \\*: words | 0.5? / 0.625 |  | 0.5 / 0.625 |" in lines
    assert "| | nothing: words |  |  |  |" in lines
    assert "router took 20.0% (at most 20.0%) and client 10.0% (at most 10.0%) of the cores" in lines[-1]
    assert "clock_lag" in lines[-1]


def test_what_the_cpu_was_surveyed_with_comes_back_from_the_file(tmp_path: Path) -> None:
    keys = [Key("advise", "1", "cpu", "smollm2-135m-instruct", "bfloat16", cores) for cores in (2, 1)]
    models = [
        CalibratedStepTime(Coefficients(0.01, 0.0, 0.001, 1e-7, 0.002, 1e-6), 0.05, cores / 10, 90)
        for cores in (2, 1)
    ]
    save_calibrations(step_times_path(tmp_path), dict(zip(keys, models, strict=True)))
    save_host_costs(host_path(tmp_path), HostCosts(request_s=0.007, measured=True))
    Results(tmp_path / "results.jsonl").add(survey("cpu", "code", 0, quick=True, calibration=tmp_path))
    (setup,) = Results(tmp_path / "results.jsonl").records
    assert isinstance(setup, SetupRecord)
    ground = ground_of(setup)
    assert ground.calibrations == dict(zip(keys, models, strict=True))
    assert (ground.on_cpu, ground.dtype, ground.host.request_s) == (True, "bfloat16", 0.007)
    assert sorted(ground.hardware(kinds("cpu")[0], 0).step_times) == [1, 2]


@pytest.mark.parametrize("warm", [0.0, 0.5])
def test_an_emulated_cell_has_the_good_requests_that_the_simulation_has(warm: float, tmp_path: Path) -> None:
    """Of those that arrive after its first `warm`, whose rates are over the rest of its time."""
    kind = Kind("shared prefix", (Group(1.0, (16, 32), (4, 8)),), Slo(ttft_s=20.0, tpot_s=5.0), 1.0, warm)
    setup = survey("emulated", "code", 0, quick=True, calibration=None)
    plan = plan_for(kind, setup, devices=1, goodput_rps=12.0)
    hardware = ground_of(setup).hardware(kind, 0)
    results = Results(tmp_path / "results.jsonl")
    results.add(setup)
    results.add(plan)
    cell = Cell(kind, plan, "nothing", 1.0, kind.cell_s, 2)
    layout = layout_of("nothing", plan.arms["nothing"])
    with three_ideas._engine(setup, plan, "nothing", hardware) as url:
        three_ideas.warm_up(url, cell)
        record = measure_cell(url, cell, predict(kind, plan, layout, hardware, 1.0, kind.cell_s))
    judged = int((cell.trace.arrival_s >= warm).sum())
    assert record.requests == record.good == record.predicted_good == judged > 4
    assert (judged < len(cell.trace)) == (warm > 0)
    assert record.good_rate == record.predicted_rate == record.requests / (1 - warm)
    assert record.router_share is not None
    assert record.router_share > 0
    assert record.lag_p99_s is not None


@pytest.mark.parametrize(
    ("goodput_rps", "time_scale", "seconds"), [(10.0, 1.0, 16), (100.0, 1.0, 6), (100.0, 2.0, 13)]
)
def test_a_cell_has_no_more_requests_than_the_engine_has_connections(
    goodput_rps: float, time_scale: float, seconds: float
) -> None:
    """At 1.3 times 100 a second 900 come in 6.9 s, on a clock twice as slow in 13.8 s; a kind asks for 16."""
    plan = plan_for(FIRST, goodput_rps=goodput_rps, time_scale=time_scale)
    assert three_ideas.cell_seconds(FIRST, plan) == seconds


def test_a_replay_ends_once_nothing_that_is_open_can_be_good() -> None:
    kind = Kind("slow", (Group(1.0, (16, 32), (4, 4)),), Slo(ttft_s=0.3), 0.5)
    cell = Cell(kind, plan_for(kind, goodput_rps=12.0), "nothing", 1.0, 0.5, 2)
    load = load_of(cell.trace, 16)
    pool = Pool(PoolConfig(kv_tokens=10_000), TableStepTime({1: 10.0, 512: 20.0}, {1: 10.0, 64: 20.0}))
    idle = 'advise_requests_queued 0\nadvise_requests_running{instance="colocated-0"} 0\n'
    with fake_server(Program(ttft_s=60.0, tpot_s=0.01, metrics=[idle])) as url:
        began = time.monotonic()
        record = measure_cell(url, cell, simulate(load, Deployment((pool,))))
        assert time.monotonic() - began < 30
    assert record.good == 0
    assert record.misses == {"interrupted": len(load)}
    assert record.predicted_good == len(load)


def test_a_replay_waits_for_what_can_still_be_good() -> None:
    kind = Kind("slow", (Group(1.0, (16, 32), (4, 4)),), Slo(ttft_s=30.0), 0.5)
    cell = Cell(kind, plan_for(kind, goodput_rps=12.0), "nothing", 1.0, 0.5, 2)
    load = load_of(cell.trace, 16)
    pool = Pool(PoolConfig(kv_tokens=10_000), TableStepTime({1: 10.0, 512: 20.0}, {1: 10.0, 64: 20.0}))
    with fake_server(Program(ttft_s=1.3, tpot_s=0.01)) as url:
        assert measure_cell(url, cell, simulate(load, Deployment((pool,)))).good == len(load)


@pytest.mark.parametrize(
    ("stamps_s", "now_s", "lost"),
    [
        ([], 1.9, False),
        ([], 2.1, True),  # no first token within twice one second
        ([2.1], 2.2, True),
        ([1.0, 2.9, 4.8], 5.1, False),  # 3 gaps of twice 0.7 s: until 5.2
        ([1.0, 2.9, 4.8], 5.3, True),
        ([1.0, 3.1], 3.2, True),  # a gap over twice one second
        ([1.0, 2.9], 4.8, False),
        ([1.0, 2.9], 5.0, True),
    ],
)
def test_an_open_request_is_lost_with_its_first_missed_target(
    stamps_s: list[float], now_s: float, lost: bool
) -> None:
    exchange = Exchange(0, b"", due_ns=0, want_in=1, want_out=4, chunk_ns=[round(s * S) for s in stamps_s])
    assert missed(exchange, round(now_s * S), Slo(ttft_s=1.0, tpot_s=0.7, tbt_s=1.0), 2.0) == lost


@pytest.mark.parametrize("setup", ["cpu", "emulated"])
def test_more_and_faster_requests_of_a_kind_begin_with_the_same_ones(setup: str) -> None:
    for kind in kinds("cpu" if setup == "cpu" else "emulated"):
        few, many = kind.trace(20, 1.0, seed=3), kind.trace(400, 5.0, seed=3)
        assert few.blocks is not None
        assert many.blocks is not None
        assert np.array_equal(few.prompt_tokens, many.prompt_tokens[:20])
        assert np.array_equal(few.output_tokens, many.output_tokens[:20])
        assert np.array_equal(few.blocks.ids, many.blocks.ids[: len(few.blocks.ids)])
        assert np.allclose(few.arrival_s, 5.0 * many.arrival_s[:20])
        # The mean gap of 400 exponential ones is within four standard errors of it.
        assert abs(many.arrival_s[-1] / 400 * 5.0 - 1) < 4 / 400**0.5
        # All prompts behind a prefix but its first have just that in common with an earlier one.
        (first, *_) = kind.groups
        cached = expected_cached_tokens(PromptFactory(50_000, 1).build(many), 16)
        assert set(cached.tolist()) == {0, first.prefix_tokens}
        assert np.count_nonzero(cached) == (400 - first.prefixes if first.prefixes else 0)
