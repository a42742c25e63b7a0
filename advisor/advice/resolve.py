"""Fill a Target from what is known: flag > target file > what runs now > log > this machine > preset.

Each field takes its value from the first layer that has one, and keeps that layer's name as its origin. Where
no model or no device can be found there is no target, and the reason says which flag would help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import yaml
from pydantic import ValidationError

from advisor.advice import profiles
from advisor.advice.links import parse_link
from advisor.advice.machine import Machine
from advisor.advice.target import CPU, Dtype, KvDtype, Objective, Origin, Stack, Target
from advisor.simulation.slo import Slo
from engine import __version__
from engine.errors import InputError
from engine.fetch import EMBEDDED_NAME, model_name

if TYPE_CHECKING:
    from advisor.advice.current import Current

Made = TypeVar("Made", Target, Slo)
_LATENCIES = ("ttft_s", "tpot_s", "tbt_s")


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The flags about the target; None: not given. `slo` names a preset, `target` a target.yaml."""

    stack: Stack | None = None
    stack_version: str | None = None
    model: str | None = None  # a profile's name, or a folder or config.json
    dtype: Dtype | None = None
    kv_dtype: str | None = None
    max_len: int | None = None
    gpu: str | None = None
    gpus: int | Literal["auto"] | None = None
    link: str | None = None
    gpu_price: float | None = None  # US dollars an hour of one GPU
    slo: str | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    tbt_s: float | None = None
    attainment: float | None = None
    objective: Objective | None = None
    deadline_s: float | None = None  # for the whole log as one batch
    isolation: Literal["none", "client", "session"] | None = None
    here: bool = False
    target: Path | None = None


@dataclass(frozen=True, slots=True)
class NoTarget:
    """Why there is no target, and the shortest flag that would give one."""

    reason: str
    hint: str


Layer = tuple[Origin, dict[str, Any]]


def resolve_target(
    options: TargetOptions, log_model: str | None, machine: Machine, current: Current | None = None
) -> Target | NoTarget:
    """The target, or why there is none.

    `log_model` is the model that the log names, `current` what serves it now. Raises InputError on unknown
    names and unreadable target files.
    """
    file = load_target(options.target) if options.target else {}
    offered = _from_machine(options.gpu or file.get("gpu"), options.here, machine)
    # A CPU runs the embedded model unless one is named: the log's own model would not fit it.
    from_log = {} if offered.get("gpu") == CPU else _from_log(log_model)
    layers: list[Layer] = [
        ("flag", _from_flags(options)),
        ("target file", {k: v for k, v in file.items() if k != "slo"}),
        ("what runs now", {} if offered.get("gpu") == CPU or current is None else _from_current(current)),
        ("log", from_log),
        ("this machine", offered),
        ("preset", {"stack": "advise", "gpus": 1}),
    ]
    fields, origins = _merge(layers)
    if "gpu" not in fields:
        return NoTarget("no GPU was found on this machine and none was named", "--gpu NAME, or --here")
    if fields["gpu"] != CPU:
        fields["gpu"] = profiles.gpu(fields["gpu"]).id
    if "model" not in fields:
        seen = (
            f"the log's model {log_model!r} is not in the profiles" if log_model else "the log names no model"
        )
        return NoTarget(f"{seen}, and none was named", "--model NAME")
    if "link" in fields:
        parse_link(fields["link"])
    if fields["stack"] == "advise" and "stack_version" not in fields:
        fields["stack_version"], origins["stack_version"] = __version__, "this machine"
    slo, slo_origins = _slo(options, file.get("slo", {}), on_cpu=fields["gpu"] == CPU)
    if fields.get("objective") == "throughput":
        slo, slo_origins = Slo(), {"slo": origins["objective"]}
    if "deadline_s" in fields:
        _check_deadline(fields, origins, slo)
    return _made(Target, {**fields, "slo": slo, "origins": {**origins, **slo_origins}}, origins)


