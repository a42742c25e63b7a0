"""An Analysis on one screen.

Owns wording and layout; every number comes from the Analysis and has its unit. Says what was assumed
and ends with the next command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.advice.analysis import Analysis
from advisor.deploy.rehearsal import can_be_rehearsed
from advisor.report.plan import show_plan
from advisor.report.rows import row
from advisor.workload.model import Burstiness, Distribution, Latency, PromptPlace, Sharing
from advisor.workload.models import ModelRows
from engine.launchable import CUDA_NOTE


def show_analysis(console: Console, analysis: Analysis, *, measured: bool = True) -> None:
    """Print the whole analysis, or without what was measured; the plan last."""
    if measured:
        _show_log(console, analysis)
        _show_measures(console, analysis)
        _show_people(console, analysis)
        _show_traits(console, analysis)
    _show_findings(console, analysis)
    if analysis.plan is not None:
        show_plan(console, analysis.plan)
    elif analysis.plan_reason:
        row(console, "plan", f"none: {analysis.plan_reason}")
    if analysis.unknown:
        counts = Counter(entry.path.partition(".")[0] for entry in analysis.unknown)
        groups = ", ".join(f"{group} ({count})" if count > 1 else group for group, count in counts.items())
        row(console, "unknown", f"{groups}: why and how to get them stands under `unknown` in --json")


def show_excerpts(console: Console, excerpts: Sequence[tuple[PromptPlace, str]]) -> None:
    """Prompts around their first difference; control characters are escaped."""
    for place, text in excerpts:
        console.print()
        row(console, "prompt", f"{place.file}, line {place.line}, character {place.char}")
        row(console, "", repr(text))


def show_next(console: Console, analysis: Analysis, out: Path, files: tuple[Path, ...]) -> None:
    """What was written, and the next command."""
    console.print()
    if files:
        row(console, "wrote", ", ".join(str(path) for path in files))
    if analysis.plan is None:
        row(console, "next", "advise analyze LOG --here, or --model NAME --gpu NAME for a plan")
    elif analysis.plan.chosen is None:
        batch = analysis.plan.target.deadline_s is not None
        looser = "a longer --deadline, more --gpus (or auto)," if batch else "loosen --ttft or --tpot,"
        row(console, "next", f"{looser} or name a faster GPU or a smaller model")
    elif analysis.plan.runs_on["advise"] == "yes":
        row(console, "next", f"advise launch {out}   or   advise validate {out}")
        if not analysis.plan.target.on_cpu:
            row(console, "", f"on a machine with the plan's GPUs. {CUDA_NOTE}")
            row(
                console,
                "",
                f"without them: advise launch {out} --emulate {analysis.plan.target.gpu}, a rehearsal",
            )
    elif can_be_rehearsed(analysis.plan.target, analysis.plan.engine_config()):
        why = analysis.plan.runs_on["advise"].removeprefix("no: ")
        row(console, "next", f"advise launch {out} --emulate {analysis.plan.target.gpu}   (a rehearsal)")
        row(console, "", f"not for advise launch itself: {why}")
    else:
        why = analysis.plan.runs_on["advise"].removeprefix("no: ")
        row(console, "next", f"read {out / 'engine.yaml'}   (not for advise launch: {why})")


def _show_log(console: Console, analysis: Analysis) -> None:
    log, arrivals = analysis.log, analysis.arrivals
    span = "" if log.span_s is None else f" over {_duration(log.span_s)}"
    rate = "" if arrivals.rate_rps is None else f", {arrivals.rate_rps:.2f}/s"
    peak = arrivals.peak_rps.get("10")
    busiest = "" if peak is None else f", {peak:.1f}/s in the busiest 10 s"
    requests = "requests unknown" if log.requests is None else f"{log.requests:,} requests"
    row(console, "log", f"{requests}{span}{rate}{busiest}")
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(log.skipped.items()))
    lines = f"{log.lines:,} lines of {log.files} file{'s' if log.files > 1 else ''}, {log.format}"
    row(console, "", f"{lines}; skipped: {skipped or 'none'}")
    for model in log.models if len(log.models) > 1 else ():
        row(console, "", _model(model))
    if len(log.routes) > 1:
        row(console, "", "routes: " + ", ".join(f"{r.name} {r.requests:,}" for r in log.routes))
    row(console, "", f"arrivals: {log.arrival_basis}; tokens: {log.token_basis}")
    for note in log.notes:
        row(console, "", note)


def _model(model: ModelRows) -> str:
    """One of several models, measured alone."""
    parts = [f"{model.name}: {model.requests or 0:,} requests"]
    if model.prompt_mean is not None:
        parts.append(f"{model.prompt_mean:,.0f} prompt tokens")
    if model.output_mean is not None:
        parts.append(f"{model.output_mean:,.0f} output tokens")
    if model.hit_rate_tokens is not None:
        parts.append(f"{model.hit_rate_tokens:.1%} reuse")
    return ", ".join(parts)


def _show_measures(console: Console, analysis: Analysis) -> None:
    arrivals, sharing = analysis.arrivals, analysis.sharing
    row(console, "prompt", _lengths(analysis.lengths.prompt))
    row(console, "output", _lengths(analysis.lengths.output))
    if arrivals.cv is not None:
        windows = " / ".join("-" if x is None else f"{x:.2f}" for x in arrivals.dispersion.values())
        spread = f", {arrivals.cv_spread:.2f} spread within" if arrivals.tick_s else ""
        tick = f" the {arrivals.tick_s:g} s clock tick" if arrivals.tick_s else ""
        row(
            console,
            "bursts",
            f"CV of gaps {arrivals.cv:.2f}{spread}{tick}; dispersion at 1 / 10 / 60 s {windows}",
        )
    _show_latency(console, analysis.latency)
    _show_sharing(console, sharing)


def _show_latency(console: Console, latency: Latency) -> None:
    logged = [("TTFT", latency.ttft_s), ("TPOT", latency.tpot_s), ("E2E", latency.e2e_s)]
    known = [(name, seconds) for name, seconds in logged if seconds is not None and seconds.p50 is not None]
    if known:
        text = "   ".join(f"{name} p50 {s.p50:.3g}, p90 {s.p90:.3g} s" for name, s in known)
        row(console, "latency", f"as logged: {text}")


def _show_sharing(console: Console, sharing: Sharing) -> None:
    cached = "" if sharing.cached_share is None else f"the log says that {sharing.cached_share:.1%} was cached"
    if sharing.hit_rate_tokens is None:
        row(
            console,
            "reuse",
            "unknown: the log holds neither prompts nor block ids" + (cached and f"; {cached}"),
        )
        return
    best = f"; at 1-token pages {sharing.hit_rate_optimal:.1%}" if sharing.hit_rate_optimal is not None else ""
    partly = sharing.known_share is not None and sharing.known_share < 1
    of = f"the {sharing.known_share:.0%} of prompt tokens whose content is known" if partly else "prompt tokens"
    row(
        console,
        "reuse",
        f"{sharing.hit_rate_tokens:.1%} of {of} repeat an earlier prefix "
        f"(blocks of {sharing.block_size}, unlimited cache{best})",
    )
    if sharing.within_session is not None and sharing.across_session is not None:
        within, across = sharing.within_session, sharing.across_session
        row(console, "", f"from the same session {within:.1%}, from other sessions {across:.1%}")
    if sharing.across_client:
        row(console, "", f"a cache salt for each client would cost {sharing.across_client:.1%}")
    if sharing.cache_life:
        lives = ", ".join(
            f"{life.hit_rate_tokens:.1%} for {_duration(life.seconds)}" for life in sharing.cache_life
        )
        row(console, "", f"kept after a last use: {lives}")
    if cached:
        row(console, "", cached)
    if sharing.duplicates is not None and sharing.duplicates.requests:
        row(console, "", f"{sharing.duplicates.requests:,} requests are copies of others")


def _show_people(console: Console, analysis: Analysis) -> None:
    """Sessions, clients and how the traffic changes, where they are known."""
    if (sessions := analysis.sessions) is not None:
        inferred = "" if sessions.basis.startswith("session") else ", inferred from growing prefixes"
        think = "" if sessions.think_s is None else f"; think time p50 {sessions.think_s.p50:.0f} s"
        new = "" if sessions.new_tokens is None else f"; {sessions.new_tokens.p50:,.0f} new tokens a turn"
        row(
            console,
            "sessions",
            f"{sessions.sessions:,}{inferred}, {sessions.turns.mean:.1f} turns; "
            f"{sessions.multi_turn_share:.0%} of requests in several turns{think}{new}",
        )
    if (clients := analysis.clients) is not None:
        bursts = "" if clients.burstiness is None else _bursts(clients.burstiness)
        row(
            console,
            "clients",
            f"{clients.clients:,}; the largest sends {clients.top1_share:.0%}, the ten largest "
            f"{clients.top10_share:.0%} of requests{bursts}",
        )
    drift = analysis.drift
    if drift is not None and (len(drift.regimes) > 1 or drift.day_night_ratio is not None):
        rates = ", ".join(
            f"{regime.rate_rps:.3g}/s" + (f" from {_duration(regime.start_s)}" if regime.start_s else "")
            for regime in drift.regimes
        )
        ratio = drift.day_night_ratio
        day = "" if ratio is None else f"; the busiest hour has {ratio:.1f} times the requests of the quietest"
        row(console, "drift", f"{rates}{day}; {drift.idle_share:.0%} of windows idle")


def _bursts(burstiness: Burstiness) -> str:
    if burstiness.over_1_share is None:
        return ""
    return f"; {burstiness.over_1_share:.0%} of their active windows are burstier than Poisson"


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
    for finding in analysis.findings:
        places = [f"{place.file}:{place.line}, character {place.char}" for place in finding.examples]
        if places:
            row(console, finding.code, "compare " + " with ".join(places) + " (--show-text prints them)")


def _lengths(lengths: Distribution | None) -> str:
    if lengths is None:
        return "unknown"
    known = [(name, getattr(lengths, name)) for name in ("mean", "p50", "p90", "p99", "max")]
    return "   ".join(f"{name} {value:,.0f}" for name, value in known if value is not None) + "   tokens"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
