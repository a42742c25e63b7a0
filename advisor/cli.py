"""The commands: each parses its flags, calls one function and prints what it gives.

Owns flags, exit codes and the shape of errors. Stdout is data, stderr is talk. Imports of the packages that do
the work sit inside the commands, so that `advise --help` loads neither numpy nor torch.
"""

from __future__ import annotations

import sys
import traceback
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer
from rich.console import Console

from advisor.units import parse_count, parse_seconds
from engine.errors import AdviseError, InputError

if TYPE_CHECKING:
    from advisor.analyze import AnalyzeOptions

app = typer.Typer(
    name="advise",
    help="Reads the request logs of an LLM service, advises how to serve it, launches that and measures it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Logs = Annotated[list[str], typer.Argument(metavar="LOG...", help="Files, folders, or - for stdin.")]
Out = Annotated[Path, typer.Option(help="Folder for the generated files.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite generated files that were edited by hand.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]

# Selection and reading
Where = Annotated[list[str] | None, typer.Option(help="FIELD=VALUE: model, client, route, session or status.")]
Since = Annotated[str | None, typer.Option(help="Only requests from this time on: ISO, epoch, or 10m.")]
Until = Annotated[str | None, typer.Option(help="Only requests before this time.")]
LogShare = Annotated[str, typer.Option(help="Share of the log to read, whole sessions: 1/8.")]
Tz = Annotated[str, typer.Option(help="Zone of times that name none.")]
TimeUnit = Annotated[
    Literal["s", "ms", "us", "ns"] | None, typer.Option(help="Unit of numeric times, where the guess is wrong.")
]
BlockSize = Annotated[str, typer.Option(help="Tokens of a block, for logs with text.")]
CacheTokens = Annotated[list[str] | None, typer.Option(help="Cache sizes to add to the curve, tokens.")]
TokenizerSource = Annotated[
    str | None, typer.Option("--tokenizer", help="Model folder whose tokenizer to use.")
]

# Target
Here = Annotated[bool, typer.Option("--here", help="Plan for this machine; without a GPU, the embedded model.")]
TargetFile = Annotated[Path | None, typer.Option("--target", help="A target.yaml; flags go before it.")]
Stack = Annotated[Literal["advise", "vllm", "sglang", "trtllm"] | None, typer.Option(help="Serving engine.")]
Model = Annotated[str | None, typer.Option(help="A profile's name, a local folder, or a config.json.")]
Gpu = Annotated[str | None, typer.Option(help="GPU, as in profiles: h100-sxm.")]
Gpus = Annotated[str | None, typer.Option(help="How many GPUs, or auto.")]
Link = Annotated[str | None, typer.Option(help="Network between nodes: 100Gbps.")]
Dtype = Annotated[
    Literal["auto", "bfloat16", "float16", "float32"] | None, typer.Option(help="Of the weights.")
]
KvDtype = Annotated[
    Literal["auto", "bfloat16", "float16", "float32", "fp8"] | None,
    typer.Option(help="KV cache; auto: as the weights."),
]
MaxLen = Annotated[str | None, typer.Option(help="Longest prompt plus output, tokens.")]
Slo = Annotated[str | None, typer.Option(help="Latency targets by name: chat, here, summarize ...")]
Ttft = Annotated[str | None, typer.Option(help="Time to first token: 500ms.")]
Tpot = Annotated[str | None, typer.Option(help="Mean time per output token: 50ms.")]
Tbt = Annotated[str | None, typer.Option(help="Largest gap between tokens: 200ms.")]
Attainment = Annotated[float | None, typer.Option(help="Share of requests that must keep them all: 0.9.")]
Objective = Annotated[Literal["goodput", "throughput"] | None, typer.Option(help="What to maximise.")]
Isolate = Annotated[
    Literal["none", "client", "session"] | None, typer.Option(help="Whose prefixes stay apart.")
]
Rate = Annotated[str, typer.Option(help="Plan for a multiple of the log's rate: 2x.")]
StepTimes = Annotated[Path | None, typer.Option(help="A step_times.yaml of `advise calibrate`.")]


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
    log: Logs,
    out: Out = Path("advise-out"),
    plan: Annotated[bool, typer.Option("--plan/--no-plan", help="Measure only.")] = True,
    json: Json = False,
    force: Force = False,
    seed: Seed = 0,
    where: Where = None,
    since: Since = None,
    until: Until = None,
    log_share: LogShare = "1",
    field_map: Annotated[list[str] | None, typer.Option("--map", help="Where a field is: arrival=ts.")] = None,
    tz: Tz = "UTC",
    time_unit: TimeUnit = None,
    block_size: BlockSize = "16",
    cache_tokens: CacheTokens = None,
    tokenizer: TokenizerSource = None,
    here: Here = False,
    target: TargetFile = None,
    stack: Stack = None,
    model: Model = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    link: Link = None,
    dtype: Dtype = None,
    kv_dtype: KvDtype = None,
    max_len: MaxLen = None,
    slo: Slo = None,
    ttft: Ttft = None,
    tpot: Tpot = None,
    tbt: Tbt = None,
    attainment: Attainment = None,
    objective: Objective = None,
    isolate: Isolate = None,
    rate: Rate = "1x",
    step_times: StepTimes = None,
) -> int:
    """Measure LOG, say which scheduling ideas pay for it, and write the plan and its config files."""
    from advisor.advice.resolve import TargetOptions
    from advisor.analyze import AnalyzeOptions
    from advisor.logs.options import ReadOptions, parse_pairs

    read = ReadOptions(
        where=tuple(pair for text in where or () for pair in parse_pairs(text, "--where")),
        since=since,
        until=until,
        field_map=tuple(pair for text in field_map or () for pair in parse_pairs(text, "--map")),
        time_unit=time_unit,
        tz=tz,
        log_share=_share(log_share),
        block_size=parse_count(block_size, "--block-size"),
        seed=seed,
    )
    wanted = TargetOptions(
        stack=stack, model=model, dtype=dtype, kv_dtype=kv_dtype, link=link, slo=slo, objective=objective,
        isolation=isolate, attainment=attainment, here=here, target=target, gpu=gpu,
        gpus=_gpus(gpus),
        max_len=None if max_len is None else parse_count(max_len, "--max-len"),
        ttft_s=None if ttft is None else parse_seconds(ttft, "--ttft"),
        tpot_s=None if tpot is None else parse_seconds(tpot, "--tpot"),
        tbt_s=None if tbt is None else parse_seconds(tbt, "--tbt"),
    )  # fmt: skip
    options = AnalyzeOptions(
        read=read,
        target=wanted,
        tokenizer=tokenizer,
        step_times=step_times,
        cache_tokens=tuple(
            parse_count(n, "--cache-tokens") for part in cache_tokens or () for n in part.split(",")
        ),
        rate=_multiple(rate),
        plan=plan,
        seed=seed,
    )
    return _analyze(log, options, out, json=json, force=force)


def _analyze(log: list[str], options: AnalyzeOptions, out: Path, *, json: bool, force: bool) -> int:
    from advisor.analyze import analyze as analyze_log
    from advisor.deploy.files import write_plan_files
    from advisor.logs.save import save
    from advisor.report.progress import progress
    from advisor.report.terminal import show_analysis, show_next

    with progress(_talk(), "reading") as advance:
        analysis, trace = analyze_log(log, options, advance)
    files: tuple[Path, ...] = ()
    if analysis.plan is not None:
        files = write_plan_files(out, analysis, partial(save, trace), force=force)
    if json:
        typer.echo(analysis.model_dump_json(indent=2))
    else:
        show_analysis(Console(), analysis)
    show_next(_talk() if json else Console(), analysis, out, files)
    return 1 if analysis.plan is not None and analysis.plan.verdict == "infeasible" else 0


@app.command()
def launch(
    what: Annotated[Path | None, typer.Argument(help="Output folder, plan.json or engine.yaml.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and stop.")] = False,
    step_log: Annotated[Path | None, typer.Option(help="Write every step's shape and time here.")] = None,
) -> int:
    """Serve a plan with the bundled engine in the foreground; Ctrl-C drains."""
    import shlex

    from advisor.deploy import launch as launching
    from advisor.report.launch import show_launched, show_launching, show_serving

    found = launching.find(what)
    if dry_run:
        launching.refuse(found, port=port)
        typer.echo(shlex.join(found.argv()))
        return 0
    show_launching(_talk(), found)
    with launching.launch(found, port=port, step_log=step_log, progress=_talk().print) as launched:
        show_launched(Console(), launched)
        show_serving(Console(), launched)
        return launching.serve(launched)


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
    json: Json = False,
    yes: Annotated[bool, typer.Option("--yes", help="Allow a host that is not this machine.")] = False,
) -> int:
    """Replay a window of the traffic and say whether the latency targets are kept."""
    from advisor.report.progress import progress
    from advisor.report.verdict import ReplayTalk, show_results
    from advisor.validation.session import Wanted, validate_plan

    wanted = Wanted(what, url=url, window=window, fit=_fit(fit or []), fault=fault, seed=seed, allow_remote=yes)
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
) -> int:
    """Measure the bundled engine's step times on this machine; fetches the model first if it is not here."""
    from advisor.deploy.calibrate import calibrate as measure_steps
    from advisor.report.launch import show_calibration

    show_calibration(Console(), measure_steps(quick=quick, model=model, progress=_talk().print))
    return 0