def _made(kind: type[Made], values: dict[str, Any], origins: Mapping[str, Origin], where: str = "") -> Made:
    """The model of these values. Raises InputError that names the flag, or the field and where it is from."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        origin = origins.get(f"{where}{name}", "preset")
        said = f"--{name.removesuffix('_s').replace('_', '-')}" if origin == "flag" else f"{where}{name}"
        place = None if origin == "flag" else origin
        raise InputError(
            f"{said} {first['input']} cannot be used",
            where=place,
            why=first["msg"],
            hint="advise analyze --help   (says what each flag takes)",
        ) from None


def _check_deadline(fields: dict[str, Any], origins: dict[str, Origin], slo: Slo) -> None:
    """Refuse a deadline beside latency targets; drop that of a target file where `--objective` overrules it.

    Raises InputError.
    """
    if fields.get("objective") == "throughput" or (slo.ttft_s is None and slo.gap_s is None):
        if fields["deadline_s"] <= 0:
            raise InputError("--deadline must be longer than 0", hint="--deadline 6h")
    elif (origins["deadline_s"], origins.get("objective")) == ("target file", "flag"):
        del fields["deadline_s"], origins["deadline_s"]
    else:
        raise InputError(
            f"a deadline ({origins['deadline_s']}) is for a batch, and this plan is for latency targets",
            hint="--objective throughput --deadline 6h, or leave the deadline out",
        )


def known_gpu(options: TargetOptions, machine: Machine) -> str | None:
    """The GPU that the target will be on, as far as flags, target file and machine say; None: a CPU, or none.

    Raises InputError.
    """
    file = load_target(options.target) if options.target else {}
    named = options.gpu or file.get("gpu") or next(iter(machine.gpus), None)
    return None if named in (None, CPU) else profiles.gpu(named).id


def load_target(path: Path) -> dict[str, Any]:
    """Fields of a target.yaml that are set. Raises InputError naming the file."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        target = Target.model_validate(values)
    except OSError as error:
        raise InputError(
            "the target file cannot be read",
            where=str(path),
            why=error.strerror,
            hint="advise analyze LOG --gpu h100-sxm --model llama-3.1-8b   (writes a target.yaml)",
        ) from None
    except yaml.YAMLError as error:
        raise InputError(
            "the target file is not YAML",
            where=str(path),
            why=str(error),
            hint="advise analyze LOG --gpu h100-sxm --model llama-3.1-8b   (writes a target.yaml)",
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(
            "the target file is not a target",
            where=f"{path} {key}",
            why=first["msg"],
            hint="advise analyze LOG --gpu h100-sxm --model llama-3.1-8b   (writes a target.yaml)",
        ) from None
    return target.model_dump(exclude={"origins"}, exclude_none=True, exclude_unset=True)


def _merge(layers: list[Layer]) -> tuple[dict[str, Any], dict[str, Origin]]:
    fields: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for origin, values in layers:
        for name, value in values.items():
            if value is not None and name not in fields:
                fields[name], origins[name] = value, origin
    return fields, origins


def _from_flags(options: TargetOptions) -> dict[str, Any]:
    names = (
        "stack",
        "stack_version",
        "dtype",
        "kv_dtype",
        "max_len",
        "gpu",
        "gpus",
        "link",
        "gpu_price",
        "objective",
        "deadline_s",
        "isolation",
    )
    flags = {name: getattr(options, name) for name in names}
    return flags | _model(options.model) if options.model else flags


def _model(name: str) -> dict[str, Any]:
    """The name and path of a folder or file, else a profile's id."""
    if Path(name).exists():
        return {"model": model_name(name), "model_path": name}
    return {"model": profiles.model(name).id}


def _from_current(current: Current) -> dict[str, Any]:
    """What the running configuration says of engine, model and GPUs, in words that a target knows."""
    known = {
        "stack": (current.stack, Stack),
        "dtype": (current.other.get("quantization") or current.dtype, Dtype),
        "kv_dtype": (current.kv_dtype, KvDtype),
    }
    fields: dict[str, Any] = {
        name: value for name, (value, words) in known.items() if value != "auto" and value in get_args(words)
    }
    if "stack" in fields and current.version is not None:
        fields["stack_version"] = current.version
    return fields | _from_log(current.model) | {"max_len": current.max_len, "gpus": current.gpus}


def _from_log(log_model: str | None) -> dict[str, Any]:
    # A hosted or private name is no error: it only does not say which sizes to plan with.
    known = profiles.known_model(log_model) if log_model else None
    return {} if known is None else {"model": known.id}


def _from_machine(named: str | None, here: bool, machine: Machine) -> dict[str, Any]:
    """What this machine offers for the device that was named, or by itself where none was."""
    if named == CPU or (named is None and here and not machine.gpus):
        return {
            "gpu": CPU,
            "gpus": machine.cores,
            "model": EMBEDDED_NAME,
            "memory_bytes": machine.memory_bytes,
            "host": machine.host,
        }
    if not machine.gpus or (named is not None and profiles.gpu(named).id != machine.gpus[0]):
        return {}
    return {"gpu": machine.gpus[0], "gpus": machine.gpus.count(machine.gpus[0])}


def _slo(options: TargetOptions, file: dict[str, Any], on_cpu: bool) -> tuple[Slo, dict[str, Origin]]:
    """Latency targets: one whole base (preset flag, target file, default preset), then single flags over it.

    Latencies given as flags, without a preset or a file, are all that is asked for.
    """
    origin: Origin
    flags = {name: getattr(options, name) for name in (*_LATENCIES, "attainment")}
    if options.slo is not None:
        base, origin = _preset(options.slo), "flag"
    elif file:
        base, origin = file, "target file"
    elif any(flags[name] is not None for name in _LATENCIES):
        base, origin = {"attainment": Slo().attainment}, "preset"
    else:
        base, origin = _preset("here" if on_cpu else "chat"), "preset"
    values = dict(base)
    origins: dict[str, Origin] = {f"slo.{name}": origin for name in values}
    for name, flag in flags.items():
        if flag is not None:
            values[name], origins[f"slo.{name}"] = flag, "flag"
    return _made(Slo, values, origins, "slo."), origins


def _preset(name: str) -> dict[str, Any]:
    preset = profiles.slo(name)
    return {"ttft_s": preset.ttft_s, "tpot_s": preset.tpot_s, "attainment": preset.attainment}
