"""The commands: each parses its flags, calls one function and prints what it gives.

Owns flags, exit codes and the shape of errors. Stdout is data, stderr is talk. Imports of the packages that do
the work sit inside the commands, so that `advise --help` loads neither numpy nor torch.
"""

from __future__ import annotations

import sys
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer
from rich.console import Console

from advisor import flags
from engine.errors import AdviseError, InputError

if TYPE_CHECKING:
    from advisor.advice.analysis import Analysis
    from advisor.analyze import AnalyzeOptions

app = typer.Typer(
    name="advise",
    help="Reads the request logs of an LLM service, advises how to serve it, launches that and measures it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from advisor import __version__

        typer.echo(f"advise {__version__}")
        raise typer.Exit


@app.command()
def analyze(
    log: flags.Logs,
    out: flags.Out = Path("advise-out"),
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


@app.command("plan")
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


def _analyze(
    log: list[str],
    options: AnalyzeOptions,
    out: Path,
    *,
    json: bool,
    force: bool,
    show_text: bool = False,
    beside: Analysis | None = None,
    measured: bool = True,
) -> int:
    """Analyze, write and print; `beside` is a plan to compare with, `measured`: print the measurement too."""
    from advisor.analyze import analyze as analyze_log
    from advisor.analyze import prompt_excerpts
    from advisor.logs.save import save
    from advisor.report.beside import show_beside
    from advisor.report.progress import watching
    from advisor.report.terminal import show_analysis, show_excerpts, show_next

    with watching(_talk()) as watch:
        analysis, trace = analyze_log(log, options, watch.reading, watch.simulating)
    files: tuple[Path, ...] = ()
    if analysis.plan is not None:
        from advisor.deploy.files import write_plan_files

        files = write_plan_files(out, analysis, partial(save, trace), force=force)
    if json:
        typer.echo(analysis.model_dump_json(indent=2))
    else:
        show_analysis(Console(), analysis, measured=measured)
    if beside is not None and not json:
        show_beside(Console(), beside, analysis)
    if show_text and analysis.layout is not None:
        show_excerpts(Console(), prompt_excerpts(log, options, analysis.layout))
    show_next(_talk() if json else Console(), analysis, out, files)
    return 1 if analysis.plan is not None and analysis.plan.verdict == "infeasible" else 0


def _compare(log: list[str], options: AnalyzeOptions, plan: Path, *, json: bool, check: bool) -> int:
    from advisor.advice.drift import compare_to
    from advisor.analyze import read_model
    from advisor.report.drift import show_drift
    from advisor.report.progress import progress

    with progress(_talk(), "reading") as advance:
        drift = compare_to(plan, read_model(log, options, advance))
    if json:
        typer.echo(drift.model_dump_json(indent=2))
    else:
        show_drift(Console(), drift)
    return 1 if check and drift.replan else 0


@app.command()
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
    with progress(_talk(), "reading") as advance:
        redacted = redact_log(log, options, advance)
    for line in describe(redacted):
        typer.echo(line)
    return 0


@app.command()
def launch(
    what: Annotated[Path | None, typer.Argument(help="Output folder, plan.json or engine.yaml.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and stop.")] = False,
    step_log: Annotated[Path | None, typer.Option(help="Write every step's shape and time here.")] = None,
    load: Annotated[
        Literal["auto", "dummy"], typer.Option(help="dummy: random weights of the model's shape.")
    ] = "auto",
    emulate: Annotated[
        str | None, typer.Option(help="The plan's GPU: sleep its step times, with no GPU and no weights.")
    ] = None,
    time_scale: Annotated[
        float, typer.Option(help="With --emulate: all of its times, and a replay's arrivals, so often longer.")
    ] = 1.0,
    oversubscribe: Annotated[
        bool, typer.Option("--oversubscribe", help="More instances than cores: for correctness only.")
    ] = False,
) -> int:
    """Serve a plan with the bundled engine in the foreground; Ctrl-C drains."""
    import shlex

    from advisor.deploy import launch as launching
    from advisor.report.launch import show_cpu_times, show_launched, show_launching, show_serving

    found = launching.find(what)
    if emulate is None and time_scale != 1:
        raise InputError("--time-scale is for --emulate", hint="advise launch --emulate GPU --time-scale K")
    if dry_run:
        launching.refuse(found, port=port, emulated=emulate is not None, oversubscribe=oversubscribe)
        typer.echo(shlex.join(found.argv(load, emulated=emulate is not None, oversubscribe=oversubscribe)))
        return 0
    show_launching(_talk(), found)
    with launching.launch(
        found, port=port, step_log=step_log, load=load, emulate=emulate, time_scale=time_scale,
        oversubscribe=oversubscribe, progress=_talk().print,
    ) as launched:  # fmt: skip
        show_launched(Console(), launched)
        show_serving(Console(), launched)
        return launching.serve(launched, partial(show_cpu_times, Console()))


@app.command()
def validate(
    what: Annotated[Path | None, typer.Argument(help="Output folder or plan.json.")] = None,
    url: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible endpoint; else what `launch` runs.")
    ] = None,
    window: Annotated[str, typer.Option(help="busiest:10m, all, or FROM..TO seconds.")] = "busiest:10m",
    fit: Annotated[list[str] | None, typer.Option(help="Scale what does not fit: lengths, rate.")] = None,
    fault: Annotated[str | None, typer.Option(help="Start the engine with a fault: slow-steps:3.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the prompts' content; default: a new one.")] = None,
    json: flags.Json = False,
    yes: Annotated[bool, typer.Option("--yes", help="Allow a host that is not this machine.")] = False,
) -> int:
    """Replay a window of the traffic and say whether the latency targets are kept."""
    from advisor.report.progress import progress
    from advisor.report.verdict import ReplayTalk, show_results
    from advisor.validation.session import Wanted, validate_plan

    wanted = Wanted(
        what, url=url, window=window, fit=flags.fit_of(fit or []), fault=fault, seed=seed, allow_remote=yes
    )
    with progress(_talk(), "replaying") as advance:
        result = validate_plan(wanted, ReplayTalk(_talk(), advance))
    if json:
        typer.echo(result.model_dump_json(indent=2))
    else:
        show_results(Console(), {"measured": result})
    return result.exit_code


@app.command()
def calibrate(
    quick: Annotated[bool, typer.Option("--quick", help="Ten seconds of steps, not sixty.")] = False,
    model: Annotated[
        str | None, typer.Option(help="Model folder, GGUF file or hub name; else the embedded.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks: GPUs, or shares of the cores.")] = 1,
    from_log: Annotated[
        Path | None, typer.Option(help="Fit this step log of `launch --step-log`; measure nothing.")
    ] = None,
) -> int:
    """Measure the bundled engine's step times on this machine; fetches the model first if it is not here.

    On cores also those of an instance of one core, and what router and client take of them.
    """
    from advisor.advice.host import save_host_costs
    from advisor.deploy import calibrate as calibrating
    from advisor.report.launch import show_calibration, show_host_costs
    from advisor.validation.host_costs import measure_host_costs

    if from_log is not None:
        show_calibration(Console(), calibrating.refit(from_log))
        return 0
    whole = calibrating.calibrate(quick=quick, model=model, tp=tp, progress=_talk().print)
    show_calibration(Console(), whole)
    one_core = calibrating.calibrate_one_core(whole, quick=quick, model=model)
    if one_core is not None:
        show_calibration(Console(), one_core)
    if whole.key.device == "cpu":
        costs = measure_host_costs()
        save_host_costs(calibrating.host_path(), costs)
        show_host_costs(Console(), costs)
    return 0


@app.command()
def demo(
    out: flags.Out = Path("advise-demo"),
    model: Annotated[
        str | None, typer.Option(help="Model folder or GGUF file, where the default is not to be had.")
    ] = None,
    seed: flags.Seed = 0,
) -> int:
    """The whole loop on this machine: a sample log, a plan, and the plan measured beside the baseline."""
    from advisor.demo import run_demo

    return run_demo(out, Console(), _talk(), model=model, seed=seed)


def main() -> NoReturn:
    """Run the command line; the process exits with the code of docs/configuration.md."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and give its exit code; every error is printed the same way."""
    try:
        return int(app(arguments, prog_name="advise", standalone_mode=False) or 0)
    except AdviseError as error:
        _complain(error)
        return error.exit_code
    except typer.TyperException as error:  # unknown flags, missing arguments
        _complain(InputError(error.format_message(), hint="advise COMMAND --help"))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        _talk().print("interrupted")
        return 130
    except Exception as error:  # a bug: name the place, never the data
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        _complain(AdviseError(f"this is a bug in advise: {type(error).__name__} at {place}"))
        return 5


def _talk() -> Console:
    return Console(stderr=True, soft_wrap=True, highlight=False)


def _complain(error: AdviseError) -> None:
    from advisor.report.rows import visible

    console = _talk()
    console.print(f"error: {visible(error.message)}", style="red", markup=False)
    for label, text in (("where", error.where), ("why", error.why), ("hint", error.hint)):
        if text:
            console.print(f"  {label + ':':<6} {visible(text)}", markup=False)
