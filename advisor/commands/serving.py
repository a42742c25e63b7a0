"""From a plan to an engine that runs: `launch`, `calibrate` and `demo`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from advisor import flags
from advisor.commands import asking
from advisor.commands.pages import write_page
from advisor.commands.talk import talk
from engine.errors import InputError


def launch(
    what: Annotated[Path | None, typer.Argument(help="Output folder, plan.json or engine.yaml.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and stop.")] = False,
    step_log: Annotated[Path | None, typer.Option(help="Write every step's shape and time here.")] = None,
    request_log: Annotated[
        Path | None, typer.Option(help="Write a log of the requests here, without text, for `advise analyze`.")
    ] = None,
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
    show_launching(talk(), found)
    with launching.launch(
        found, port=port, step_log=step_log, request_log=request_log, load=load, emulate=emulate,
        time_scale=time_scale, oversubscribe=oversubscribe, progress=talk().print,
    ) as launched:  # fmt: skip
        show_launched(Console(), launched)
        show_serving(Console(), launched)
        return launching.serve(launched, partial(show_cpu_times, Console()))


def calibrate(
    quick: Annotated[bool, typer.Option("--quick", help="Ten seconds of steps, not sixty.")] = False,
    model: Annotated[
        str | None, typer.Option(help="Model folder, GGUF file or hub name; else the embedded.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks: GPUs, or shares of the cores.")] = 1,
    from_log: Annotated[
        Path | None, typer.Option(help="Fit this step log of `launch --step-log`; measure nothing.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Measure one instance of an engine from outside: load for 5 min at most."),
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="With --url: what it runs on: h100-sxm, cpu.")] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="With --url: GPUs of the instance, or cores; else --tp.")
    ] = None,
    stack: Annotated[
        Literal["advise", "vllm", "sglang", "trtllm"] | None,
        typer.Option(help="With --url: the engine, where it does not tell."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="With --url: of the weights, as the target has it.")] = "auto",
    tokenizer: flags.TokenizerSource = None,
    key_file: asking.KeyFile = None,
    out: Annotated[
        Path | None, typer.Option(help="With --url: the step_times.yaml to put it into; else the user cache's.")
    ] = None,
    yes: asking.Yes = False,
) -> int:
    """Measure step times: the bundled engine's on this machine, or with --url those of an engine that runs.

    Fetches the model first if it is not here. On cores also measures an instance of one core, and what router
    and client take of them.
    """
    if url is not None:
        return _calibrate_url(
            url, gpu=gpu, gpus=gpus, tp=tp, stack=stack, model=model, dtype=dtype, tokenizer=tokenizer,
            key_file=key_file, out=out, yes=yes,
        )  # fmt: skip
    from advisor.advice.host import save_host_costs
    from advisor.deploy import calibrate as calibrating
    from advisor.report.launch import show_calibrated, show_calibration, show_host_costs
    from advisor.validation.host_costs import measure_host_costs

    if from_log is not None:
        show_calibration(Console(), calibrating.refit(from_log))
        show_calibrated(Console())
        return 0
    whole = calibrating.calibrate(quick=quick, model=model, tp=tp, progress=talk().print)
    show_calibration(Console(), whole)
    one_core = calibrating.calibrate_one_core(whole, quick=quick, model=model)
    if one_core is not None:
        show_calibration(Console(), one_core)
    if whole.key.device == "cpu":
        costs = measure_host_costs()
        save_host_costs(calibrating.host_path(), costs)
        show_host_costs(Console(), costs)
    show_calibrated(Console())
    return 0


def _calibrate_url(
    url: str,
    *,
    gpu: str | None,
    gpus: int | None,
    tp: int,
    stack: str | None,
    model: str | None,
    dtype: str,
    tokenizer: str | None,
    key_file: Path | None,
    out: Path | None,
    yes: bool,
) -> int:
    from advisor.report.launch import show_calibrated, show_calibration
    from advisor.validation.keys import read_key
    from advisor.validation.outside import calibrate_url

    if gpu is None:
        raise InputError(
            "what the engine runs on is not known",
            why="an endpoint does not tell its GPU, and step times are kept by it",
            hint="advise calibrate --url URL --gpu h100-sxm",
        )
    key = read_key(key_file)
    asking.ask_first(url, yes=yes, key=key is not None)
    result = calibrate_url(
        url, device=gpu, engine=stack, model=model, dtype=dtype, parallel=gpus or tp,
        tp=tp if tp > 1 else None,  # not said: all of its GPUs
        api_key=key, tokenizer=tokenizer, out=out, progress=talk().print,
    )  # fmt: skip
    show_calibration(Console(), result)
    for note in (*result.notes, *([result.warning] if result.warning else [])):
        talk().print(note, markup=False)
    show_calibrated(Console(), result.path)
    return 0


def demo(
    out: flags.Out = Path("advise-demo"),
    model: Annotated[
        str | None, typer.Option(help="Model folder or GGUF file, where the default is not to be had.")
    ] = None,
    seed: flags.Seed = 0,
) -> int:
    """The whole loop on this machine: a sample log, a plan, and the plan measured beside the baseline."""
    from advisor.demo import run_demo

    code = run_demo(out, Console(), talk(), model=model, seed=seed)
    write_page(out)
    return code
