"""Tables and sentences of a plan and of what was measured on the log, for the page.

Owns the wording; every number comes from the Analysis. What is not known is absent.
"""

from __future__ import annotations

import math
from typing import Any

from advisor.advice.analysis import Analysis
from advisor.advice.control import PREFIX
from advisor.advice.plan import Candidate, Plan
from advisor.report.grid import Grid
from advisor.report.plan import DEFAULTS, moved, promise
from advisor.report.rows import seconds
from advisor.report.words import count, plural, rate, share
from engine.config import PoolConfig

_HEADLINES = {
    "change": "Change to {}",
    "keep_defaults": "Keep {}",
    "undecided": "Undecided; best so far is {}",
    "hosted": "Rent a hosted API; on GPUs of your own, {}",
}


def headline(analysis: Analysis) -> str:
    """The plan's verdict in words."""
    plan = analysis.plan
    if plan is None:
        return "Measured; no plan"
    if plan.chosen is None:
        asked = "keeps the targets" if plan.target.deadline_s is None else "ends by the deadline"
        return f"Infeasible: no layout {asked}"
    chosen = "the defaults" if plan.chosen == DEFAULTS else plan.chosen
    return _HEADLINES[plan.verdict].format(chosen)


def reasons(analysis: Analysis) -> list[str]:
    """Why, and what it is for."""
    plan = analysis.plan
    if plan is None:
        return [analysis.plan_reason] if analysis.plan_reason else []
    told = [] if plan.simulation is None else [plan.simulation.why]
    margin = plan.margin or {}
    ratio, low, high = (margin.get(name) for name in ("ratio", "low", "high"))
    if ratio is not None and math.isfinite(ratio):
        between = "no interval" if low is None or high is None else f"95 %: {low:.2f} to {high:.2f}"
        told.append(f"{ratio:.2f}x the goodput per GPU of what runs now ({between})")
    target = plan.target
    told.append(f"for {target.model} on {target.gpus} x {target.gpu}: {promise(target)}")
    return told


def next_step(analysis: Analysis) -> str:
    """What to do with the plan."""
    plan = analysis.plan
    if plan is None:
        return "advise analyze LOG --here, or --model NAME --gpu NAME for a plan"
    if plan.chosen is None:
        return "a looser --ttft or --tpot, a faster GPU, or a smaller model"
    if plan.runs_on.get("advise") == "yes":
        return "advise launch   (then advise validate)"
    return f"advise launch --emulate {plan.target.gpu}   (a rehearsal)"


def facts(analysis: Analysis) -> list[tuple[str, str]]:
    """The figures that a reader looks for first."""
    log, plan = analysis.log, analysis.plan
    found = [
        ("requests in the log", count(log.requests)),
        ("mean rate", rate(analysis.arrivals.rate_rps)),
        ("prompt tokens that repeat", share(analysis.sharing.hit_rate_tokens)),
    ]
    if plan is not None:
        choice = plan.choice
        if choice is not None and choice.goodput_rps_per_gpu is not None:
            found.append(("good requests/s per GPU", f"{choice.goodput_rps_per_gpu.low:.3g}"))
        at = (plan.simulation.at_needed if plan.simulation is not None else None) or {}
        if at.get("attainment") is not None:
            found.append(("keep the targets at the log's rate", share(at["attainment"])))
        if plan.gpus_needed is not None:
            found.append(("cores needed" if plan.target.on_cpu else "GPUs needed", str(plan.gpus_needed)))
        if plan.usd_per_month is not None:
            found.append(("USD a month", count(plan.usd_per_month)))
    return [(name, value) for name, value in found if value != "-"]


def config(plan: Plan) -> tuple[Grid | None, Grid | None]:
    """The settings that change from what runs now to the chosen layout, and why; and those that do not."""
    choice = plan.choice
    if choice is None:
        return None, None
    name = plan.reasons.get(PREFIX, DEFAULTS)
    now = next((one for one in plan.candidates if one.name == name), None)
    rows = [
        (path, before, after, plan.reasons.get(path, ""))
        for path, before, after in [*_pools(now, choice), *_router(now, choice)]
    ]
    changed = tuple(row for row in rows if row[1] != row[2])
    same = tuple((path, after, why) for path, before, after, why in rows if before == after)
    head = ("setting", "now", "advised", "why")
    return (
        Grid("", head, changed, words=(0, 1, 2, 3)) if changed else None,
        Grid("", ("setting that stays", "value", "why"), same, words=(0, 1, 2)) if same else None,
    )


def _pools(now: Candidate | None, choice: Candidate) -> list[tuple[str, str, str]]:
    found = []
    for place, pool in enumerate(choice.pools):
        before: dict[str, Any] = {}
        if now is not None:
            before = _settings(now.pools[place] if place < len(now.pools) else now.pools[0])
        for name, value in _settings(pool).items():
            found.append((f"pools.{place}.{name}", _value(before.get(name)), _value(value)))
    return found


