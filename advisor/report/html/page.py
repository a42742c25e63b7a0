"""What the report's page holds, in its order: plain data, ready for the template.

Owns the order and which parts there are; parts with nothing to show are absent. A validation stands before the
plan that it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from advisor.advice.analysis import Analysis
from advisor.advice.plan import Plan
from advisor.logs.trace import Trace
from advisor.report import measured
from advisor.report.grid import Grid
from advisor.report.html import figures_plan, figures_run, figures_traffic, tables
from advisor.report.html.picture import Picture
from advisor.report.rows import seconds
from advisor.report.words import kept, rate, share, utc
from advisor.validation.record import Record
from advisor.validation.result import Result

_TONES = {
    "PASS": "good", "LIKELY PASS": "good", "FAIL": "bad", "LIKELY FAIL": "bad", "INVALID": "warn",
    "REHEARSED": "warn",
}  # fmt: skip
_PLAN_TONES = {"undecided": "warn", "infeasible": "bad"}


@dataclass(frozen=True, slots=True)
class Head:
    """What stands first: one big line, why, the figures that matter, and what to do."""

    tone: str  # good, warn, bad
    line: str
    why: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    then: str


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the page: sentences, figures, a table, and `more`, a table behind a click."""

    title: str
    says: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    grid: Grid | None = None
    more: Grid | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page."""

    title: str
    banners: tuple[tuple[str, str], ...]
    head: Head
    gates: Grid | None
    parts: tuple[Part, ...]
    provenance: tuple[tuple[str, str], ...]
    data: dict[str, Any]  # embedded as JSON


def page(
    analysis: Analysis | None, trace: Trace | None, result: Result | None, records: Sequence[Record]
) -> Page:
    """The page of an analysis, a validation, or both."""
    if result is not None:
        head, title = _head_of_run(result), f"{result.label}: validation of {result.replayed.model}"
    elif analysis is not None:
        head, title = _head_of_plan(analysis), f"advise: {tables.headline(analysis)}"
    else:
        raise ValueError("a page needs an analysis or a result")
    parts: list[Part] = []
    if result is not None:
        parts += _run(result, records)
    if analysis is not None:
        parts += _plan(analysis, under=result is not None)
    parts += _traffic(analysis, trace, result)
    return Page(
        title=title,
        banners=() if result is None else _banners(result),
        head=head,
        gates=None if result is None else measured.gates(result),
        parts=tuple(parts),
        provenance=_provenance(analysis, result),
        data={
            "analysis": None if analysis is None else analysis.model_dump(mode="json"),
            "result": None if result is None else result.model_dump(mode="json"),
        },
    )


def _banners(result: Result) -> tuple[tuple[str, str], ...]:
    found = []
    if result.rehearsal is not None:
        slower = result.rehearsal.time_scale
        clock = "" if slower == 1 else f", on a clock {slower:g} times slower"
        found.append(
            ("REHEARSED", f"{result.rehearsal.gpu} was emulated{clock}: steps were slept, not computed. "
             "This proves plumbing, not advice.")
        )  # fmt: skip
    if result.replayed.scaled:
        found.append(("Scaled: not your traffic", "; ".join(result.replayed.scaled)))
    if result.end != "complete":
        found.append((f"The run was {result.end}", "what came back so far is shown"))
    return tuple(found)


def _head_of_run(result: Result) -> Head:
    one, score = result.latencies, result.score
    facts = [
        ("kept the targets", share(score.attainment)),
        ("requests, N", f"{score.requests:,}"),
        ("missed", f"{score.requests - score.good:,}"),
        ("TTFT p90", seconds(one.ttft.p90 if one.ttft else None)),
        ("TPOT p90", seconds(one.tpot.p90 if one.tpot else None)),
        ("good requests/s", rate(score.good_rate_rps).removesuffix("/s")),
    ]
    search = result.search
    if search is not None and search.low_rps is not None:
        gpus = search.gpus or 1
        high = "" if search.high_rps is None else f" to {search.high_rps / gpus:.3g}"
        facts.append(
            ("goodput per GPU, /s" if search.gpus else "goodput, /s", f"{search.low_rps / gpus:.3g}{high}")
        )
    why = [_sentence(result.reason), *map(_sentence, measured.proof(result))]
    why.append(_sentence(f"targets: {kept(result.slo)}"))
    shown = tuple((name, value) for name, value in facts if value != "-")
    return Head(
        _TONES[result.verdict], measured.headline(result), tuple(why), shown, measured.next_step(result)
    )


def _head_of_plan(analysis: Analysis) -> Head:
    plan = analysis.plan
    tone = "warn" if plan is None else _PLAN_TONES.get(plan.verdict, "good")
    why = tuple(map(_sentence, tables.reasons(analysis)))
    facts = tuple(tables.facts(analysis))
    return Head(tone, tables.headline(analysis), why, facts, tables.next_step(analysis))


def _run(result: Result, records: Sequence[Record]) -> list[Part]:
    found = [Part("What was measured", pictures=tuple(figures_run.figures(result, records)))]
    beside = tuple(map(_sentence, (measured.sent(result), *measured.beside(result))))
    found.append(Part("Latencies", beside, grid=measured.latencies(result)))
    if (classes := measured.classes(result)) is not None:
        found.append(Part("Classes, the worst first", grid=classes))
    if result.predicted is not None:
        advice = () if result.predicted.advice is None else (_sentence(result.predicted.advice),)
        found.append(Part("Predicted and measured", advice, grid=measured.predicted(result)))
    elif result.not_predicted is not None:
        found.append(
            Part("Predicted and measured", (_sentence(f"nothing is predicted: {result.not_predicted}"),))
        )
    if result.fault is not None:
        found.append(Part("The fault and its cost", tuple(map(_sentence, measured.fault(result)))))
    if result.elsewhere:
        remarks = tuple(f"{one.tool}: {one.remark}." for one in result.elsewhere)
        found.append(Part("What other tools would have reported", remarks, grid=measured.elsewhere(result)))
    return _shown(found)


def _plan(analysis: Analysis, *, under: bool) -> list[Part]:
    """The plan's parts; `under` a validation its verdict is a part too."""
    found, plan = [], analysis.plan
    if under and plan is not None:
        found.append(
            Part(f"The plan: {tables.headline(analysis)}", tuple(map(_sentence, tables.reasons(analysis))))
        )
    if plan is not None:
        trap = tables.mean_trap(plan)
        found.append(
            Part("What the plan rests on", () if trap is None else (trap,), tuple(figures_plan.figures(plan)))
        )
        found.append(Part("What would change the plan", grid=tables.flips(plan)))
        found.append(_config(plan))
    found.append(Part("Advice", grid=tables.findings(analysis)))
    return _shown(found)


