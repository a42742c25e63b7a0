"""The plan of a log: the simulation is set up with what runs now and how many GPUs, and held against the rules.

    what runs now -> (for `--gpus auto`: a node first, then as many GPUs as it says) -> simulate -> Plan

Owns that order and the sentence on rules and simulation; the simulation itself is `simulated`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from advisor.advice.backtest import Measured
from advisor.advice.control import Control, control_of, default_control
from advisor.advice.current import Current
from advisor.advice.finding import Finding
from advisor.advice.links import NODE_GPUS
from advisor.advice.plan import Candidate, Plan
from advisor.advice.search.hardware import hardware_of
from advisor.advice.simulated import SimulationOptions, simulate_plan
from advisor.advice.simulated_plan import plan_of
from advisor.advice.situation import Situation, draw
from advisor.advice.steps import Calibrations
from advisor.advice.target import Target
from advisor.logs.trace import Trace
from advisor.simulation.load import Load
from advisor.workload.model import Workload

PASSES = 2  # of `--gpus auto`: on a node, then on the GPUs that it asks for (ours)
NEAR = 2.0  # token budgets of rules and simulation within this factor agree (ours)


def simulated_plan(
    workload: Workload,
    target: Target,
    trace: Trace,
    load: Load,
    calibrations: Calibrations,
    options: SimulationOptions,
    current: Current | None,
) -> tuple[Situation, Plan]:
    """The plan for the requests of `load`, made of `trace`, and the situation on the GPUs that it is for.

    `current` is what runs now; None: the defaults of the target's stack. Raises InputError, MachineError.
    """
    auto = target.gpus == "auto"
    situation = draw(workload, target, calibrations)
    if auto:
        situation = _on(max(NODE_GPUS, situation.gpus), workload, target, calibrations)
    for left in reversed(range(PASSES if auto else 1)):
        control = _control(situation, calibrations, current)
        measured = Measured.of(trace) if control is not None and control.known else None
        asked = options if control is None else replace(options, control=control.layout, measured=measured)
        found = simulate_plan(situation, load, calibrations, asked)
        needed = found.gpus_needed
        if not left or needed is None or needed == situation.gpus:
            break
        situation = _on(needed, workload, target, calibrations)
    plan = plan_of(situation, found)
    extra = {} if control is None else dict(control.reasons)
    return situation, plan.model_copy(update={"reasons": {**plan.reasons, **extra}})


def _on(gpus: int, workload: Workload, target: Target, calibrations: Calibrations) -> Situation:
    return draw(workload, target.model_copy(update={"gpus": gpus}), calibrations)


def _control(s: Situation, calibrations: Calibrations, current: Current | None) -> Control | None:
    hardware = hardware_of(s, calibrations)
    if current is None:
        return default_control(s.target, hardware, s.gpus)
    return control_of(current, hardware, s.gpus)


def beside_rules(plan: Plan, ruled: Plan, findings: Sequence[Finding]) -> str:
    """One sentence: where the plan by simulation is not what the rules proposed, or that they agree."""
    choice, proposal = plan.choice, ruled.choice
    if choice is None:
        return "the rules agree" if proposal is None else "the rules saw no target out of reach on its own"
    if proposal is None:
        return "the rules call the targets infeasible (ADV401); simulated, this layout keeps them"
    codes = {finding.code: finding.verdict for finding in findings}
    tried = any(_is_split(candidate) for candidate in plan.candidates)
    said = _about_split(choice, codes, tried=tried) + _about_budget(choice, proposal)
    return f"the rules differ: {'; '.join(said)}" if said else "the rules agree on split and token budget"


def _is_split(candidate: Candidate) -> bool:
    return any(pool.role != "colocated" for pool in candidate.pools)


def _about_split(choice: Candidate, codes: Mapping[str, str], *, tried: bool) -> list[str]:
    split = _is_split(choice)
    against = sorted({"ADV301", "ADV302", "ADV303", "ADV305"} & codes.keys())
    if split and against:
        return [f"they advise against a split ({', '.join(against)})"]
    if tried and not split and codes.get("ADV304") == "check" and not against:
        return ["a split may pay (ADV304), simulated it does not"]
    return []


def _about_budget(choice: Candidate, proposal: Candidate) -> list[str]:
    pool, ruled = choice.pools[0], proposal.pools[0].token_budget
    if pool.role != "colocated" or 1 / NEAR < pool.token_budget / ruled < NEAR:
        return []
    return [f"token budget {ruled:,} (ADV201), here {pool.token_budget:,}"]
