"""The plan by simulation: everything that is simulated for a plan, in order, and what came of it.

    layouts -> search -> attribution -> decision -> flip points, mean trap, GPUs needed

Owns that order and what each part costs; makes no sentence for the user and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from advisor.advice.backtest import Backtest, Measured, backtest
from advisor.advice.chosen import Closer, look_closer
from advisor.advice.rules.capacity import DISPERSION_10S
from advisor.advice.rules.split import SHORT_PROMPT, SMALL_MODEL
from advisor.advice.search import attribution
from advisor.advice.search.bounds import SUSTAINED, predicted_rps
from advisor.advice.search.deadline import in_time, missed, soonest
from advisor.advice.search.decide import Decision, decide, in_both
from advisor.advice.search.fleet import MOST_GPUS, fewest_gpus, multiplied, smallest
from advisor.advice.search.flips import find_flips
from advisor.advice.search.hardware import Hardware, hardware_of
from advisor.advice.search.judge import (
    AtRate,
    Goal,
    Job,
    Judged,
    at_rate,
    figures,
    longest_s,
    simulate_layout,
)
from advisor.advice.search.layout import Layout, budgets, colocated, default_layout, instances, layouts
from advisor.advice.search.run import Judges
from advisor.advice.search.search import FINAL, Found, Search, best_first
from advisor.advice.situation import Situation
from advisor.advice.sizing import DEGREES
from advisor.advice.steps import Calibrations
from advisor.advice.target import Target
from advisor.simulation.from_trace import with_assumed_hits
from advisor.simulation.load import Load
from advisor.simulation.scaling import busiest, time_scaled
from advisor.simulation.simulate import Turns
from engine.errors import InputError

PART = 800  # requests of a simulation for the attribution table and for moved step times (ours)
PART_TOLERANCE = 0.1
NEARLY = 0.95  # of a log's span: at a lower rate its first or last session may be left out
COMPARED = 120_000  # requests of a simulation for the interval at most: 20 minutes of 100 a second (ours)
PEAK_S = 600.0  # the busiest window, that GPUs are counted for
HEADROOM = 1.1  # of its rate, and of the seconds of a batch with a deadline (ours)
EARLY_TURNS = 0.05  # of turns sent before the turn before has ended: beyond, turns that wait decide too (ours)

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Simulated:
    """All that was simulated for one plan.

    `needed_rps`: the mean rate to plan for. `waiting`: what would be decided if each turn waited for the one
    before it; None where hardly a turn would come too early. `batch_s`: with objective `throughput`, seconds
    until all of the log, there at once, has ended; of the soonest layout where none does by the deadline.
    """

    found: Found
    control: Judged
    decision: Decision
    attribution: tuple[tuple[str, Judged], ...]
    needed_rps: float
    goal: Goal
    requests: int
    at_log_rate: AtRate | None = None
    closer: Closer | None = None
    waiting: Decision | None = None
    flips: tuple[dict[str, Any], ...] = ()
    gpus_needed: int | None = None
    mean_trap: dict[str, Any] | None = None
    random: Judged | None = None
    backtest: Backtest | None = None
    batch_s: float | None = None


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """What may be said about simulating.

    `control` is what runs now, None: the bundled engine's defaults; `measured` what the log says of it, for the
    backtest. `rate`: plan for so many times the log's arrivals. `processes`: None for one a core.
    `progress(what, requests)` hears of every simulation.
    """

    control: Layout | None = None
    measured: Measured | None = None
    seed: int = 0
    rate: float = 1.0
    processes: int | None = None
    progress: Progress | None = None


def simulate_plan(
    s: Situation, load: Load, calibrations: Calibrations, options: SimulationOptions
) -> Simulated:
    """Search, compare and decide for a situation, on its log's requests. Raises MachineError, InputError."""
    goal = Goal(s.target.slo, _objective(s.target), seed=options.seed, deadline_s=s.target.deadline_s)
    if goal.deadline_s is not None and options.rate != 1.0:
        raise InputError(
            "--rate is for arrivals, and a batch with a deadline is there at once",
            hint="--rate 1x; for a batch of two such logs --deadline 3h in place of 6h",
        )
    if s.hit_basis == "cached tokens of the log" and s.hit:
        load = with_assumed_hits(load, s.hit)
    hardware, error, tested = hardware_of(s, calibrations), s.steps.use.error_p90, None
    if options.control is not None and options.measured is not None:
        tested = backtest(load, options.measured, options.control, hardware)
        if tested.helps:
            hardware = hardware.moved(prefill=tested.prefill_factor, decode=tested.decode_factor)
            error = tested.error_after
    load = load if options.rate == 1.0 else time_scaled(load, options.rate)
    with Judges(load, goal, options.processes) as judges:
        work = _Work(s, load, goal, hardware, error, judges.map, options.progress)
        found = work.run(options.control or default_layout(hardware, work.gpus))
    return replace(found, backtest=tested)


