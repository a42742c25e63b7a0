"""Cache, token budget and split under one setup: each alone, together and advised; measured and predicted.

    python -m benchmarks.three_ideas [--setup cpu|emulated] [--kind KIND] [--arm ARM] [--out three-ideas.jsonl]
                                     [--seconds N] [--quick] [--table]

On two cores with the real model, and on eight emulated GPUs. For each of four kinds of traffic the planner says
what to run; what it found best of each form is stripped to nothing (prefill first, no cache), to each idea
alone, and filled with all three, on the same devices. Each of these serves three loads: 0.7, 1 and 1.3 times
the goodput that is predicted of what is advised. The table shows good requests a second and device beside the
simulator's for the very same requests. A cell whose measurement a gate doubts is measured again, twice at most;
its last one counts, with a `?` where that is doubted too. On the emulated setup both rest on the same step
times, so that it tests the engine around them, not the step times.

Every plan and every cell is a line of `--out` as soon as it is there: run it again, after whatever ended it,
and it goes on. Lines of other code (engine, simulation, planner) are left alone, unless `--keep` says that the
newest still count. `--table` only prints.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from advisor.advice.search.hardware import Hardware  # noqa: E402 - needs the path above
from advisor.deploy.local import start_engine  # noqa: E402
from advisor.simulation.outcome import Outcome  # noqa: E402
from benchmarks._three_cell import Cell, measure_cell, warm_up  # noqa: E402
from benchmarks._three_plan import (  # noqa: E402
    CORES,
    advise_on,
    config_of,
    emulation_of,
    ground_of,
    layout_of,
    predict,
    survey,
)
from benchmarks._three_results import (  # noqa: E402
    ADVISED,
    ARMS,
    FACTORS,
    CellRecord,
    PlanRecord,
    Results,
    SetupRecord,
    table,
)
from benchmarks._three_traffic import Kind, SetupName, kinds  # noqa: E402
from engine.errors import AdviseError  # noqa: E402

TITLES = {"cpu": "Two cores, the real model", "emulated": "Eight emulated GPUs"}
TRIES = 3  # of a cell that a gate doubts
MOST_OPEN = 900  # requests of a cell; the engine takes 1,024 connections
CODE = ("engine", "advisor/simulation", "advisor/advice")
Measure = Callable[[str, Cell, Outcome], CellRecord]
Advise = Callable[[Kind, SetupRecord], PlanRecord]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to run; empty: all of it. `seconds`: of each cell, instead of its kind's own."""

    kinds: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    seconds: float | None = None
    quick: bool = False
    calibration: Path | None = None


def run(setup: SetupRecord, results: Results, wanted: Wanted, *, advise: Advise, measure: Measure) -> None:
    """Plan and measure whatever of a setup is wanted and not there yet."""
    for kind in kinds("cpu" if setup.setup == "cpu" else "emulated"):
        if wanted.kinds and kind.name not in wanted.kinds:
            continue
        same = {"setup": setup.setup, "code": setup.code, "seed": setup.seed, "kind": kind.name}
        plan = results.last(PlanRecord, digest=kind.digest, **same)
        if plan is None:
            _say(f"{setup.setup}, {kind.name}: planning")
            plan = advise(kind, setup)
            results.add(plan)
        hardware = _hardware(setup, kind)
        for arm in plan.arms:
            if not wanted.arms or arm in wanted.arms or (ADVISED in wanted.arms and arm == plan.advised):
                _run_arm(setup, kind, plan, arm, hardware, results, wanted, measure)


def _run_arm(
    setup: SetupRecord,
    kind: Kind,
    plan: PlanRecord,
    arm: str,
    hardware: Hardware,
    results: Results,
    wanted: Wanted,
    measure: Measure,
) -> None:
    """One configuration, at the loads that are missing, in one engine."""
    seconds = wanted.seconds or cell_seconds(kind, plan)
    cells = [Cell(kind, plan, arm, factor, seconds, CORES) for factor in FACTORS]
    cells = [cell for cell in cells if _tries_left(results, cell)]
    if not cells:
        return
    with _engine(setup, plan, arm, hardware) as url:
        warm_up(url, cells[0])
        for cell in cells:
            predicted = predict(kind, plan, layout_of(arm, plan.arms[arm]), hardware, cell.factor, seconds)
            while left := _tries_left(results, cell):
                record = measure(url, replace(cell, tried=TRIES - left), predicted)
                results.add(record)
                _say(
                    f"{setup.setup}, {kind.name}, {arm}, {cell.factor:g} x: {record.good} of {record.requests} "
                    f"good, {record.predicted_good} predicted; {record.wall_s:.0f} s {' '.join(record.red)}"
                )


