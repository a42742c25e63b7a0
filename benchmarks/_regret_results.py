"""What `regret` makes of its cells: which of the grid was best, what share of its good rate the advice has.

    regret = 1 - good requests(advised) / good requests(best of the grid)

Who is best of several measurements was also lucky. So the best at a load is found with one seed and both are
measured again with others, the same for both; only these make the ratio. Where the advice itself was best there
is nothing to regret. Pure functions of the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from benchmarks._regret_traffic import kinds
from benchmarks._three_plan import CORES
from benchmarks._three_results import ADVISED, CellRecord, PlanRecord, Results, SetupRecord

FACTORS = (0.7, 0.9, 1.1)  # of the predicted goodput of the advice
FRESH = (1, 2)  # beyond the seed of the grid: with these the two are measured again
LIMITS = {"cpu": 0.10, "emulated": 0.05, "smoke": 1.0}  # announced before anything was measured
HEADS = ("traffic", "load", "best of the grid", "good: advised", "best", "again: advised", "best", "regret")


@dataclass(frozen=True, slots=True)
class Regret:
    """One load of a workload. `again`: good requests of advice and best on fresh seeds; None: not measured."""

    kind: str
    factor: float
    best: str
    once: tuple[int, int]
    again: tuple[int, int] | None
    red: bool

    @property
    def value(self) -> float | None:
        """0 where the advice is the best of the grid; below 0 where the best was that by luck."""
        if self.best == ADVISED:
            return 0.0
        if self.again is None:
            return None
        advised, best = self.again
        return 1 - advised / best if best else 0.0


def last_cell(
    results: Results, plan: PlanRecord, arm: str, factor: float, seed: int | None = None
) -> CellRecord | None:
    """The newest measurement of an arm at a load; `seed`: of the requests (None: those of the grid)."""
    return results.last(
        CellRecord,
        setup=plan.setup,
        code=plan.code,
        seed=plan.seed if seed is None else seed,
        kind=plan.kind,
        digest=plan.digest,
        arm=arm,
        factor=factor,
    )


def best_of(results: Results, plan: PlanRecord, factor: float) -> str | None:
    """The arm with the most good requests at a load, the advice where it has as many; None: some are open."""
    cells = {arm: last_cell(results, plan, arm, factor) for arm in plan.arms}
    found = {arm: cell.good for arm, cell in cells.items() if cell is not None}
    if len(found) < len(cells):
        return None
    most = max(found.values())
    return ADVISED if found[ADVISED] == most else next(arm for arm, good in found.items() if good == most)


def regrets(results: Results, plan: PlanRecord) -> Iterator[Regret]:
    """Those of a workload, as far as they are known."""
    for factor in FACTORS:
        best = best_of(results, plan, factor)
        if best is None:
            continue
        cells = [last_cell(results, plan, arm, factor) for arm in (ADVISED, best)]
        fresh = [
            [last_cell(results, plan, arm, factor, plan.seed + more) for more in FRESH]
            for arm in (ADVISED, best)
        ]
        known = [[cell for cell in some if cell is not None] for some in fresh]
        whole = all(len(some) == len(FRESH) for some in known)
        advised, top = (sum(cell.good for cell in some) for some in known)
        red = any(cell.red for some in (cells, *known) for cell in some if cell is not None)
        first, second = (0 if cell is None else cell.good for cell in cells)
        yield Regret(
            plan.kind, factor, best, (first, second), (advised, top) if whole and best != ADVISED else None, red
        )


def plans(results: Results, setup: str) -> tuple[SetupRecord | None, list[PlanRecord]]:
    """The newest survey of a setup and the plans made on it, in the order of the workloads."""
    newest = results.last(SetupRecord, setup=setup)
    if newest is None:
        return None, []
    same = {"setup": setup, "code": newest.code, "seed": newest.seed}
    found = [results.last(PlanRecord, kind=kind.name, digest=kind.digest, **same) for kind in kinds(setup)]
    return newest, [plan for plan in found if plan is not None]


def faults(results: Results, setup: str) -> list[str]:
    """Why the limit is not kept, one sentence each; empty where it is."""
    _, made = plans(results, setup)
    found = [f"{len(made)} of {len(kinds(setup))} workloads"] if len(made) < len(kinds(setup)) else []
    for plan in made:
        some = list(regrets(results, plan))
        if len(some) < len(FACTORS) or any(one.value is None for one in some):
            found.append(f"{plan.kind}: not all is measured")
        for one in some:
            if one.value is not None and one.value > LIMITS[setup]:
                found.append(f"{one.kind} at {one.factor:g} x: regret {one.value:.1%}")
            if one.red:
                found.append(f"{one.kind} at {one.factor:g} x: a gate is red")
    return found


def table(results: Results, setup: str) -> str:
    """Markdown for docs/regret.md: the regrets, then what the whole grid was measured to do."""
    newest, made = plans(results, setup)
    if newest is None:
        return ""
    every = [one for plan in made for one in regrets(results, plan)]
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}", *map(_row, every)]
    known = [one.value for one in every if one.value is not None]
    if known:
        lines += [
            "",
            f"Regret: mean {mean(known):.1%}, most {max(known):.1%}; the limit is {LIMITS[setup]:.0%}.",
        ]
    heads = ("traffic", "configuration", *(f"{factor:g} x" for factor in FACTORS))
    lines += ["", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for plan in made:
        lines += _grid(results, plan)
    lines += ["", *(_note(plan) for plan in made), "", _footer(results, newest, made)]
    return "\n".join(lines)


def _row(one: Regret) -> str:
    again = ("", "") if one.again is None else one.again
    value = "" if one.value is None else f"{one.value:.1%}"
    parts = (one.kind, f"{one.factor:g} x", one.best, *one.once, *again, value + "?" * one.red)
    return f"| {' | '.join(map(str, parts))} |"


def _grid(results: Results, plan: PlanRecord) -> Iterator[str]:
    offered = " | ".join(_offered(results, plan, factor) for factor in FACTORS)
    yield f"| **{plan.kind}** | *offered* | {offered} |"
    for name, arm in plan.arms.items():
        cells = [last_cell(results, plan, name, factor) for factor in FACTORS]
        mark = " \\*" if name == ADVISED else ""
        yield f"| | {arm.words}{mark} | {' | '.join(map(_cell, cells))} |"


def _offered(results: Results, plan: PlanRecord, factor: float) -> str:
    cell = last_cell(results, plan, ADVISED, factor)
    if cell is None:
        return f"{plan.rate_rps(factor) / plan.devices:.3g}"
    return f"{cell.requests * plan.time_scale / (cell.seconds - cell.warm_s) / plan.devices:.3g}"


def _cell(cell: CellRecord | None) -> str:
    return "" if cell is None else f"{cell.good_rate:.3g}{'?' * bool(cell.red)} / {cell.predicted_rate:.3g}"


def _note(plan: PlanRecord) -> str:
    kind = next(one for one in kinds(plan.setup) if one.name == plan.kind)
    slower = "" if plan.time_scale == 1 else f", on a clock {plan.time_scale:g} times slower"
    verdict = plan.verdict.replace("_", " ")
    return (
        f"- **{kind.name}**: {kind.words}; {kind.targets}. Advised: {plan.advice} ({verdict}), "
        f"predicted goodput {plan.goodput_rps:.3g} requests/s{slower}."
    )


def _footer(results: Results, newest: SetupRecord, made: list[PlanRecord]) -> str:
    cells = [one for plan in made for one in results.every(CellRecord, kind=plan.kind, code=plan.code)]
    days = sorted({cell.at[:10] for cell in cells}) or [newest.at[:10]]
    when = " to ".join(dict.fromkeys([days[0], days[-1]]))
    return (
        "Good requests/s and device, measured / as the planner's simulation has the same requests; "
        f"\\* advised; ? a gate of validation is red; {newest.words}; {newest.machine}, {CORES} cores used, "
        f"code {newest.code}, seed {newest.seed}, {when}."
    )
