"""Whether an emulated fleet does what the simulator says: four plans, three rates each, three runs at a rate.

    python -m benchmarks.rehearsal [--quick] [--only PLAN ...] [--time-scale K] [--out FILE] [--table]

For each plan the simulator says at which rates attainment is as wanted, on both sides of 90 %. At each rate the
real fleet is launched as `advise launch --emulate` does, and the very requests that were simulated are replayed
over HTTP as `advise validate` does; no two runs have the same arrivals or the same tokens. A run whose clock or
whose client was late is INVALID: it is said, not counted, and run again. Each run is one line of `--out`; what
is there is not run again. Ends with the table of docs/rehearsal.md; exit 1 where the two do not agree.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from advisor.deploy.launch import Launchable, launch
from advisor.deploy.rehearsal import rehearsal
from advisor.validation.options import Options
from advisor.validation.result import Result
from advisor.validation.validate import validate
from benchmarks._agreement import RUNS, Figures, Run, faults, off
from benchmarks._rehearsed import DRAWS, MOVED_S, REHEARSED, Rehearsed, expected, simulated
from engine.host import usable_cores

TRIES = 3  # of a run that was INVALID
BISECTIONS = 9
QUICK_REQUESTS = 150
HEADS = (
    "plan", "rate /s", "attainment: simulated", "measured", "points off", "by chance", "P90 TTFT s: simulated",
    "measured", "off", "by chance", "P90 TPOT ms: simulated", "measured", "clock lag P99 / median step",
    "verdict",
)  # fmt: skip


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times in seconds of the modelled clock, but `wall_s` and CPU seconds; `why`: of an INVALID one.

    `moved` numbers the runs at a rate: their arrivals and tokens.
    """

    plan: str
    wanted: float
    rate_rps: float
    moved: int
    requests: int
    time_scale: float
    simulated: tuple[float, float, float]  # attainment, P90 TTFT, P90 TPOT
    by_chance: tuple[float, float]  # standard deviations: of attainment, of P90 TTFT over its mean
    measured: tuple[float, float, float]
    refused: tuple[int, int]  # simulated, of the very arrivals of the log, and measured
    cached: tuple[int, int]  # prompt tokens that hit, likewise
    step_p50_s: float
    lag_p99_s: float
    send_lag_p99_s: float
    wall_s: float
    client_cpu_s: float
    router_cpu_s: float
    instances_cpu_s: float
    why: str | None = None
    at: str = ""

    @property
    def run(self) -> Run:
        """What is compared."""
        slo = named(self.plan).target.slo
        target = Figures(slo.attainment, slo.ttft_s or 0.0)
        return Run(self.plan, self.rate_rps, target, Figures(*self.simulated[:2]), Figures(*self.measured[:2]))


def main() -> int:
    """Run what is missing, then print the table."""
    given = _arguments()
    plans = [_as_given(plan, given) for plan in REHEARSED]
    done = read(given.out)
    for plan in plans:
        if not given.table and (not given.only or plan.name in given.only):
            _rehearse(plan, given, done)
    setting = {(plan.name, plan.requests, plan.time_scale) for plan in plans}
    done = [row for row in done if (row.plan, row.requests, row.time_scale) in setting]
    print(table(done))
    found = faults(row.run for row in done if row.why is None)
    print("\n".join(["", *found] if found else ["", "The simulation and the emulated fleet agree."]))
    return int(bool(found))


def _as_given(plan: Rehearsed, given: argparse.Namespace) -> Rehearsed:
    scale = given.time_scale or plan.time_scale
    return replace(plan, time_scale=scale, requests=QUICK_REQUESTS if given.quick else plan.requests)


def named(name: str) -> Rehearsed:
    """The plan of a name."""
    return next(plan for plan in REHEARSED if plan.name == name)


