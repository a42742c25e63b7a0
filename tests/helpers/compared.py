"""The Analysis of a trace, made without the search, and what a comparison with it says moved."""

from __future__ import annotations

from advisor.advice.advise import advise
from advisor.advice.analysis import Analysis, LogSummary, Meta
from advisor.advice.drift import PlanDrift
from advisor.advice.resolve import NoTarget
from advisor.advice.target import Target
from advisor.logs.trace import Trace
from advisor.workload.measure import measure
from advisor.workload.models import ModelRows
from engine.step_time.calibrated import CalibratedStepTime, Coefficients
from engine.step_time.files import Key

STEPS = CalibratedStepTime(Coefficients(0.020, 0.0, 0.001, 0.0, 0.0015, 0.0), 0.03, 0.08, 100)
KEY = Key("advise", "0.1.0", "cpu", "smollm2-135m-instruct", "bfloat16", 2)


def analysis(trace: Trace, model: str | None = None, wanted: Target | None = None) -> Analysis:
    """The Analysis of a trace, with a plan where there is a target."""
    measured = measure(trace)
    advice = advise(measured, wanted or NoTarget("none was given", "--here"), {KEY: STEPS})
    return Analysis(
        meta=Meta(advise_version="0.1.0", seed=0, inputs_digest="0" * 64),
        log=LogSummary(
            format="jsonl", files=1, lines=len(trace), requests=len(trace), skipped={},
            models=(ModelRows(name=model, requests=len(trace)),), span_s=measured.span_s, arrival_basis="",
            tick_s=None, token_basis="", prefix_basis=None,
        ),
        lengths=measured.lengths, arrivals=measured.arrivals, sharing=measured.sharing, classes=(),
        sessions=measured.sessions, clients=measured.clients, drift=measured.drift, traits=(),
        findings=advice.findings, unknown=measured.unknown, not_modelled=(), plan=advice.plan,
        plan_reason=advice.plan_reason,
    )  # fmt: skip


def over(drift: PlanDrift) -> set[str]:
    """The names of what moved."""
    return {move.name for move in drift.moves if move.over}