def _router(now: Candidate | None, choice: Candidate) -> list[tuple[str, str, str]]:
    before = {} if now is None else now.router.model_dump(mode="json")
    return [
        (f"router.{name}", _value(before.get(name)), _value(value))
        for name, value in choice.router.model_dump(mode="json").items()
    ]


def _settings(pool: PoolConfig) -> dict[str, Any]:
    return pool.model_dump(mode="json")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if value is None or value == []:
        return "-"
    return str(value)


def flips(plan: Plan) -> Grid | None:
    """At which value of what the plan becomes another."""
    rows = []
    for one in plan.flips or ():
        becomes = one["becomes"]
        if isinstance(becomes, dict):
            becomes = ", ".join(f"{name} {value}" for name, value in becomes.items())
        rows.append((moved(str(one["parameter"]), one["value"]), str(becomes)))
    return Grid("", ("at", "the plan becomes"), tuple(rows), words=(0, 1)) if rows else None


def mean_trap(plan: Plan) -> str | None:
    """What a planner of mean lengths would have said."""
    trap = plan.mean_trap
    if trap is None:
        return None
    gpus, replay = trap["answer"]["gpus"], trap["replay"]
    return (
        f"A planner of mean lengths says {plural(gpus, 'GPU')}; replayed on that, "
        f"{share(replay['attainment'])} keep the targets, TTFT P90 {seconds(replay['ttft_p90_s'])}."
    )


def findings(analysis: Analysis) -> Grid | None:
    """The advice, what to do first."""
    order = {"do": 0, "check": 1, "off": 2}
    ranked = sorted(analysis.findings, key=lambda one: (order[one.verdict], one.code))
    rows = tuple(
        (one.code, one.verdict, one.title, one.saving or one.next or "", "; ".join(one.basis)) for one in ranked
    )
    head = ("code", "", "what", "saving, or what to do", "basis")
    return Grid("", head, rows, words=(0, 1, 2, 3, 4)) if rows else None


def traits(analysis: Analysis) -> Grid | None:
    """How far the traffic has each of the six traits."""
    rows = tuple(
        (one.name, "unknown" if one.strength is None else f"{one.strength:.2f}") for one in analysis.traits
    )
    return Grid("", ("trait", "strength, 0 to 1"), rows) if rows else None


def models(analysis: Analysis) -> Grid | None:
    """The models of the log, where it has several."""
    if len(analysis.log.models) < 2:
        return None
    rows = tuple(
        (
            one.name or "unnamed",
            count(one.requests),
            count(one.prompt_mean),
            count(one.output_mean),
            share(one.hit_rate_tokens),
        )
        for one in analysis.log.models
    )
    return Grid("", ("model", "requests", "prompt, mean", "output, mean", "reuse"), rows)


def routes(analysis: Analysis) -> Grid | None:
    """The routes of the log, where it has several."""
    if len(analysis.log.routes) < 2:
        return None
    rows = tuple((one.name or "unnamed", count(one.requests)) for one in analysis.log.routes)
    return Grid("", ("route", "requests"), rows)


def unknown(analysis: Analysis) -> Grid | None:
    """What the log does not tell, why, and how to get it."""
    rows = tuple((one.path, one.why, one.how_to_get) for one in analysis.unknown)
    return Grid("", ("unknown", "why", "how to get it"), rows, words=(0, 1, 2)) if rows else None


def provenance(analysis: Analysis) -> list[tuple[str, str]]:
    """Which program, inputs and assumptions the plan is from; no clock."""
    log, meta, plan = analysis.log, analysis.meta, analysis.plan
    skipped = ", ".join(f"{number:,} {reason}" for reason, number in sorted(log.skipped.items()))
    found = [
        ("advise", meta.advise_version),
        ("plan digest", analysis.digest()),
        ("inputs digest", meta.inputs_digest),
        ("seed", str(meta.seed)),
        (
            "log",
            f"{log.lines:,} lines of {plural(log.files, 'file')}, {log.format}; skipped: {skipped or 'none'}",
        ),
        ("arrivals", log.arrival_basis),
        ("tokens", log.token_basis),
    ]
    if log.prefix_basis:
        found.append(("prefixes", log.prefix_basis))
    if plan is not None:
        error = "unknown" if plan.step_time.error_p90 is None else f"{plan.step_time.error_p90:.0%}"
        found.append(("step times", f"{plan.step_time.source}: {plan.step_time.key}; P90 error {error}"))
        for origin in sorted(set(plan.target.origins.values())):
            names = sorted(name for name, source in plan.target.origins.items() if source == origin)
            found.append((f"from {origin}", ", ".join(names)))
    return found
