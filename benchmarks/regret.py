"""What is lost by following the advice: its good rate beside the best of a grid of other configurations.

    python -m benchmarks.regret [--setup cpu|emulated] [--only WORKLOAD ...] [--out regret.jsonl]
                                [--plan-only] [--table] [--quick] [--smoke]

On two cores with the real model, three workloads and five alternatives; on eight emulated GPUs with step times
that the planner has not seen (it plans with its roofline, the engine sleeps a fit to measured steps of another
engine), six workloads and eight alternatives. Each configuration serves the same requests at 0.7, 0.9 and 1.1
times the goodput predicted of the advice. The best of the grid at a load and the advice are then measured again
with fresh seeds, and these make the regret. A cell that a gate doubts is measured again, twice at most.

Every plan and every cell is a line of `--out` as soon as it is there: run it again, after whatever ended it,
and it goes on. Exit 1 where a regret is over the limit or something is open. `--smoke` tries all of it out in
seconds on an emulation that is 1.2 times slower than planned, and proves nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from advisor.advice.search.hardware import Hardware  # noqa: E402 - needs the path above
from advisor.deploy.local import start_engine  # noqa: E402
from advisor.simulation.outcome import Outcome  # noqa: E402
from benchmarks._regret_plan import advise_on, ground, slept, survey  # noqa: E402
from benchmarks._regret_results import FACTORS, FRESH, best_of, faults, table  # noqa: E402
from benchmarks._regret_traffic import kinds  # noqa: E402
from benchmarks._three_cell import Cell, measure_cell, warm_up  # noqa: E402
from benchmarks._three_plan import CORES, config_of, emulation_of, layout_of, predict  # noqa: E402
from benchmarks._three_results import ADVISED, CellRecord, PlanRecord, Results, SetupRecord  # noqa: E402
from benchmarks._three_traffic import Kind  # noqa: E402
from benchmarks.three_ideas import MOST_OPEN, TRIES, code_digest  # noqa: E402
from engine.errors import AdviseError  # noqa: E402

TITLES = {
    "cpu": "Two cores, the real model",
    "emulated": "Eight emulated GPUs, foreign step times",
    "smoke": "Smoke",
}
SILICON = ROOT.parent / "shared" / "silicon"
Measure = Callable[[str, Cell, Outcome], CellRecord]
Advise = Callable[[Kind, SetupRecord], PlanRecord]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to run; no `kinds`: all. `plan_only`: measure nothing. `tries`: of a cell that a gate doubts."""

    kinds: tuple[str, ...] = ()
    plan_only: bool = False
    tries: int = TRIES


def run(setup: SetupRecord, results: Results, wanted: Wanted, *, advise: Advise, measure: Measure) -> None:
    """Plan and measure whatever of a setup is wanted and not there yet: the grid first, then its best again."""
    for kind in kinds(setup.setup):
        if wanted.kinds and kind.name not in wanted.kinds:
            continue
        same = {"setup": setup.setup, "code": setup.code, "seed": setup.seed, "kind": kind.name}
        plan = results.last(PlanRecord, digest=kind.digest, **same)
        if plan is None:
            _say(f"{setup.setup}, {kind.name}: planning")
            plan = advise(kind, setup)
            results.add(plan)
        if wanted.plan_only:
            continue
        planned = ground(setup).hardware(kind, setup.seed)
        for arm in plan.arms:
            cells = [_cell(kind, plan, arm, factor) for factor in FACTORS]
            _run_arm(setup, planned, cells, results, wanted.tries, measure)
        for arm, cells in _again(kind, plan, results).items():
            _say(f"{setup.setup}, {kind.name}: {arm} again")
            _run_arm(setup, planned, cells, results, wanted.tries, measure)


def _again(kind: Kind, plan: PlanRecord, results: Results) -> dict[str, list[Cell]]:
    """The cells with fresh seeds: of each load the advice and the best of the grid, where they are not one."""
    cells: dict[str, list[Cell]] = {}
    for factor in FACTORS:
        best = best_of(results, plan, factor)
        for arm in () if best in (None, ADVISED) else (ADVISED, best):
            fresh = [msgspec.structs.replace(plan, seed=plan.seed + more) for more in FRESH]
            cells.setdefault(arm, []).extend(_cell(kind, one, arm, factor) for one in fresh)
    return cells


def _cell(kind: Kind, plan: PlanRecord, arm: str, factor: float) -> Cell:
    """A cell of its kind's length, unless the engine might refuse some of so many requests."""
    most_s = MOST_OPEN * plan.time_scale / plan.rate_rps(FACTORS[-1])
    return Cell(kind, plan, arm, factor, min(kind.cell_s, float(int(most_s))), CORES)


