"""What an endpoint does with the traffic: `validate`, `doctor` before it and `report` after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from advisor import flags
from advisor.commands import asking
from advisor.commands.pages import write_page
from advisor.commands.talk import talk

if TYPE_CHECKING:
    from pydantic import BaseModel


def validate(
    what: Annotated[Path | None, typer.Argument(help="Output folder or plan.json.")] = None,
    url: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible endpoint; else what `launch` runs.")
    ] = None,
    window: Annotated[
        str, typer.Option(help="busiest:10m, random:10m, all, or FROM..TO seconds.")
    ] = "busiest:10m",
    search: Annotated[
        bool, typer.Option("--search", help="After the log's own rate find the goodput: many replays.")
    ] = False,
    rate: flags.Rate = "1x",
    scale: Annotated[
        Literal["sessions", "time"], typer.Option(help="Other rates by whole sessions, or by dividing times.")
    ] = "sessions",
    turns: Annotated[
        Literal["open", "causal"], typer.Option(help="causal: no turn before the one before it has ended.")
    ] = "open",
    cache: Annotated[
        Literal["warm", "cold"], typer.Option(help="warm: replay what precedes the window first, unjudged.")
    ] = "warm",
    warm_up: Annotated[
        str | None, typer.Option(help="How long before the window: 2m; default: a quarter of it.")
    ] = None,
    slo_class: Annotated[
        list[str] | None,
        typer.Option("--class", help="Targets of some requests: route=batch:ttft=30s,tpot=500ms."),
    ] = None,
    fit: Annotated[list[str] | None, typer.Option(help="Scale what does not fit: lengths, rate.")] = None,
    fault: Annotated[
        str | None,
        typer.Option(
            help="On an engine started for it: decode-kill, prefill-kill, pause, slow-link, slow-steps:3."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the last run of this folder was interrupted.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="Which of the endpoint's models.")] = None,
    tokenizer: flags.TokenizerSource = None,
    key_file: asking.KeyFile = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="The endpoint serves others meanwhile, and that is meant.")
    ] = False,
    max_rate: Annotated[float | None, typer.Option(help="Most requests/s in any ten seconds.")] = None,
    max_requests: Annotated[int | None, typer.Option(help="Most requests in all.")] = None,
    max_cost: Annotated[float | None, typer.Option(help="Most US dollars in all.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the prompts' content; default: a new one.")] = None,
    json: flags.Json = False,
    yes: asking.Yes = False,
) -> int:
    """Replay a window of the traffic, say whether the latency targets are kept, and write the report."""
    from advisor.deploy.launch import find
    from advisor.report.progress import progress
    from advisor.report.verdict import ReplayTalk, show_results
    from advisor.units import parse_seconds
    from advisor.validation.classes import parse_classes
    from advisor.validation.keys import read_key
    from advisor.validation.options import Options
    from advisor.validation.refuse import Limits
    from advisor.validation.session import Wanted, validate_plan

    wanted = Wanted(what, url=url, window=window, fault=fault, search=search)
    options = Options(
        fit=flags.fit_of(fit or []),
        rate=flags.multiple_of(rate),
        scale=scale,
        turns=turns,
        cache=cache,
        warm_up_s=None if warm_up is None else parse_seconds(warm_up, "--warm-up"),
        classes=parse_classes(slo_class or []),
        seed=seed,
        allow_remote=url is not None and asking.may_send(url, yes=yes),
        shared=shared,
        limits=Limits(max_rate=max_rate, max_requests=max_requests, max_cost=max_cost),
        api_key=read_key(key_file),
        model=model,
        tokenizer=tokenizer,
        resume=resume,
    )
    with progress(talk(), "replaying") as advance:
        result = validate_plan(wanted, options, ReplayTalk(talk(), advance))
    write_page(find(what).folder)
    if json:
        typer.echo(result.model_dump_json(indent=2))
    else:
        show_results(Console(), {"measured": result})
    return result.exit_code


def doctor(
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Look at an endpoint: what it is, takes and tells.")
    ] = None,
    client: Annotated[
        bool, typer.Option("--client", help="Measure what the replay client reaches here; half a minute.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="With --endpoint: which of its models.")] = None,
    tokenizer: flags.TokenizerSource = None,
    key_file: asking.KeyFile = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 3 where anything is to be said against it.")
    ] = False,
    json: flags.Json = False,
) -> int:
    """Look at this machine, an endpoint or the replay client; a few small requests are all that is sent."""
    from advisor.report import doctor as showing
    from advisor.validation import doctor as looking
    from advisor.validation import roofline
    from advisor.validation.keys import read_key

    console = Console()
    found: dict[str, BaseModel] = {}
    machine = looking.check_environment()
    found["machine"] = machine
    if not json:
        showing.show_environment(console, machine)
    there = None
    if endpoint is not None:
        key = read_key(key_file)
        there = looking.check_endpoint(endpoint, api_key=key, model=model, tokenizer=tokenizer)
        found["endpoint"] = there
        if not json:
            showing.show_endpoint(console, there)
    if client:
        reached = roofline.measure_client(say=lambda words: talk().print(words))
        found["client"] = reached
        if not json:
            typer.echo("\n".join(roofline.lines(reached)))
    if json:
        typer.echo(_as_json(found))
    sound = machine.sound and (there is None or all(one.level == "ok" for one in there.findings))
    return 3 if (there is not None and there.fails) or (strict and not sound) else 0


def _as_json(found: dict[str, BaseModel]) -> str:
    from json import dumps

    return dumps({name: model.model_dump(mode="json") for name, model in found.items()}, indent=2)


def report(
    what: Annotated[Path, typer.Argument(metavar="[DIR]", help="An output folder.")] = Path("advise-out"),
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to; else into the folder.")] = None,
) -> int:
    """Write the HTML report again, of the plan and the validation that DIR holds, and print its path."""
    typer.echo(str(write_page(what, out)))
    return 0