def cell_seconds(kind: Kind, plan: PlanRecord) -> float:
    """How long a cell is sent: as its kind says, unless the engine might refuse some of so many requests."""
    most_s = MOST_OPEN * plan.time_scale / plan.rate_rps(FACTORS[-1])
    return min(kind.cell_s, float(int(most_s)))


def _hardware(setup: SetupRecord, kind: Kind) -> Hardware:
    return ground_of(setup).hardware(kind, setup.seed)


def _tries_left(results: Results, cell: Cell) -> int:
    """How often a cell may be measured yet; 0 once no gate doubts it."""
    tried = results.every(CellRecord, **cell.key)
    return TRIES - len(tried) if all(one.red for one in tried) else 0


@contextmanager
def _engine(setup: SetupRecord, plan: PlanRecord, arm: str, hardware: Hardware) -> Iterator[str]:
    """A running engine with the configuration of an arm; its URL."""
    ground, layout = ground_of(setup), layout_of(arm, plan.arms[arm])
    emulation = None if ground.on_cpu else emulation_of(layout, hardware, plan.time_scale)
    with start_engine(config_of(layout, ground), emulation=emulation) as engine:
        yield engine.url


def code_digest() -> str:
    """Names the code whose results may stand in one table."""
    digest = hashlib.sha256()
    for path in sorted(path for part in CODE for path in (ROOT / part).rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> int:
    """Run what is missing of the setups asked for, then print their tables."""
    given = _arguments()
    results = Results(given.out)
    wanted = Wanted(tuple(given.kind), tuple(given.arm), given.seconds, given.quick, given.calibration)
    try:
        for name in given.setup or get_args(SetupName):
            if not given.table:
                run(
                    _surveyed(name, results, wanted, given),
                    results,
                    wanted,
                    advise=advise_on,
                    measure=measure_cell,
                )
            command = f"python -m benchmarks.three_ideas --setup {name}"
            print(f"\n## {TITLES[name]}\n\n    {command}\n\n{table(results, name)}")
    except AdviseError as error:
        print(f"{error.message}: {error.why}" if error.why else error.message, file=sys.stderr)
        return error.exit_code
    return 0


def _surveyed(name: str, results: Results, wanted: Wanted, given: argparse.Namespace) -> SetupRecord:
    """What is known of a setup, measured where it is not."""
    code = {} if given.keep else {"code": code_digest()}
    known = results.last(SetupRecord, setup=name, seed=given.seed, **code)
    if known is None:
        _say(f"{name}: measuring what it stands on")
        known = survey(name, code_digest(), given.seed, quick=wanted.quick, calibration=wanted.calibration)
        results.add(known)
    return known


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.three_ideas",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    named = [kind.name for kind in kinds("cpu")]
    parser.add_argument("--setup", action="append", choices=get_args(SetupName), help="default: both")
    parser.add_argument("--kind", action="append", default=[], choices=named, help="default: all")
    parser.add_argument("--arm", action="append", default=[], choices=[*ARMS, ADVISED], help="default: all")
    parser.add_argument("--seconds", type=float, help="in which each cell is sent, instead of its kind's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path("three-ideas.jsonl"), help="results; what is there stays"
    )
    parser.add_argument("--quick", action="store_true", help="calibrate in seconds instead of minutes")
    parser.add_argument(
        "--calibration", type=Path, help="folder with step_times.yaml and host.yaml to use instead"
    )
    parser.add_argument(
        "--keep", action="store_true", help="go on with the newest results, whatever their code"
    )
    parser.add_argument("--table", action="store_true", help="only print the tables of what is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
