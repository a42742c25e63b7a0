"""The loop on the real engine: a plan that holds passes; a bad budget or slow steps fail.

Speeds differ from machine to machine, so the per-token target is set from a first run on this one. The TTFT
targets are wide: the client shares the cores with the engine, and its send-lag gate is a share of the target.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.embedded import embedded_folder
from helpers.quick import only_the_decision

from advisor.advice.resolve import TargetOptions
from advisor.analyze import AnalyzeOptions, analyze
from advisor.deploy import launch as launching
from advisor.deploy.files import write_plan_files
from advisor.logs.save import save
from advisor.logs.trace import Trace
from advisor.samples import ChatService, write_sample
from advisor.simulation.slo import Slo
from advisor.validation.options import Options
from advisor.validation.result import Result
from advisor.validation.validate import validate

WINDOW = "busiest:10s"
LIGHT = ChatService(
    minutes=6, sessions_rps=0.12, documents_rps=0.03, burst=1.0, system_words=200, document_words=(150, 300)
)
BAD_BUDGET = 2  # tokens of a step: two requests at a time, a prompt of 300 uncached tokens takes 150 steps


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trace]:
    """A light sample log, analysed for this machine: the folder of the plan, and the trace."""
    embedded_folder()
    out = tmp_path_factory.mktemp("loop")
    write_sample(out / "chat.jsonl", LIGHT)
    options = AnalyzeOptions(target=TargetOptions(here=True, slo="here"))
    with pytest.MonkeyPatch.context() as patch:
        only_the_decision(patch)
        analysis, trace = analyze([out / "chat.jsonl"], options)
    write_plan_files(out, analysis, lambda path: save(trace, path))
    return out, trace


def measure(plan: tuple[Path, Trace], slo: Slo, fault: str | None = None) -> Result:
    """Launch the plan as its files are now, replay the window, stop."""
    out, trace = plan
    with launching.launch(launching.find(out), port=0, fault=fault) as launched:
        return validate(trace, url=launched.engine.url, slo=slo, window=WINDOW, options=Options(seed=1))


@pytest.fixture(scope="module")
def healthy(plan: tuple[Path, Trace]) -> Result:
    """A first run, judged by nothing but completion."""
    return measure(plan, Slo(ttft_s=60, tpot_s=60))


def test_every_request_completes_with_its_lengths_and_its_cached_tokens(healthy: Result) -> None:
    assert healthy.verdict in ("PASS", "LIKELY PASS")  # a few requests prove little
    assert healthy.score.good == healthy.score.requests > 0
    assert all(r.n_in == r.want_in and r.n_out == r.want_out for r in healthy.records)
    assert healthy.cached is not None
    assert 0 < healthy.cached.measured_tokens <= healthy.cached.expected_tokens


@pytest.mark.slow  # tests/validation has it on a fake server in every run
def test_every_step_slowed_threefold_fails(plan: tuple[Path, Trace], healthy: Result) -> None:
    assert healthy.latencies.tpot is not None
    slo = Slo(ttft_s=60, tpot_s=2 * healthy.latencies.tpot.max)
    slow = measure(plan, slo, fault="slow-steps:3")
    assert slow.verdict.endswith("FAIL")
    assert any("tpot" in kind for kind in slow.score.misses)


@pytest.mark.slow  # a minute: the engine starts again
def test_the_same_plan_with_a_bad_budget_fails(plan: tuple[Path, Trace]) -> None:
    engine = plan[0] / "engine.yaml"
    planned = engine.read_text()
    budget = launching.find(plan[0]).config.pools[0].token_budget
    engine.write_text(planned.replace(f"token_budget: {budget}", f"token_budget: {BAD_BUDGET}"))
    try:
        [edit] = launching.find(plan[0]).edits
        assert (edit.key, edit.actual) == ("pools.0.token_budget", BAD_BUDGET)
        bad = measure(plan, Slo(ttft_s=3, tpot_s=10))
    finally:
        engine.write_text(planned)
    assert bad.verdict.endswith("FAIL")
    assert any("ttft" in kind for kind in bad.score.misses)
