"""The demo: the whole loop on this machine, with a generated log and the embedded model.

    sample log -> calibrate -> analyze -> baseline, replayed -> advised, replayed -> side by side

Owns the order and the baseline: prefill first, no prefix cache, else as advised. Both runs get the same window
of the same trace. Everything that is started is stopped.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from advisor.advice.analysis import Analysis
from advisor.advice.resolve import TargetOptions
from advisor.advice.target import CPU
from advisor.analyze import AnalyzeOptions, analyze
from advisor.deploy import launch as launching
from advisor.deploy.calibrate import CalibrationResult, calibrate
from advisor.deploy.files import write_plan_files
from advisor.logs.save import save
from advisor.logs.trace import Trace
from advisor.report.launch import show_calibration, show_launched
from advisor.report.progress import progress
from advisor.report.rows import row
from advisor.report.terminal import show_analysis
from advisor.report.verdict import ReplayTalk, show_results
from advisor.samples import ChatService, write_sample
from advisor.simulation.slo import Slo
from advisor.validation.options import Options
from advisor.validation.result import REQUESTS_NAME, Result
from advisor.validation.session import load_of, served_by
from advisor.validation.validate import validate
from engine.config import EngineConfig
from engine.config_file import config_text
from engine.errors import MachineError
from engine.launchable import devices

WINDOW = "busiest:45s"
BASELINE_BUDGET = 2048  # tokens; longer than any prompt of the sample, so that every prompt is one step


def run_demo(out: Path, console: Console, talk: Console, *, model: str | None = None, seed: int = 0) -> int:
    """Run the loop with its files in `out`; gives the exit code: 0 for PASS or FAIL, 4 for INVALID.

    Raises MachineError where the model or the engine cannot be had.
    """
    out.mkdir(parents=True, exist_ok=True)
    log = out / "chat.jsonl"
    talk.rule("1  a sample log")
    requests = write_sample(log, ChatService(), seed)
    row(console, "wrote", f"{log}: {requests:,} requests of a chat service, with documents and bursts")
    talk.rule("2  step times of this machine")
    show_calibration(console, _calibrate(model, talk))
    talk.rule("3  the log, measured; a plan for this machine")
    analysis, trace = _analyze(log, out, talk, model, seed)
    show_analysis(console, analysis)
    if analysis.plan is None or analysis.plan.choice is None:
        raise MachineError(
            "there is no plan to measure",
            why=analysis.plan_reason or "this machine is too slow",
            hint="advise calibrate --quick",
        )
    advised = launching.find(out)
    # A machine too slow for the window gets it stretched, the same for both runs; the verdict then says so.
    options = Options(seed=seed, load=load_of(analysis.plan), fit=frozenset({"rate"}))
    talk.rule("4  the baseline: prefill first, no prefix cache")
    slo, results = analysis.plan.target.slo, dict[str, Result]()
    baseline = launching.find(_write_baseline(out, advised.config))
    results["baseline"] = _measure(baseline, trace, slo, options, console, talk)
    talk.rule("5  the plan")
    options = replace(options, journal=out / REQUESTS_NAME, served=served_by(advised, analysis.plan))
    results["advised"] = _measure(advised, trace, slo, options, console, talk)
    results["advised"].save(out)
    talk.rule("6  side by side")
    show_results(console, results)
    row(console, "next", f"advise analyze YOUR_LOG --here   or   advise launch {out}")
    return 4 if any(result.verdict == "INVALID" for result in results.values()) else 0


def _calibrate(model: str | None, talk: Console) -> CalibrationResult:
    """Ten seconds of steps; the first time, the model is fetched before."""
    try:
        return calibrate(quick=True, model=model, progress=talk.print)
    except MachineError as error:
        hint = error.hint if model else "advise demo --model PATH   (a local Hugging Face folder or GGUF file)"
        raise MachineError(error.message, where=error.where, why=error.why, hint=hint) from None


def _analyze(log: Path, out: Path, talk: Console, model: str | None, seed: int) -> tuple[Analysis, Trace]:
    options = AnalyzeOptions(
        target=TargetOptions(here=True, gpu=CPU, slo="here", model=model), tokenizer=model, seed=seed
    )
    with progress(talk, "reading") as advance:
        analysis, trace = analyze([log], options, advance)
    if analysis.plan is not None:
        write_plan_files(out, analysis, partial(save, trace), force=True)
    return analysis, trace


def _write_baseline(out: Path, advised: EngineConfig) -> Path:
    """What serves without the three ideas: whole prompts before decodes, nothing kept between requests.

    One instance on all cores, with all of the memory for KV.
    """
    pool = advised.pools[0].model_copy(
        update={
            "role": "colocated",
            "count": 1,
            "devices_per_instance": devices(advised),
            "kv_tokens": sum(pool.count * (pool.kv_tokens or 0) for pool in advised.pools) or None,
            "batching": "prefill_first",
            "prefix_cache": False,
            "queue_policy": "fcfs",
            "token_budget": BASELINE_BUDGET,
        }
    )
    path = out / "baseline" / "engine.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(config_text(advised.model_copy(update={"pools": (pool,)})), encoding="utf-8")
    return path


def _measure(
    what: launching.Launchable, trace: Trace, slo: Slo, options: Options, console: Console, talk: Console
) -> Result:
    """Launch, replay the demo's window, stop. Raises KeyboardInterrupt where the replay was interrupted."""
    with launching.launch(what, port=0) as launched, progress(talk, "replaying") as advance:
        show_launched(console, launched)
        url, watcher = launched.engine.url, ReplayTalk(talk, advance)
        result = validate(trace, url=url, slo=slo, window=WINDOW, options=options, progress=watcher)
    if result.end == "interrupted":
        raise KeyboardInterrupt
    return result