class _Work:
    """The parts of one plan."""

    def __init__(
        self,
        s: Situation,
        load: Load,
        goal: Goal,
        hardware: Hardware,
        error: float | None,
        judge: Callable[[Iterable[Job]], Iterable[Judged]],
        progress: Progress | None,
    ) -> None:
        self._s, self._load, self._goal, self._hardware = s, load, goal, hardware
        self._error = error
        self._ask, self._progress = judge, progress
        self._what = "searching"
        self._reuse = any(load.runs)
        self._finalists: tuple[Judged, ...] = ()
        self._needed_rps = len(load) / load.span_s if load.span_s > 0 else 0.0
        self.gpus = s.gpus

    def run(self, control: Layout) -> Simulated:
        every = layouts(self._hardware, self.gpus, reuse=self._reuse)
        search = Search(self._judge, self._hardware, self._s.mean, self._goal, reuse=self._reuse)
        found = search.run(every, (control,))
        if self._goal.deadline_s is not None:
            found = replace(found, finalists=tuple(self._whole(found.finalists)))
        self._finalists = found.finalists
        table = self._attribution(found)
        self._what = "checking"
        decision = self._decide(found.finalists, control)
        plan = Simulated(
            found, _of(control, found.finalists), decision, table, self._needed_rps, self._goal, len(self._load)
        )
        if decision.chosen is None or decision.chosen.low_rps <= 0:
            return plan if found.best is None or self._goal.deadline_s is None else self._late(plan)
        if self._goal.deadline_s is None:
            plan = self._at_log_rate(plan, decision.chosen, search)
        return self._further(plan, decision.chosen, search, every)

    def _late(self, plan: Simulated) -> Simulated:
        """What it would take to end the batch by the deadline, which no layout does."""
        finalists, deadline_s = plan.found.finalists, self._goal.deadline_s or math.inf
        promising = best_first(in_time(finalists, math.inf))[0]
        needs = self._fewest(promising)
        why = missed(finalists, deadline_s, needs, on_cpu=self._hardware.on_cpu)
        decision = replace(plan.decision, why=why)
        return replace(plan, decision=decision, gpus_needed=needs, batch_s=soonest(finalists).batch_s)

    def _at_log_rate(self, plan: Simulated, chosen: Judged, search: Search) -> Simulated:
        """The chosen layout at the rate to plan for; where turns would overlap, what holds if they wait."""
        outcome = simulate_layout(self._load, chosen.layout, self._hardware, self._goal.turns)
        rates = figures(self._needed_rps, outcome, self._goal.slo)
        closer = look_closer(self._load, chosen.layout, self._hardware, self._goal, outcome, PEAK_S)
        plan = replace(plan, at_log_rate=rates, closer=closer)
        if rates.early_turns <= EARLY_TURNS or not len(self._load.waiting_turns):
            return plan
        self._what = "turns that wait"
        again = search.once_more(plan.found.finalists, "causal")
        waiting = self._decide(again, plan.control.layout, "causal")
        return replace(plan, waiting=waiting, decision=in_both(plan.decision, waiting))

    def _further(self, plan: Simulated, chosen: Judged, search: Search, every: Sequence[Layout]) -> Simulated:
        """What would change the answer, the GPUs that it needs, what other ways of planning give."""
        self._what = "flip points"
        rest = [one for one in plan.found.finalists if one is not chosen][:2]
        reuse = None if self._s.hit is None else self._reuse
        flips = find_flips(self._judge, self._goal, self._hardware, chosen, rest, reuse=reuse)
        needs = self._fewest(chosen)
        batch_s = self._whole([chosen])[0].batch_s if self._goal.objective == "throughput" else None
        trap = self._mean_trap(needs) if self._goal.deadline_s is None else None
        self._what = "random search"
        rival = search.random(every, plan.found.simulated, self._goal.seed)
        return replace(
            plan, flips=tuple(flips), gpus_needed=needs, batch_s=batch_s, mean_trap=trap, random=rival
        )

    def _decide(self, finalists: Sequence[Judged], control: Layout, turns: Turns = "open") -> Decision:
        deadline_s, needed_rps = self._goal.deadline_s, self._needed_rps
        if deadline_s is not None:
            # What is late has no rate left, and any rate of the others is enough.
            finalists, needed_rps = in_time(finalists, deadline_s), math.ulp(0.0)
        return decide(
            finalists, _of(control, finalists), self._goal, self._hardware,
            error=self._error, requests=len(self._load), needed_rps=needed_rps, weak_split=self._weak_split(),
            again=lambda hardware, some: self._again(hardware, some, turns),
            longer=lambda some, length_s: self._longer(some, length_s, turns),
        )  # fmt: skip

    def _judge(self, jobs: Sequence[Job]) -> list[Judged]:
        done = []
        for one in self._ask(jobs):
            done.append(one)
            if self._progress is not None:
                self._progress(self._what, one.simulated)
        return done

    def _job(self, layout: Layout, rps: float, requests: int, hardware: Hardware | None = None) -> Job:
        return Job(layout, hardware or self._hardware, requests, max(rps, 1e-3), PART_TOLERANCE)

    def _again(self, hardware: Hardware, some: Sequence[Layout], turns: Turns) -> list[Judged]:
        deadline_s = self._goal.deadline_s
        part = PART if deadline_s is None else 0
        jobs = [self._job(one, self._known_rps(one), part, hardware) for one in some]
        judged = self._judge([replace(job, turns=turns) for job in jobs])
        return judged if deadline_s is None else in_time(judged, deadline_s)

    def _longer(self, some: Sequence[Judged], length_s: float, turns: Turns) -> Sequence[Judged]:
        """Once more on one part for all of them, of so many seconds at least; as they are if that was all."""
        if all(graded.span_s >= NEARLY * self._load.span_s for one in some for graded in one.graded):
            return some
        slowest, fastest = min(one.low_rps for one in some), max(one.low_rps for one in some)
        length_s = max(length_s, FINAL.requests / slowest)
        length_s = min(length_s, COMPARED / fastest, longest_s(self._load, fastest))
        jobs = [
            replace(self._job(one.layout, one.low_rps, 0), graded=True, length_s=length_s, turns=turns)
            for one in some
        ]
        return self._judge(jobs)

    def _whole(self, judged: Sequence[Judged]) -> list[Judged]:
        """Layouts judged by throughput on all of the log, where that was on a part of it; best first."""
        parts = [one for one in judged if one.simulated < len(self._load)]
        whole = [one for one in judged if one.simulated >= len(self._load)]
        return best_first([*whole, *self._judge([self._job(one.layout, one.low_rps, 0) for one in parts])])

    def _known_rps(self, layout: Layout) -> float:
        """The goodput found for a layout; 0 for one that was not looked at."""
        return next((one.low_rps for one in self._finalists if one.layout == layout), 0.0)

    def _attribution(self, found: Found) -> tuple[tuple[str, Judged], ...]:
        """Each idea alone and together, with the settings that the search found."""
        if found.best is None:
            return ()
        judged = (*found.finalists, *found.others)
        coloc, split = (attribution.best_of_kind(judged, split=kind) for kind in (False, True))
        if coloc is None:
            return ()
        self._what = "attribution"
        rows = attribution.rows(coloc.layout, None if split is None or split.low_rps <= 0 else split.layout)
        jobs = [
            self._job(layout, (split if layout.split and split is not None else coloc).low_rps, PART)
            for _, layout in rows
        ]
        return tuple(zip((name for name, _ in rows), self._judge(jobs), strict=True))

    def _weak_split(self) -> bool:
        """Rules 8c and 9: evidence is against a split for small models, short prompts or bursty arrivals."""
        s = self._s
        bursty = (s.workload.arrivals.dispersion.get("10") or 0.0) > DISPERSION_10S
        return s.shape.parameters < SMALL_MODEL or s.uncached_p50 < SHORT_PROMPT or bursty

    def _fewest(self, best: Judged) -> int | None:
        """The fewest GPUs, in whole fleets of its proportions, on which a layout does what is asked, with room.

        That is to keep the targets in the busiest ten minutes, or to end a batch by its deadline; None where
        `MOST_GPUS` do not.
        """
        layout, deadline_s, batch_s = best.layout, self._goal.deadline_s, best.batch_s or math.inf
        if self._hardware.on_cpu:
            return layout.gpus if deadline_s is None or batch_s <= deadline_s else None
        if deadline_s is not None:
            times = layout.gpus // smallest(layout).gpus
            guess = math.ceil(min(times * HEADROOM * batch_s / deadline_s, MOST_GPUS))
            return fewest_gpus(layout, lambda more: self._ends_by(more, deadline_s), guess)
        if self._goal.objective == "throughput":
            return layout.gpus
        peak = busiest(self._load, PEAK_S)
        rate = HEADROOM * len(peak) / max(1.0, min(PEAK_S, self._load.span_s))

        def enough(more: Layout) -> bool:
            found = at_rate(self._job(more, rate, 0), peak, self._goal, rate)
            return found.attainment >= self._goal.slo.attainment

        return fewest_gpus(layout, enough)

    def _ends_by(self, layout: Layout, deadline_s: float) -> bool:
        (whole,) = self._judge([self._job(layout, 0.0, 0)])
        return HEADROOM * (whole.batch_s or math.inf) <= deadline_s

    def _mean_trap(self, needs: int | None) -> dict[str, Any] | None:
        """The fewest GPUs by mean lengths and an even rate, and what the log makes of that."""
        hardware, traffic, slo = self._hardware, self._s.mean, self._goal.slo
        if hardware.on_cpu or not self._load.span_s:
            return None
        rate = self._needed_rps
        units = [
            colocated(hardware, 1, tp, budget, "least_loaded", pp=pp)
            for tp, pp in instances(hardware, max(self.gpus, max(DEGREES)))
            for budget in budgets(pp)
            if hardware.fits(tp, budget, pp)
        ]
        bounds = [(predicted_rps(unit, hardware, traffic, slo) / SUSTAINED, unit) for unit in units]
        counted = [(max(1, math.ceil(rate / bound)), bound, unit) for bound, unit in bounds if bound > 0]
        if not counted:
            return None
        count, _, unit = min(counted, key=lambda one: (one[0] * one[2].gpus, -one[1]))
        found = at_rate(self._job(multiplied(unit, count), rate, 0), self._load, self._goal, rate)
        return {
            "answer": {"gpus": count * unit.gpus, "basis": "mean lengths, evenly spaced requests"},
            "replay": {
                "attainment": found.attainment,
                "ttft_p90_s": found.ttft_p90_s,
                "tpot_p90_s": found.tpot_p90_s,
                "gpus_needed": needs,
            },
        }


def _of(layout: Layout, judged: Sequence[Judged]) -> Judged:
    return next(one for one in judged if one.layout == layout)


def _objective(target: Target) -> Literal["goodput", "tbt", "throughput"]:
    """Without latency targets only throughput is left to ask for."""
    slo = target.slo
    return "throughput" if slo.ttft_s is None and slo.gap_s is None else target.objective