def read(path: Path) -> list[Row]:
    """The runs that are done; none where there is no file."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines()]


def _rehearse(plan: Rehearsed, given: argparse.Namespace, done: list[Row]) -> None:
    """The runs of a plan that are not done, written as they come."""
    with tempfile.TemporaryDirectory(prefix="advise-rehearsal-") as folder:
        what = plan.write(Path(folder))
        moves = range(1, (1 if given.quick else RUNS) + 1)
        for wanted, rate in rates(plan, what, moves):
            for moved in moves:
                key = (plan.name, wanted, rate, moved, plan.requests, plan.time_scale)
                for _ in range(TRIES):
                    if any(_key(row) == key for row in done if row.why is None):
                        break
                    row = _run(plan, what, wanted, rate, moved)
                    print(row, file=sys.stderr, flush=True)
                    with given.out.open("ab") as out:
                        out.write(msgspec.json.encode(row) + b"\n")
                    done.append(row)


def _key(row: Row) -> tuple[str, float, float, int, int, float]:
    return row.plan, row.wanted, row.rate_rps, row.moved, row.requests, row.time_scale


def rates(plan: Rehearsed, what: Launchable, moves: Sequence[int]) -> Iterator[tuple[float, float]]:
    """For each attainment that is wanted, the rate at which `moves` are simulated to have it; in tenths."""
    emulation = rehearsal(what, plan.target.gpu, plan.time_scale)
    for wanted in plan.wanted:
        low, high = plan.rates
        for _ in range(BISECTIONS):
            middle = (low * high) ** 0.5
            outcomes = [simulated(plan.trace(middle, moved), what.config, emulation) for moved in moves]
            reached = sum(outcome.attainment(plan.target.slo) for outcome in outcomes) / len(outcomes)
            low, high = (middle, high) if reached >= wanted else (low, middle)
        yield wanted, round(low, 1)


def _run(plan: Rehearsed, what: Launchable, wanted: float, rate: float, moved: int) -> Row:
    """Simulate the requests of one run, launch the fleet, replay them."""
    slo, trace = plan.target.slo, plan.trace(rate, moved)
    emulation = rehearsal(what, plan.target.gpu, plan.time_scale)
    predicted = simulated(trace, what.config, emulation)
    figures, by_chance = expected(trace, what.config, emulation, slo)
    began = time.monotonic()
    with launch(what, port=0, emulate=plan.target.gpu, time_scale=plan.time_scale) as launched:
        result = validate(
            trace,
            url=launched.engine.url,
            slo=slo,
            window="all",
            options=Options(seed=moved, block_size=what.config.pools[0].block_size, cores=usable_cores()),
        )
    rehearsed, cpu, latencies = result.rehearsal, result.cpu, result.latencies
    return Row(
        plan=plan.name,
        wanted=wanted,
        rate_rps=rate,
        moved=moved,
        requests=len(trace),
        time_scale=plan.time_scale,
        simulated=figures,
        by_chance=by_chance,
        measured=(
            result.score.attainment,
            latencies.ttft.p90 if latencies.ttft else 0.0,
            latencies.tpot.p90 if latencies.tpot else 0.0,
        ),
        refused=(int((~predicted.served).sum()), result.score.misses.get("http_429", 0)),
        cached=(int(predicted.cached_tokens.sum()), result.cached.measured_tokens if result.cached else 0),
        step_p50_s=(rehearsed.step_p50_s or 0.0) / plan.time_scale if rehearsed else 0.0,
        lag_p99_s=(rehearsed.lag_p99_s or 0.0) / plan.time_scale if rehearsed else 0.0,
        send_lag_p99_s=latencies.send_lag.p99 if latencies.send_lag else 0.0,
        wall_s=time.monotonic() - began,
        client_cpu_s=cpu.client_s if cpu else 0.0,
        router_cpu_s=(cpu.router_s or 0.0) if cpu else 0.0,
        instances_cpu_s=(cpu.instances_s or 0.0) if cpu else 0.0,
        why=_why_invalid(result),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _why_invalid(result: Result) -> str | None:
    """What was wrong with a measurement, or befell the fleet; None where it counts."""
    return result.reason if result.verdict == "INVALID" or result.incidents else None


def table(done: Sequence[Row]) -> str:
    """Markdown, a line a rate in the order of the plans."""
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    order = {plan.name: place for place, plan in enumerate(REHEARSED)}
    rows = sorted(done, key=lambda row: (order[row.plan], row.rate_rps, row.moved))
    for _, same in itertools.groupby(rows, key=lambda row: (row.plan, row.rate_rps)):
        lines.append(f"| {' | '.join(_cells(list(same)))} |")
    where = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    days = sorted({row.at[:10] for row in done})
    when = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
    chance = (
        f"Simulated: mean of {DRAWS} simulations, each arrival up to {MOVED_S * 1e3:g} ms of the wall clock "
        "late; by chance: their standard deviation"
    )
    return "\n".join([*lines, "", f"{chance}. {when}; {where}."])


def _cells(rows: Sequence[Row]) -> list[str]:
    good = [row for row in rows if row.why is None]
    invalid = len(rows) - len(good)
    first = rows[0]
    ttft = [row.measured[1] / row.simulated[1] - 1 for row in good]
    wrong = [words for row in good for words in off(row.run)]
    verdict = "; ".join(wrong) or ("agrees" if good else "no valid run")
    return [
        first.plan,
        f"{first.rate_rps:.1f}",
        _each(f"{row.simulated[0]:.1%}" for row in good),
        _each(f"{row.measured[0]:.1%}" for row in good),
        _each(f"{(row.measured[0] - row.simulated[0]) * 100:+.1f}" for row in good),
        _each(f"{100 * row.by_chance[0]:.1f}" for row in good),
        _each(f"{row.simulated[1]:.3f}" for row in good),
        _each(f"{row.measured[1]:.3f}" for row in good),
        _each(f"{one:+.1%}" for one in ttft),
        _each(f"{row.by_chance[1]:.1%}" for row in good),
        _each(f"{row.simulated[2] * 1e3:.1f}" for row in good),
        _each(f"{row.measured[2] * 1e3:.1f}" for row in good),
        _each(f"{row.lag_p99_s / row.step_p50_s:.1%}" for row in good if row.step_p50_s),
        verdict + (f" ({invalid} INVALID)" if invalid else ""),
    ]


def _each(words: Iterator[str]) -> str:
    return ", ".join(words)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearsal", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run a rate: proves nothing")
    parser.add_argument("--only", nargs="*", default=(), choices=[plan.name for plan in REHEARSED])
    parser.add_argument("--time-scale", type=float, help="instead of each plan's own")
    parser.add_argument(
        "--out", type=Path, default=Path("rehearsal.jsonl"), help="what is there is not run again"
    )
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