def _shown(parts: list[Part]) -> list[Part]:
    """Those that have something to show."""
    return [part for part in parts if part.pictures or part.grid or part.says or part.more]


def _config(plan: Plan) -> Part:
    changed, same = tables.config(plan)
    says = () if changed is not None or same is None else ("Every setting stays as it is.",)
    return Part("The configuration, and why", says, grid=changed, more=same)


def _traffic(analysis: Analysis | None, trace: Trace | None, result: Result | None) -> list[Part]:
    found = [Part("The traffic", pictures=tuple(figures_traffic.figures(analysis, trace, result)))]
    if analysis is not None:
        found += [
            Part("Models", grid=tables.models(analysis)),
            Part("Routes", grid=tables.routes(analysis)),
            Part("Traits", more=tables.traits(analysis)),
            Part("What is not known", more=tables.unknown(analysis)),
        ]
        if analysis.not_modelled and analysis.plan is not None:
            found.append(Part("What no figure contains", (_sentence("; ".join(analysis.not_modelled)),)))
    return _shown(found)


def _provenance(analysis: Analysis | None, result: Result | None) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    if result is not None:
        replayed = result.replayed
        where = f"{replayed.window}, from {replayed.from_s:,.0f} s, {replayed.length_s:,.0f} s long"
        found = [
            ("run began", utc(replayed.start_unix_s)),
            ("endpoint", replayed.url),
            ("model", replayed.model),
            ("window", where),
            (
                "prompts",
                f"{replayed.form}, seed {replayed.seed}; {replayed.cache} cache, {replayed.turns} turns",
            ),
        ]
        if result.predicted is not None:
            found.append(("prediction", result.predicted.source))
        if result.plan_digest is not None and analysis is None:
            found.append(("plan digest", result.plan_digest))
        if result.plan_digest is not None and analysis is not None and result.plan_digest != analysis.digest():
            found.append(("validated plan", f"{result.plan_digest}: not the plan below"))
    if analysis is not None:
        found += tables.provenance(analysis)
    return tuple(found)


def _sentence(text: str) -> str:
    """With a capital and a full stop; a name in front, as of a GPU or an instance, keeps its letter."""
    first = text.split(" ", 1)[0].rstrip(",:;")
    plain = first.isalpha() and first.islower()
    return (text[:1].upper() + text[1:] if plain else text) + ("" if text.endswith((".", "?", ")")) else ".")