def _run_arm(
    setup: SetupRecord, planned: Hardware, cells: Sequence[Cell], results: Results, tries: int, measure: Measure
) -> None:
    """The cells of one configuration that are missing, in one engine."""
    cells = [cell for cell in cells if _tries_left(results, cell, tries)]
    if not cells:
        return
    with _engine(setup, cells[0], planned) as url:
        warm_up(url, cells[0])
        for cell in cells:
            layout = layout_of(cell.arm, cell.plan.arms[cell.arm])
            predicted = predict(cell.kind, cell.plan, layout, planned, cell.factor, cell.seconds)
            while left := _tries_left(results, cell, tries):
                record = measure(url, replace(cell, tried=tries - left), predicted)
                results.add(record)
                _say(
                    f"{setup.setup}, {cell.kind.name}, {cell.arm}, {cell.factor:g} x: {record.good} of "
                    f"{record.requests} good, {record.predicted_good} predicted; {record.wall_s:.0f} s "
                    f"{' '.join(record.red)}"
                )


def _tries_left(results: Results, cell: Cell, tries: int) -> int:
    """How often a cell may be measured yet; 0 once no gate doubts it."""
    tried = results.every(CellRecord, **cell.key)
    return max(0, tries - len(tried)) if all(one.red for one in tried) else 0


@contextmanager
def _engine(setup: SetupRecord, cell: Cell, planned: Hardware) -> Iterator[str]:
    """A running engine with the configuration of a cell, its steps as they are and not as planned; its URL."""
    on, layout = ground(setup), layout_of(cell.arm, cell.plan.arms[cell.arm])
    emulation = None
    if not on.on_cpu:
        emulation = emulation_of(layout, slept(setup, planned), cell.plan.time_scale, on.gpu)
    with start_engine(config_of(layout, on), emulation=emulation) as engine:
        yield engine.url


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing of the setups asked for, then print their tables."""
    given = _arguments(arguments)
    results, wrong = Results(given.out), []
    setups = ["smoke"] if given.smoke else given.setup or ["cpu", "emulated"]
    try:
        for name in setups:
            if not given.table:
                wanted = Wanted(tuple(given.only), given.plan_only, 1 if given.smoke else TRIES)
                run(_surveyed(name, results, given), results, wanted, advise=advise_on, measure=measure_cell)
            command = f"python -m benchmarks.regret --setup {name}"
            print(f"\n## {TITLES[name]}\n\n    {command}\n\n{table(results, name)}")
            wrong += faults(results, name)
    except AdviseError as error:
        print(f"{error.message}: {error.why}" if error.why else error.message, file=sys.stderr)
        return error.exit_code
    print("\n".join(["", *wrong] if wrong else ["", "Every regret is within its limit."]))
    return int(bool(wrong))


def _surveyed(name: str, results: Results, given: argparse.Namespace) -> SetupRecord:
    """What is known of a setup, measured where it is not."""
    code = {} if given.keep else {"code": code_digest()}
    known = results.last(SetupRecord, setup=name, seed=given.seed, **code)
    if known is None:
        _say(f"{name}: measuring what it stands on")
        known = survey(
            name,
            code_digest(),
            given.seed,
            quick=given.quick,
            calibration=given.calibration,
            silicon=given.silicon,
        )
        results.add(known)
    return known


def _say(said: str) -> None:
    print(said, file=sys.stderr, flush=True)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.regret",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    named = list(dict.fromkeys(kind.name for setup in ("cpu", "emulated") for kind in kinds(setup)))
    parser.add_argument("--setup", action="append", choices=("cpu", "emulated"), help="default: both")
    parser.add_argument("--only", nargs="*", default=[], choices=named, help="workloads; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("regret.jsonl"), help="results; what is there stays")
    parser.add_argument("--quick", action="store_true", help="calibrate in seconds instead of minutes")
    parser.add_argument(
        "--calibration", type=Path, help="folder with step_times.yaml and host.yaml to use instead"
    )
    parser.add_argument("--silicon", type=Path, default=SILICON, help="folder of measured step times")
    parser.add_argument(
        "--keep", action="store_true", help="go on with the newest results, whatever their code"
    )
    parser.add_argument("--plan-only", action="store_true", help="plan and measure nothing")
    parser.add_argument("--table", action="store_true", help="only print the tables of what is there")
    parser.add_argument("--smoke", action="store_true", help="seconds, on a small emulation: proves nothing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
