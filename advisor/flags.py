"""The flags of the commands: their names and help, and turning their text into options.

Only types and parsing; the work is in the modules that `cli` calls. Imports nothing heavy.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from advisor.units import parse_count, parse_seconds
from engine.errors import InputError

if TYPE_CHECKING:
    from advisor.advice.resolve import TargetOptions
    from advisor.logs.options import ReadOptions

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
FieldMap = Annotated[list[str] | None, typer.Option("--map", help="Where a field is: arrival=ts.")]
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
Gpus = Annotated[str | None, typer.Option(help="How many; auto: the fewest that keep the targets at the peak.")]
GpuPrice = Annotated[
    float | None, typer.Option(help="US dollars an hour of one GPU, in place of the profile's.")
]
Link = Annotated[str | None, typer.Option(help="Network between nodes: 100Gbps.")]
Dtype = Annotated[
    Literal["auto", "bfloat16", "float16", "float32", "fp8", "fp4", "int8", "int4"] | None,
    typer.Option(help="Of the weights."),
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
Objective = Annotated[
    Literal["goodput", "tbt", "throughput"] | None,
    typer.Option(help="What to maximise; tbt: the rate at which the run's P99 gap keeps it."),
]
Deadline = Annotated[str | None, typer.Option(help="Objective throughput: for the log as one batch, 6h.")]
Current = Annotated[
    str | None, typer.Option(help="What runs now: a launch line, a file, a metrics URL, or - for stdin.")
]
NoOps = Annotated[bool, typer.Option("--no-ops", help="Nobody would run a deployment: prefer a hosted API.")]
Isolate = Annotated[
    Literal["none", "client", "session"] | None, typer.Option(help="Whose prefixes stay apart.")
]
Rate = Annotated[str, typer.Option(help="Plan for a multiple of the log's rate: 2x.")]
StepTimes = Annotated[Path | None, typer.Option(help="A step_times.yaml of `advise calibrate`.")]


def read_options(
    *,
    where: list[str] | None,
    since: str | None,
    until: str | None,
    log_share: str,
    field_map: list[str] | None,
    tz: str,
    time_unit: str | None,
    block_size: str,
    seed: int,
) -> ReadOptions:
    """How to read the log. Raises InputError."""
    from advisor.logs.options import ReadOptions, parse_pairs

    return ReadOptions(
        where=tuple(pair for text in where or () for pair in parse_pairs(text, "--where")),
        since=since,
        until=until,
        field_map=tuple(pair for text in field_map or () for pair in parse_pairs(text, "--map")),
        time_unit=time_unit,
        tz=tz,
        log_share=share_of(log_share),
        block_size=parse_count(block_size, "--block-size"),
        seed=seed,
    )


def target_options(
    *,
    gpus: str | None = None,
    max_len: str | None = None,
    ttft: str | None = None,
    tpot: str | None = None,
    tbt: str | None = None,
    deadline: str | None = None,
    **plain: Any,
) -> TargetOptions:
    """What to plan for; `plain` are the flags that need no parsing. Raises InputError."""
    from advisor.advice.resolve import TargetOptions

    return TargetOptions(
        gpus=gpus_of(gpus),
        max_len=count_of(max_len, "--max-len"),
        ttft_s=None if ttft is None else parse_seconds(ttft, "--ttft"),
        tpot_s=None if tpot is None else parse_seconds(tpot, "--tpot"),
        tbt_s=None if tbt is None else parse_seconds(tbt, "--tbt"),
        deadline_s=None if deadline is None else parse_seconds(deadline, "--deadline"),
        **plain,
    )


def count_of(text: str | None, flag: str) -> int | None:
    """A token count. Raises InputError."""
    return None if text is None else parse_count(text, flag)


def counts_of(texts: list[str] | None, flag: str) -> tuple[int, ...]:
    """Token counts, several to a flag too. Raises InputError."""
    return tuple(parse_count(part, flag) for text in texts or () for part in text.split(","))


def fit_of(names: list[str]) -> frozenset[Literal["lengths", "rate"]]:
    """What `--fit` allows to scale. Raises InputError."""
    known: tuple[Literal["lengths", "rate"], ...] = ("lengths", "rate")
    for name in names:
        if name not in known:
            raise InputError(f"--fit {name!r} is not known", hint="--fit lengths, --fit rate, or both")
    return frozenset(name for name in known if name in names)


def gpus_of(text: str | None) -> int | Literal["auto"] | None:
    """`--gpus`. Raises InputError."""
    if text is None:
        return None
    return "auto" if text == "auto" else parse_count(text, "--gpus")


def share_of(text: str) -> Fraction:
    """`--log-share`. Raises InputError."""
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"--log-share {text!r} is not a share", hint="--log-share 1/8") from None


def multiple_of(text: str) -> float:
    """`--rate`. Raises InputError."""
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = 0.0
    if value <= 0:
        raise InputError(f"--rate {text!r} is not a multiple of the log's rate", hint="--rate 2x")
    return value