@app.command()
def demo(
    out: Out = Path("advise-demo"),
    model: Annotated[
        str | None, typer.Option(help="Model folder or GGUF file, where the default is not to be had.")
    ] = None,
    seed: Seed = 0,
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
    console = _talk()
    console.print(f"error: {error.message}", style="red", markup=False)
    for label, text in (("where", error.where), ("why", error.why), ("hint", error.hint)):
        if text:
            console.print(f"  {label + ':':<6} {text}", markup=False)


def _fit(names: list[str]) -> frozenset[Literal["lengths", "rate"]]:
    known: tuple[Literal["lengths", "rate"], ...] = ("lengths", "rate")
    for name in names:
        if name not in known:
            raise InputError(f"--fit {name!r} is not known", hint="--fit lengths, --fit rate, or both")
    return frozenset(name for name in known if name in names)


def _gpus(text: str | None) -> int | Literal["auto"] | None:
    if text is None:
        return None
    return "auto" if text == "auto" else parse_count(text, "--gpus")


def _share(text: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"--log-share {text!r} is not a share", hint="--log-share 1/8") from None


def _multiple(text: str) -> float:
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = 0.0
    if value <= 0:
        raise InputError(f"--rate {text!r} is not a multiple of the log's rate", hint="--rate 2x")
    return value
