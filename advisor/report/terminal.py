"""An Analysis on one screen.

Owns wording and layout; every number comes from the Analysis and has its unit. Says what was assumed
and ends with the next command.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.advice.analysis import Analysis
from advisor.advice.plan import Plan
from advisor.report.rows import row
from advisor.workload.model import Distribution
from engine.config import PoolConfig

_SHOWN_FIELDS = (
    "batching", "token_budget", "max_seqs", "prefix_cache", "queue_policy", "kv_tokens", "block_size",
    "devices_per_instance",
)  # fmt: skip


def show_analysis(console: Console, analysis: Analysis) -> None:
    """Print the whole analysis, one screen."""
    _show_log(console, analysis)
    _show_measures(console, analysis)
    _show_traits(console, analysis)
    _show_findings(console, analysis)
    if analysis.plan is not None:
        _show_plan(console, analysis.plan)
    elif analysis.plan_reason:
        row(console, "plan", f"none: {analysis.plan_reason}")
    if analysis.unknown:
        paths = ", ".join(entry.path for entry in analysis.unknown[:4])
        more = f" and {len(analysis.unknown) - 4} more" if len(analysis.unknown) > 4 else ""
        row(console, "unknown", f"{paths}{more}   (why and how to get them: --json, `unknown`)")


def show_next(console: Console, analysis: Analysis, out: Path, files: tuple[Path, ...]) -> None:
    """What was written, and the next command."""
    console.print()
    if files:
        row(console, "wrote", ", ".join(str(path) for path in files))
    if analysis.plan is None:
        row(console, "next", "advise analyze LOG --here, or --model NAME --gpu NAME for a plan")
    elif analysis.plan.chosen is None:
        row(console, "next", "loosen --ttft or --tpot, or name a faster GPU or a smaller model")
    elif analysis.plan.runs_on["advise"] == "yes":
        row(console, "next", f"advise launch {out}   or   advise validate {out}")
    else:
        why = analysis.plan.runs_on["advise"].removeprefix("no: ")
        row(console, "next", f"read {out / 'engine.yaml'}   (not for advise launch: {why})")


def _show_log(console: Console, analysis: Analysis) -> None:
    log, arrivals = analysis.log, analysis.arrivals
    span = "" if log.span_s is None else f" over {_duration(log.span_s)}"
    rate = "" if arrivals.rate_rps is None else f", {arrivals.rate_rps:.2f}/s"
    peak = arrivals.peak_rps.get("10")
    busiest = "" if peak is None else f", {peak:.1f}/s in the busiest 10 s"
    row(console, "log", f"{log.requests:,} requests{span}{rate}{busiest}")
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(log.skipped.items()))
    lines = f"{log.lines:,} lines of {log.files} file{'s' if log.files > 1 else ''}, {log.format}"
    row(console, "", f"{lines}; skipped: {skipped or 'none'}")
    if len(log.models) > 1:
        row(console, "", "models: " + ", ".join(f"{m.name} {m.requests:,}" for m in log.models))
    row(console, "", f"arrivals: {log.arrival_basis}; tokens: {log.token_basis}")
    for note in log.notes:
        row(console, "", note)


def _show_measures(console: Console, analysis: Analysis) -> None:
    arrivals, sharing = analysis.arrivals, analysis.sharing
    row(console, "prompt", _lengths(analysis.lengths.prompt))
    row(console, "output", _lengths(analysis.lengths.output) if analysis.lengths.output else "unknown")
    if arrivals.cv is not None:
        windows = " / ".join("-" if x is None else f"{x:.2f}" for x in arrivals.dispersion.values())
        spread = f", {arrivals.cv_spread:.2f} spread within" if arrivals.tick_s else ""
        tick = f" the {arrivals.tick_s:g} s clock tick" if arrivals.tick_s else ""
        row(
            console,
            "bursts",
            f"CV of gaps {arrivals.cv:.2f}{spread}{tick}; dispersion at 1 / 10 / 60 s {windows}",
        )
    if sharing.hit_rate_tokens is None:
        row(console, "reuse", "unknown: the log holds neither prompts nor block ids")
        return
    best = f"; at 1-token pages {sharing.hit_rate_optimal:.1%}" if sharing.hit_rate_optimal is not None else ""
    row(
        console,
        "reuse",
        f"{sharing.hit_rate_tokens:.1%} of prompt tokens repeat an earlier prefix "
        f"(blocks of {sharing.block_size}, unlimited cache{best})",
    )
    if sharing.within_session is not None and sharing.across_session is not None:
        within, across = sharing.within_session, sharing.across_session
        row(console, "", f"from the same session {within:.1%}, from other sessions {across:.1%}")


def _show_traits(console: Console, analysis: Analysis) -> None:
    for number, trait in enumerate(analysis.traits):
        strength = trait.strength
        bar = "unknown" if strength is None else f"{'#' * round(10 * strength):<10} {strength:.2f}"
        row(console, "traits" if number == 0 else "", f"{trait.name:<40} {bar}")


def _show_findings(console: Console, analysis: Analysis) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="bold")
    for heading in ("advice", "", "what", "saving, or what to do"):
        table.add_column(heading, overflow="fold")
    order = {"do": 0, "check": 1, "off": 2}
    for finding in sorted(analysis.findings, key=lambda finding: (order[finding.verdict], finding.code)):
        style = {"do": "green", "check": "yellow", "off": "dim"}[finding.verdict]
        table.add_row(
            finding.code,
            Text(finding.verdict, style=style),
            finding.title,
            finding.saving or finding.next or "",
        )
    if analysis.findings:
        console.print()
        console.print(table)


def _show_plan(console: Console, plan: Plan) -> None:
    console.print()
    target, slo = plan.target, plan.target.slo
    limits = [("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s), ("TBT", slo.tbt_s)]
    asked = ", ".join(f"{name} <= {seconds:g} s" for name, seconds in limits if seconds is not None)
    devices = f"{target.gpus} x {target.gpu}"
    row(console, "target", f"{target.model} on {devices}, {asked or 'no latency target'}, {slo.attainment:.0%}")
    for origin in ("flag", "target file", "log", "this machine", "preset"):
        names = sorted(name for name, source in target.origins.items() if source == origin)
        if names:
            row(console, "", f"from {origin}: {', '.join(names)}")
    error = "unknown" if plan.step_time.error_p90 is None else f"{plan.step_time.error_p90:.0%}"
    row(console, "steps", f"{plan.step_time.source}: {plan.step_time.key}; P90 error {error}")
    if plan.chosen is None:
        row(console, "plan", f"{plan.verdict}: {'; '.join(c.rejected for c in plan.candidates if c.rejected)}")
    else:
        row(console, "plan", f"{plan.verdict}: {plan.chosen} (made by rules; nothing is simulated yet)")
    if plan.choice is not None:
        for index, pool in enumerate(plan.choice.pools):
            _show_pool(console, plan, index, pool)


def _show_pool(console: Console, plan: Plan, index: int, pool: PoolConfig) -> None:
    row(console, "", f"{pool.count} x {pool.role}, TP {pool.tp}")
    grid = Table.grid(padding=(0, 1))
    for width in (8, 20, 8, None):
        grid.add_column(width=width, overflow="fold")
    for name in _SHOWN_FIELDS:
        reason = plan.reasons.get(f"pools.{index}.{name}", "")
        grid.add_row("", name, str(getattr(pool, name)), Text(reason))
    console.print(grid)


def _lengths(lengths: Distribution) -> str:
    parts = (f"{name} {getattr(lengths, name):,.0f}" for name in ("mean", "p50", "p90", "p99", "max"))
    return "   ".join(parts) + "   tokens"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
