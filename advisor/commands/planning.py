"""From a log to a plan: `analyze`, `plan` and `redact`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from advisor import flags
from advisor.commands.pages import write_analysis_page
from advisor.commands.talk import talk
from engine.errors import InputError

if TYPE_CHECKING:
    from advisor.advice.analysis import Analysis
    from advisor.analyze import AnalyzeOptions


def analyze(
    log: flags.Logs,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the plan's files and report.html.  [default: advise-out, with a plan]"),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan/--no-plan", help="Measure only.")] = True,
    json: flags.Json = False,
    force: flags.Force = False,
    seed: flags.Seed = 0,
    where: flags.Where = None,
    since: flags.Since = None,
    until: flags.Until = None,
    log_share: flags.LogShare = "1",
    field_map: flags.FieldMap = None,
    tz: flags.Tz = "UTC",
    time_unit: flags.TimeUnit = None,
    block_size: flags.BlockSize = "16",
    cache_tokens: flags.CacheTokens = None,
    tokenizer: flags.TokenizerSource = None,
    here: flags.Here = False,
    target: flags.TargetFile = None,
    stack: flags.Stack = None,
    model: flags.Model = None,
    gpu: flags.Gpu = None,
    gpus: flags.Gpus = None,
    link: flags.Link = None,
    dtype: flags.Dtype = None,
    kv_dtype: flags.KvDtype = None,
    max_len: flags.MaxLen = None,
    slo: flags.Slo = None,
    ttft: flags.Ttft = None,
    tpot: flags.Tpot = None,
    tbt: flags.Tbt = None,
    attainment: flags.Attainment = None,
    objective: flags.Objective = None,
    deadline: flags.Deadline = None,
    isolate: flags.Isolate = None,
    gpu_price: flags.GpuPrice = None,
    current: flags.Current = None,
    no_ops: flags.NoOps = False,
    rate: flags.Rate = "1x",
    step_times: flags.StepTimes = None,
    compare_to: Annotated[
        Path | None, typer.Option(help="A plan: say how the traffic moved since, and plan nothing new.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 where it is time to plan again.")] = False,
    show_text: Annotated[
        bool, typer.Option("--show-text", help="Print the prompts around a layout finding; on a terminal only.")
    ] = False,
) -> int:
    """Measure LOG, say which scheduling ideas pay for it, and write the plan and its config files."""
    from advisor.analyze import AnalyzeOptions

    options = AnalyzeOptions(
        read=flags.read_options(
            where=where, since=since, until=until, log_share=log_share, field_map=field_map, tz=tz,
            time_unit=time_unit, block_size=block_size, seed=seed,
        ),
        target=flags.target_options(
            stack=stack, model=model, dtype=dtype, kv_dtype=kv_dtype, link=link, slo=slo, objective=objective,
            isolation=isolate, attainment=attainment, here=here, target=target, gpu=gpu, gpus=gpus,
            max_len=max_len, ttft=ttft, tpot=tpot, tbt=tbt, deadline=deadline, gpu_price=gpu_price,
        ),
        tokenizer=tokenizer,
        step_times=step_times,
        cache_tokens=flags.counts_of(cache_tokens, "--cache-tokens"),
        rate=flags.multiple_of(rate),
        plan=plan,
        seed=seed,
        current=current,
        no_operations=no_ops,
    )  # fmt: skip
    if compare_to is not None:
        return _compare(log, options, compare_to, json=json, check=check)
    if check:
        raise InputError("--check needs a plan to compare with", hint="--compare-to advise-out --check")
    if show_text and not sys.stdout.isatty():
        raise InputError("--show-text prints prompts, and only on a terminal", hint="leave --show-text out")
    return _analyze(log, options, out, json=json, force=force, show_text=show_text)


def plan_again(
    what: Annotated[Path, typer.Argument(metavar="DIR|PLAN|TRACE", help="What `advise analyze` wrote.")],
    out: flags.Out = Path("advise-plan"),
    json: flags.Json = False,
    force: flags.Force = False,
    seed: flags.Seed = 0,
    here: flags.Here = False,
    target: flags.TargetFile = None,
    stack: flags.Stack = None,
    model: flags.Model = None,
    gpu: flags.Gpu = None,
    gpus: flags.Gpus = None,
    link: flags.Link = None,
    dtype: flags.Dtype = None,
    kv_dtype: flags.KvDtype = None,
    max_len: flags.MaxLen = None,
    slo: flags.Slo = None,
    ttft: flags.Ttft = None,
    tpot: flags.Tpot = None,
    tbt: flags.Tbt = None,
    attainment: flags.Attainment = None,
    objective: flags.Objective = None,
    deadline: flags.Deadline = None,
    isolate: flags.Isolate = None,
    gpu_price: flags.GpuPrice = None,
    current: flags.Current = None,
    no_ops: flags.NoOps = False,
    rate: flags.Rate = "1x",
    step_times: flags.StepTimes = None,
    compare_to: Annotated[
        Path | None, typer.Option(help="Another plan for the same target: show both side by side.")
    ] = None,
) -> int:
    """Plan again for another target from the trace that an analysis wrote, without the log."""
    from advisor.advice.comparison import figures
    from advisor.advice.drift import load_analysis
    from advisor.analyze import AnalyzeOptions, saved

    found, other = saved(what), None if compare_to is None else load_analysis(compare_to)
    if other is not None:
        figures(other)  # without a plan in it there is nothing to compare with
    options = AnalyzeOptions(
        target=flags.target_options(
            stack=stack, model=model, dtype=dtype, kv_dtype=kv_dtype, link=link, slo=slo, objective=objective,
            isolation=isolate, attainment=attainment, here=here, target=target or found.target, gpu=gpu,
            gpus=gpus, max_len=max_len, ttft=ttft, tpot=tpot, tbt=tbt, deadline=deadline,
            gpu_price=gpu_price,
        ),
        step_times=step_times,
        rate=flags.multiple_of(rate),
        seed=seed,
        current=current,
        no_operations=no_ops,
        beside=None if other is None else other.plan,
    )  # fmt: skip
    return _analyze([str(found.trace)], options, out, json=json, force=force, beside=other, measured=False)


def redact(
    log: flags.Logs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The trace file to write.")],
    block_size: Annotated[
        str | None, typer.Option(help="Write standard keys only, in blocks of so many tokens, for other tools.")
    ] = None,
    share_safe: Annotated[
        bool,
        typer.Option("--share-safe", help="Coarsen lengths and times, merge what is rare; show the effect."),
    ] = False,
    seed: flags.Seed = 0,
    where: flags.Where = None,
    since: flags.Since = None,
    until: flags.Until = None,
    log_share: flags.LogShare = "1",
    field_map: flags.FieldMap = None,
    tz: flags.Tz = "UTC",
    time_unit: flags.TimeUnit = None,
    tokenizer: flags.TokenizerSource = None,
    here: flags.Here = False,
    target: flags.TargetFile = None,
    model: flags.Model = None,
    gpu: flags.Gpu = None,
    gpus: flags.Gpus = None,
    slo: flags.Slo = None,
) -> int:
    """Write LOG as a trace without text and names, to plan from elsewhere or to give away."""
    from advisor.analyze import AnalyzeOptions
    from advisor.redact import RedactOptions, describe
    from advisor.redact import redact as redact_log
    from advisor.report.progress import progress

    options = RedactOptions(
        out,
        AnalyzeOptions(
            read=flags.read_options(
                where=where, since=since, until=until, log_share=log_share, field_map=field_map, tz=tz,
                time_unit=time_unit, block_size="16", seed=seed,
            ),
            target=flags.target_options(
                here=here, target=target, model=model, gpu=gpu, gpus=gpus, slo=slo
            ),
            tokenizer=tokenizer,
            seed=seed,
        ),
        flags.count_of(block_size, "--block-size"),
        share_safe,
    )  # fmt: skip
    with progress(talk(), "reading") as advance:
        redacted = redact_log(log, options, advance)
    for line in describe(redacted):
        typer.echo(line)
    return 0


def _analyze(
    log: list[str],
    options: AnalyzeOptions,
    out: Path | None,
    *,
    json: bool,
    force: bool,
    show_text: bool = False,
    beside: Analysis | None = None,
    measured: bool = True,
) -> int:
    """Analyze, write and print; `beside` is a plan to compare with, `measured`: print the measurement too.

    Without a plan there are no files, but the report where a folder was named. A report goes where it does not
    replace that of another plan unasked.
    """
    from advisor.analyze import analyze as analyze_log
    from advisor.analyze import prompt_excerpts
    from advisor.logs.save import save
    from advisor.report.beside import show_beside
    from advisor.report.progress import watching
    from advisor.report.terminal import show_analysis, show_excerpts, show_next

    with watching(talk()) as watch:
        analysis, trace = analyze_log(log, options, watch.reading, watch.simulating)
    folder = out or Path("advise-out")
    files: tuple[Path, ...] = ()
    if analysis.plan is not None:
        from advisor.deploy.files import write_plan_files

        files = write_plan_files(folder, analysis, partial(save, trace), force=force)
    if files or out is not None:
        files = (*files, write_analysis_page(folder, analysis, trace))
    if json:
        typer.echo(analysis.model_dump_json(indent=2))
    else:
        show_analysis(Console(), analysis, measured=measured)
    if beside is not None and not json:
        show_beside(Console(), beside, analysis)
    if show_text and analysis.layout is not None:
        show_excerpts(Console(), prompt_excerpts(log, options, analysis.layout))
    show_next(talk() if json else Console(), analysis, folder, files)
    return 1 if analysis.plan is not None and analysis.plan.verdict == "infeasible" else 0


def _compare(log: list[str], options: AnalyzeOptions, plan: Path, *, json: bool, check: bool) -> int:
    from advisor.advice.drift import compare_to
    from advisor.analyze import read_model
    from advisor.report.drift import show_drift
    from advisor.report.progress import progress

    with progress(talk(), "reading") as advance:
        drift = compare_to(plan, read_model(log, options, advance))
    if json:
        typer.echo(drift.model_dump_json(indent=2))
    else:
        show_drift(Console(), drift)
    return 1 if check and drift.replan else 0
