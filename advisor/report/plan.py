"""A Plan on a part of the screen, the verdict first.

Owns wording and layout; every number comes from the Plan and has its unit. Fits 80 columns and about 50 lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.advice.control import PREFIX
from advisor.advice.plan import Candidate, Interval, Plan
from advisor.advice.sizing import parallel
from advisor.advice.target import Target
from advisor.report.chosen import show_chosen
from advisor.report.rows import row, seconds
from advisor.units import show_seconds
from engine.config import PoolConfig

SHOWN = 4  # layouts: the chosen one, the runner-up, what runs now, the next best
DEFAULTS = "defaults"  # the layout of the bundled engine's own, where nobody says what runs now
BAR = 24  # characters of the longest bar
_STYLE = {"undecided": "bold yellow", "infeasible": "bold red"}
_WORDS = {
    "change": "change to",
    "keep_defaults": "keep",
    "undecided": "undecided; best is",
    "hosted": "rent a hosted API; else",
}
_ORIGINS = ("flag", "target file", "what runs now", "log", "this machine", "preset")
_PARAMETERS = {
    "rate_rps": "rate",
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "tbt_s": "TBT",
    "reuse": "reuse x",
    "link_bytes_per_s": "link",
    "gpus": "GPUs",
    "deadline_s": "deadline",
}


def show_plan(console: Console, plan: Plan) -> None:
    """Print a plan: verdict, target, what was compared, what each idea is worth, what would change it, cost."""
    console.print()
    _show_backtest(console, plan)
    _show_verdict(console, plan)
    _show_target(console, plan)
    if plan.choice is not None:
        for index, pool in enumerate(plan.choice.pools):
            row(console, "layout" if index == 0 else "", _pool(pool, on_cpu=plan.target.on_cpu))
        router = plan.choice.router
        bypass = ", short prompts bypass the prefill pool" if router.bypass else ""
        row(console, "", f"routing {router.policy.replace('_', ' ')}{bypass}; reasons stand in engine.yaml")
    _show_control(console, plan)
    if plan.simulation is not None:
        _show_layouts(console, plan)
        _show_attribution(console, plan)
    _show_flips(console, plan)
    _show_mean_trap(console, plan)
    _show_batch(console, plan)
    _show_cost(console, plan)
    _show_checks(console, plan)


def _show_verdict(console: Console, plan: Plan) -> None:
    text = f"{_WORDS.get(plan.verdict, plan.verdict)} {plan.chosen}"
    if plan.chosen is None:
        asked = "keeps the targets" if plan.target.deadline_s is None else "ends by the deadline"
        text = f"{plan.verdict}: no layout {asked}"
    row(console, "verdict", text, style=_STYLE.get(plan.verdict, "bold green"))
    if plan.simulation is None:
        why = [] if plan.chosen is not None else [c.rejected for c in plan.candidates if c.rejected]
        row(console, "", "; ".join((*why, "made by rules from the measured traffic; nothing was simulated")))
        return
    row(console, "", plan.simulation.why)
    margin = plan.margin or {}
    ratio, low, high = (margin.get(name) for name in ("ratio", "low", "high"))
    if ratio is not None and math.isfinite(ratio):
        interval = "no interval" if low is None or high is None else f"95 %: {low:.2f} to {high:.2f}"
        row(console, "", f"{ratio:.2f}x the goodput per GPU of what runs now ({interval})")


def _show_target(console: Console, plan: Plan) -> None:
    target = plan.target
    row(console, "target", f"{target.model} on {target.gpus} x {target.gpu}, {promise(target)}")
    parts = []
    for origin in _ORIGINS:
        names = sorted(name for name, source in target.origins.items() if source == origin)
        if names:
            parts.append(f"from {origin}: {', '.join(names)}")
    if parts:
        row(console, "", "; ".join(parts))
    error = "unknown" if plan.step_time.error_p90 is None else f"{plan.step_time.error_p90:.0%}"
    row(console, "steps", f"{plan.step_time.source}: {plan.step_time.key}; P90 error {error}")
    if plan.step_time.shared is not None:
        row(console, "", f"router and client share the cores: {plan.step_time.shared}")


def promise(target: Target) -> str:
    """The latency targets in words."""
    slo = target.slo
    limits = [("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("TBT", slo.tbt_s)]
    asked = ", ".join(f"{name} <= {limit:g} s" for name, limit in limits if limit is not None)
    by = "" if target.deadline_s is None else f", all done within {show_seconds(target.deadline_s)}"
    return f"{asked}, {slo.attainment:.0%} of requests" if asked else f"no latency target{by}"


def _pool(pool: PoolConfig, *, on_cpu: bool) -> str:
    """One pool in a line."""
    kind = "" if pool.role == "colocated" else f"{pool.role} "
    cores = pool.devices_per_instance
    devices = f"{cores} core{'s' * (cores > 1)}" if on_cpu else parallel(pool.tp, pool.pp)
    kv = "" if pool.kv_tokens is None else f", {pool.kv_tokens:,} KV tokens"
    cache = "prefix cache" if pool.prefix_cache else "no prefix cache"
    order = pool.queue_policy.replace("_", " ")
    return (
        f"{pool.count} {kind}x {devices}: {pool.batching.replace('_', ' ')}, "
        f"token budget {pool.token_budget:,}, at most {pool.max_seqs:,} at once, {cache}, {order}{kv}"
    )


def _show_control(console: Console, plan: Plan) -> None:
    """What runs now, with what was read, assumed and not understood."""
    told = {
        name.removeprefix(f"{PREFIX}."): why for name, why in plan.reasons.items() if name.startswith(PREFIX)
    }
    if not told:
        return
    row(console, "now", told.pop(PREFIX).removeprefix("now: "))
    for kind in ("read", "assumed"):
        named = [
            f"{name} {why.removeprefix(kind + ': ').partition(' (')[0]}"
            for name, why in told.items()
            if why.startswith(f"{kind}: ")
        ]
        if named:
            row(console, "", f"{kind}: {', '.join(named)}")
    for name, why in told.items():
        if name.startswith("unknown."):
            row(console, "", f"{name.removeprefix('unknown.')} {why}", style="yellow")
        elif name.startswith("notes."):
            row(console, "", why)


def _show_layouts(console: Console, plan: Plan) -> None:
    """Goodput of the best layouts, and what they are like at that rate."""
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("layout", overflow="fold", ratio=1)
    for heading in ("good/s per GPU", "TTFT P90", "TPOT P90", "hits"):
        table.add_column(heading, justify="right", no_wrap=True)
    for candidate in _best(plan):
        style = "bold" if candidate.name == plan.chosen else ""
        marks = {plan.chosen: "chosen", plan.runner_up: "runner-up"}
        mark = f" [{marks[candidate.name]}]" if candidate.name in marks else ""
        table.add_row(
            Text(candidate.name + mark, style=style),
            _goodput(candidate.goodput_rps_per_gpu),
            seconds(candidate.ttft_p90_s),
            seconds(candidate.tpot_p90_s),
            "-" if candidate.hit_rate_tokens is None else f"{candidate.hit_rate_tokens:.0%}",
        )
    console.print(table)
    if plan.simulation is not None:
        show_chosen(console, plan.simulation, plan.target.slo.attainment)


def _best(plan: Plan) -> list[Candidate]:
    """The chosen one, the runner-up, what runs now, and the best of the others."""
    names = (plan.chosen, plan.runner_up, plan.reasons.get(PREFIX, DEFAULTS))
    named = [c for name in names for c in plan.candidates if c.name == name]
    others = [c for c in plan.candidates if c not in named and c.goodput_rps_per_gpu is not None]
    others.sort(key=lambda c: (c.rejected is not None, -_mid(c.goodput_rps_per_gpu)))
    return [*dict.fromkeys(named), *others][:SHOWN]


def _show_attribution(console: Console, plan: Plan) -> None:
    """What each idea alone, and two together, are worth: goodput per GPU as bars."""
    rows = [(str(one["name"]), one["goodput_rps_per_gpu"]["low"]) for one in plan.attribution or ()]
    if not rows:
        return
    console.print()
    longest = max(value for _, value in rows) or 1.0
    for index, (name, value) in enumerate(rows):
        bar = "#" * round(BAR * value / longest)
        row(console, "worth" if index == 0 else "", f"{name:<15} {value:>8.3g}  {bar}")
    row(console, "", "good requests/s per GPU on a busy part of the log; `nothing`: prefill first, no cache")


def _show_flips(console: Console, plan: Plan) -> None:
    """What another value of a parameter would make of the plan, equal outcomes in one line."""
    outcomes: dict[str, list[str]] = {}
    for flip in plan.flips or ():
        becomes = flip["becomes"]
        if isinstance(becomes, dict):
            becomes = "it becomes: " + ", ".join(f"{name} {value}" for name, value in becomes.items())
        outcomes.setdefault(str(becomes), []).append(moved(str(flip["parameter"]), flip["value"]))
    for index, (becomes, values) in enumerate(outcomes.items()):
        row(console, "flips" if index == 0 else "", f"at {', '.join(values)}: {becomes}")


def moved(parameter: str, value: float) -> str:
    """`TTFT 1 s`, `rate 3.4/s`, ..."""
    name = _PARAMETERS.get(parameter, parameter)
    if parameter == "deadline_s":
        return f"{name} {show_seconds(value)}"
    unit = "/s" if parameter == "rate_rps" else " bytes/s" if parameter.startswith("link") else ""
    return f"{name} {value:.3g}{' s' if parameter.endswith('_s') and not unit else unit}"


def _show_mean_trap(console: Console, plan: Plan) -> None:
    trap = plan.mean_trap
    if trap is None:
        return
    answer, replay = trap["answer"], trap["replay"]
    row(
        console,
        "means",
        f"a planner of mean lengths says {_gpus(answer['gpus'])}; replayed on that, "
        f"{replay['attainment']:.1%} keep the targets, TTFT P90 {seconds(replay['ttft_p90_s'])}",
    )


def _show_batch(console: Console, plan: Plan) -> None:
    """When the whole log ends as one batch, and when with steps slower by their error."""
    simulation, deadline_s = plan.simulation, plan.target.deadline_s
    if simulation is None or simulation.batch_s is None or not math.isfinite(simulation.batch_s):
        return
    batch_s, error = simulation.batch_s, plan.step_time.error_p90
    text = f"all {simulation.requests:,} requests, there at once, end in {show_seconds(batch_s)}"
    # All of a batch is steps one after another: slower ones make it as much longer.
    slow_s = batch_s * (1 + (error or 0.0))
    if error:
        text += f", in {show_seconds(slow_s)} with steps slower by their error"
    late = deadline_s is not None and slow_s > deadline_s
    if deadline_s is not None:
        text += f"; asked for: {show_seconds(deadline_s)}"
    row(console, "batch", text, style="yellow" if late else "")


def _needed_for(plan: Plan) -> str:
    """What the GPUs are counted for."""
    if plan.simulation is None or plan.target.on_cpu:
        return ""
    if plan.target.deadline_s is not None:
        return f" to end within {show_seconds(plan.target.deadline_s)}, with a tenth to spare"
    return "" if plan.simulation.batch_s is not None else " for the busiest 10 minutes, with a tenth to spare"


def _show_cost(console: Console, plan: Plan) -> None:
    if plan.gpus_needed is None:
        return
    devices = f"{plan.gpus_needed} cores" if plan.target.on_cpu else _gpus(plan.gpus_needed)
    row(console, "needed", devices + _needed_for(plan))
    if plan.usd_per_month is not None:
        each = plan.usd_per_million_tokens
        tokens = "" if each is None else f", {each:.3g} a million tokens"
        why = plan.reasons.get("usd_per_month", "").partition("; source:")[0]
        row(console, "", f"{plan.usd_per_month:,.0f} USD a month{tokens}: {why}")


def _show_checks(console: Console, plan: Plan) -> None:
    """How much was simulated, random search at the same cost, and the rules."""
    simulation = plan.simulation
    if simulation is None:
        return
    text = f"{simulation.requests:,} requests of the log; the search simulated {simulation.simulated:,}"
    row(console, "checked", text)
    rival = simulation.random
    if rival is not None:
        best = f"{rival['goodput_rps_per_gpu']:.3g} good requests/s per GPU ({rival['name']})"
        row(console, "", f"random search for as many finds {best}")
    if "rules" in plan.reasons:
        row(console, "", plan.reasons["rules"])


def _show_backtest(console: Console, plan: Plan) -> None:
    """How the simulation of what runs now compares with what the log measured; a warning where it is off."""
    tested = plan.backtest
    if tested is None:
        return
    style = "yellow" if tested["off"] else ""
    row(
        console,
        "backtest",
        "simulated as it runs now, beside the log: " + "; ".join(_errors(tested["whole"])),
        style,
    )
    if tested["off"]:
        factors = f"prefill x {tested['prefill_factor']:.2f}, decode x {tested['decode_factor']:.2f}"
        used = "planned with them" if tested["planned_with"] else "they do not help and are not used"
        row(console, "", f"off by more than 25 %; fitted on the first half: {factors}; {used}", style)


def _errors(compared: Iterable[dict[str, Any]]) -> list[str]:
    names = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E", "hit_rate_tokens": "hits"}
    found = []
    for one in compared:
        if one["quantile"] is None:
            found.append(f"{names[one['metric']]} {one['predicted']:.1%} for {one['logged']:.1%}")
        else:
            pair = f"{seconds(one['predicted'])} for {seconds(one['logged'])}"
            found.append(f"{names[one['metric']]} P{one['quantile']} {pair}")
    return found


def _mid(interval: Interval | None) -> float:
    return 0.0 if interval is None else interval.low


def _goodput(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    if interval.low <= 0:
        return "0"
    return f"{interval.low:.3g}"


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"
