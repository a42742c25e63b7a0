"""What `accuracy` makes of its runs: attainment measured and predicted at each load, goodput, what is off.

The limits are those that the comparison was announced with, before anything was measured. Pure functions of the
records; who plans and who measures is `accuracy`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from benchmarks._three_results import Results

FACTORS = (0.5, 0.8, 1.0)  # of the predicted goodput: what is judged
BEYOND = (1.15, 1.3, 1.5, 1.75, 2.0)  # until the attainment asked for is missed
BELOW = (0.35, 0.25)  # where it is missed at the lowest
KNEE = 1.0
POINTS, GOODPUT, MOVED = (
    0.05,
    0.15,
    0.10,
)  # limits: attainment, goodput; how far step times are moved at the knee
FEWEST = 1000  # requests judged at each of `FACTORS`
_ROUNDING = 1e-9
HEADS = (
    "log", "load", "offered /s", "requests", "attainment: measured", "predicted", "points off",
    "steps +10 % / -10 %", "P90 TTFT ms", "predicted", "P90 TPOT ms", "predicted", "verdict",
)  # fmt: skip


class SetupRecord(msgspec.Struct, frozen=True, kw_only=True, tag="setup", tag_field="record"):
    """What all runs stand on."""

    code: str
    seed: int
    at: str
    machine: str
    words: str
    smoke: bool = False


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True, tag="plan", tag_field="record"):
    """The plan of a log, whose files lie in a folder of its name. Rates: requests/s of all devices."""

    code: str
    seed: int
    sample: str
    digest: str
    log_rps: float
    log_s: float
    goodput_rps: float  # the middle of its interval
    interval_rps: tuple[float, float]
    advice: str
    verdict: str
    attainment: float
    steps: str
    took_s: float
    fewest: int = FEWEST  # requests at each load that is judged


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, tag="run", tag_field="record"):
    """One replay. Good requests: as measured, as predicted, and with steps longer and shorter by `MOVED`.

    Predicted ones are means over simulations, hence no integers. `why`: of an INVALID one; it does not count.
    """

    code: str
    seed: int
    sample: str
    digest: str
    factor: float
    repeat: int
    requests: int
    length_s: float
    good: int
    predicted: float
    slower: float
    faster: float
    ttft_p90_s: tuple[float | None, float | None]  # measured, predicted
    tpot_p90_s: tuple[float | None, float | None]
    misses: dict[str, int]
    client_share: float | None
    wall_s: float
    at: str
    why: str | None = None


Record = SetupRecord | PlanRecord | RunRecord


@dataclass(frozen=True, slots=True)
class Load:
    """All valid runs of a log at one factor, summed."""

    factor: float
    runs: tuple[RunRecord, ...]

    @property
    def requests(self) -> int:
        """Judged requests."""
        return sum(run.requests for run in self.runs)

    @property
    def offered_rps(self) -> float:
        """Requests/s that were sent."""
        return self.requests / sum(run.length_s for run in self.runs)

    def share(self, of: str) -> float:
        """`good`, `predicted`, `slower` or `faster` of all requests."""
        return float(sum(getattr(run, of) for run in self.runs)) / self.requests

    @property
    def points(self) -> float:
        """Measured attainment less predicted."""
        return self.share("good") - self.share("predicted")

    @property
    def off(self) -> list[str]:
        """How it is not as predicted, a clause each; empty where it is, or where it is not judged."""
        if self.factor < KNEE and abs(self.points) > POINTS + _ROUNDING:
            return [f"attainment {100 * self.points:+.1f} points"]
        if self.factor == KNEE:
            low, high = sorted((self.share("slower"), self.share("faster")))
            if not low - _ROUNDING <= self.share("good") <= high + _ROUNDING:
                return [f"{self.share('good'):.1%} is not between {low:.1%} and {high:.1%}"]
        return []


def loads(results: Results, plan: PlanRecord) -> list[Load]:
    """The loads of a log that were measured, the lowest first."""
    same = {"code": plan.code, "seed": plan.seed, "sample": plan.sample, "digest": plan.digest}
    runs = [run for run in results.every(RunRecord, **same) if run.why is None]
    factors = sorted({run.factor for run in runs})
    return [Load(factor, tuple(run for run in runs if run.factor == factor)) for factor in factors]


def crossing(found: Sequence[Load], asked: float, of: str = "good") -> float | None:
    """The rate at which attainment falls below what is asked, by a straight line between loads; None: nowhere.

    As the DistServe authors read it. Of the lowest pair, where attainment does not fall all the way.
    """
    shares = [one.share(of) for one in found]
    for place in range(1, len(found)):
        before, after = shares[place - 1], shares[place]
        if before >= asked > after:
            low, high = found[place - 1].offered_rps, found[place].offered_rps
            return low + (high - low) * (before - asked) / (before - after)
    return None


def next_factor(found: Sequence[Load], asked: float) -> float | None:
    """The load to measure next so that the crossing is found; None: it is, or is given up."""
    if not found or crossing(found, asked) is not None:
        return None
    kept = found[-1].share("good") >= asked
    known = {one.factor for one in found}
    return next((factor for factor in (BEYOND if kept else BELOW) if factor not in known), None)


def faults(results: Results, samples: Sequence[str]) -> list[str]:
    """Why measurement and prediction do not agree, one sentence each; empty where they do."""
    made = plans(results)
    found = [f"{name}: not planned" for name in samples if name not in {plan.sample for plan in made}]
    for plan in made:
        known = loads(results, plan)
        counts = {one.factor: one.requests for one in known}
        found += [
            f"{plan.sample} at {factor:g} x: {counts.get(factor, 0):,} of {plan.fewest:,} requests"
            for factor in FACTORS
            if counts.get(factor, 0) < plan.fewest
        ]
        found += [f"{plan.sample} at {one.factor:g} x: {words}" for one in known for words in one.off]
        rate = crossing(known, plan.attainment)
        if rate is None:
            found.append(f"{plan.sample}: goodput was not found")
        elif abs(rate / plan.goodput_rps - 1) > GOODPUT + _ROUNDING:
            found.append(f"{plan.sample}: goodput {rate / plan.goodput_rps - 1:+.1%}")
    return found


def plans(results: Results) -> list[PlanRecord]:
    """The plans on the newest setup, one a log, in the order in which they were made."""
    setup = results.last(SetupRecord)
    if setup is None:
        return []
    newest: dict[str, PlanRecord] = {}
    for plan in results.every(PlanRecord, code=setup.code, seed=setup.seed):
        newest.setdefault(plan.sample, plan)
    return sorted(newest.values(), key=results.records.index)


def table(results: Results) -> str:
    """Markdown for docs/accuracy.md: a line a load, then goodput."""
    setup, made = results.last(SetupRecord), plans(results)
    if setup is None:
        return ""
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    for plan in made:
        lines += [f"| {' | '.join(_cells(plan, one))} |" for one in loads(results, plan)]
    heads = ("log", "goodput /s: planned", "interval", "measured", "off", "predicted of the replayed requests")
    lines += ["", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(_goodput(plan, loads(results, plan)))} |" for plan in made]
    invalid = [run for run in results.every(RunRecord, code=setup.code, seed=setup.seed) if run.why is not None]
    said = f"; {len(invalid)} INVALID runs were left out and run again" if invalid else ""
    notes = [_note(plan) for plan in made]
    footer = f"{setup.words}; {setup.machine}, code {setup.code}, seed {setup.seed}, {setup.at[:10]}{said}."
    return "\n".join([*lines, "", *notes, "", footer])


def _note(plan: PlanRecord) -> str:
    return f"- **{plan.sample}**: {plan.advice} ({plan.verdict.replace('_', ' ')}); {plan.steps}"


def _cells(plan: PlanRecord, one: Load) -> list[str]:
    judged = "" if one.factor > KNEE else "; ".join(one.off) or "agrees"
    times = [
        f"{1e3 * sum(known) / len(known):.0f}" if (known := [v for v in values if v is not None]) else ""
        for name in ("ttft_p90_s", "tpot_p90_s")
        for values in zip(*(getattr(run, name) for run in one.runs), strict=True)
    ]
    return [
        plan.sample,
        f"{one.factor:g} x",
        f"{one.offered_rps:.2f}",
        f"{one.requests:,}",
        f"{one.share('good'):.1%}",
        f"{one.share('predicted'):.1%}",
        f"{100 * one.points:+.1f}",
        f"{one.share('slower'):.1%} / {one.share('faster'):.1%}",
        *times,
        judged,
    ]


def _goodput(plan: PlanRecord, found: Sequence[Load]) -> list[str]:
    measured, predicted = (crossing(found, plan.attainment, of) for of in ("good", "predicted"))
    return [
        plan.sample,
        f"{plan.goodput_rps:.2f}",
        f"{plan.interval_rps[0]:.2f}-{plan.interval_rps[1]:.2f}",
        "not found" if measured is None else f"{measured:.2f}",
        "" if measured is None else f"{measured / plan.goodput_rps - 1:+.1%}",
        "" if predicted is None else f"{predicted:.2f}",
    ]
