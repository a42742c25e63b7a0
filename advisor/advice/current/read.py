"""`--current FILE|COMMAND|URL|-`: finds out which of the forms it is, and gives the configuration.

A launch line or script, a YAML config of vLLM, SGLang or TensorRT-LLM, a Kubernetes manifest, a compose file,
Python text that calls `mii.serve`, the address of a metrics page, or our engine.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO, get_args

import yaml
from pydantic import ValidationError

from advisor.advice.current import mii, sglang, tgi, trtllm, vllm
from advisor.advice.current.flags import Parsed, Table, canonical, parse_mapping, parse_words
from advisor.advice.current.launch import Launch, Program, find_launches
from advisor.advice.current.manifests import from_compose, from_kubernetes
from advisor.advice.current.merge import merge
from advisor.advice.current.metrics import read_metrics
from advisor.advice.current.model import Current, Said, Stack
from advisor.advice.current.router import Front, read_router
from advisor.advice.current.settings import Around
from advisor.advice.current.shell import base_name
from advisor.advice.current.values import Given
from engine.config import EngineConfig
from engine.errors import InputError

MOST_BYTES = 8 * 2**20
_HINT = "advise analyze LOG --current 'vllm serve MODEL --max-num-seqs 256'"
_KEY = re.compile(r"[\w./-]+")
_TABLES: dict[Stack, Table] = {
    "vllm": vllm.TABLE,
    "sglang": sglang.TABLE,
    "trtllm": trtllm.TABLE,
    "tgi": tgi.TABLE,
    "mii": mii.TABLE,
}
_BUILD: dict[Stack, Callable[[Parsed, Around], Current]] = {
    "vllm": vllm.build,
    "sglang": sglang.build,
    "trtllm": trtllm.build,
    "tgi": tgi.build,
    "mii": mii.build,
}


def read_current(source: str, around: Around = Around(), *, stdin: TextIO | None = None) -> Current:  # noqa: B008
    """The configuration that `source` describes; `around`: version and GPU where the user said them.

    Raises InputError that names the part that was not understood, and never shows a secret.
    """
    if re.match(r"(?i)https?://", source.strip()) and len(source.split()) == 1:
        return read_metrics(source.strip(), around)
    if source == "-":
        if stdin is None:
            raise InputError(
                "--current - reads standard input, and there is none",
                hint="kubectl get deploy NAME -o yaml | advise analyze LOG --current -",
            )
        return read_text(stdin.read(MOST_BYTES + 1), around, "standard input")
    path = _path(source)
    if path is not None:
        return read_text(_file_text(path), around, str(path), folder=path.parent)
    return read_text(source, around, "--current")


def defaults(
    stack: Stack,
    version: str | None = None,
    gpu_memory_gb: float | None = None,
    *,
    gpu: str | None = None,
    model: str | None = None,
    max_len: int | None = None,
    tp: int | None = None,
    count: int = 1,
) -> Current:
    """What `stack` does when nothing is said, on GPUs of `gpu_memory_gb` (1e9 bytes). Raises InputError."""
    if stack not in get_args(Stack):
        raise InputError(
            f"the stack {str(stack)[:20]!r} is not known",
            why=f"known are {', '.join(get_args(Stack))}",
            hint="--stack vllm",
        )
    around = Around(version, gpu, gpu_memory_gb, count=count)
    if stack == "advise":
        return _of_engine(EngineConfig(), "the bundled engine's defaults", said=False)
    values = {"model": model, "max_len": max_len, "tp": tp}
    given = {name: Given(value, "given") for name, value in values.items() if value is not None}
    return _BUILD[stack](Parsed(given), around)


def read_text(text: str, around: Around, where: str, *, folder: Path | None = None) -> Current:
    """The configuration in a text of any of the forms. Raises InputError."""
    if len(text) > MOST_BYTES:
        raise InputError("the text is too long for a configuration", where=where, hint=_HINT)
    if not text.strip():
        raise InputError("there is nothing to read", where=where, hint=_HINT)
    docs = _documents(text, where)
    if docs is not None:
        return _of_documents(docs, around, where, folder)
    python = mii.parse_python(text)
    if python is not None:
        return mii.build(python, around)
    launches = find_launches(text)
    if not launches:
        why = "no vllm serve, sglang, trtllm-serve, text-generation-launcher or mii.serve was found in it"
        raise InputError("no engine is started here", where=where, why=why, hint=_HINT)
    return _of_launches(launches, around, folder)


def _path(source: str) -> Path | None:
    """The file that `source` names; None where it is a command. Raises InputError where no such file is."""
    if "\n" in source or "\0" in source or len(source) > 1000:
        return None
    path = Path(source)
    try:
        if path.is_file():
            return path
    except (OSError, ValueError):
        return None
    if re.fullmatch(r"[\w./\\:~-]+\.(ya?ml|json|sh|py|txt)", source):
        raise InputError("there is no such file", where=source, hint=_HINT)
    return None


def _file_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(
            "the file cannot be read", where=str(path), why=error.strerror, hint=f"ls -l {path}"
        ) from None


def _documents(text: str, where: str) -> list[dict[Any, Any]] | None:
    """The mappings of YAML text; None where it is none. Raises InputError where it means to be and is not."""
    try:
        docs = [doc for doc in yaml.safe_load_all(text) if doc is not None]
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        if re.search(r"(?m)^(apiVersion|kind|services|pools|spec)\s*:", text):
            mark = getattr(error, "problem_mark", None)
            at = where if mark is None else f"{where}, line {mark.line + 1}"
            raise InputError(
                "not valid YAML",
                where=at,
                why=type(error).__name__,
                hint="mend the YAML, or give the launch line itself",
            ) from None
        return None
    # A command with JSON in it is a mapping for YAML too, but of a strange key.
    keyed = all(isinstance(doc, dict) and all(_KEY.fullmatch(str(key)) for key in doc) for doc in docs)
    return docs if docs and keyed else None


def _of_documents(docs: list[dict[Any, Any]], around: Around, where: str, folder: Path | None) -> Current:
    first = docs[0]
    if any("kind" in doc and "apiVersion" in doc for doc in docs):
        return _of_launches(from_kubernetes(docs), around, folder)
    if "services" in first:
        return _of_launches(from_compose(first), around, folder)
    if "pools" in first:
        return _of_engine(_engine_config(first, where), where, said=True)
    if "context_servers" in first or "generation_servers" in first:
        return _of_split(first, around, where)
    stack = _stack_of_keys(first, where)
    return merge([_BUILD[stack](_file_parsers()[stack](first, base_name(where)), around)], None)


def _file_parsers() -> dict[Stack, Callable[[Mapping[Any, Any], str], Parsed]]:
    return {
        "vllm": vllm.parse_file,
        "sglang": lambda values, where: parse_mapping(sglang.TABLE, values, where),
        "trtllm": trtllm.parse_file,
    }


def _stack_of_keys(values: Mapping[Any, Any], where: str) -> Stack:
    """The stack whose flags the keys are, by the most keys; knobs that only one stack has decide a tie."""
    keys = {canonical(str(key)).removeprefix("no-") for key in values}
    scores: list[tuple[int, int, Stack]] = []
    for stack in _file_parsers():
        names, others = set(_TABLES[stack].names), [t for s, t in _TABLES.items() if s != stack]
        own = {k for k in keys & set(_TABLES[stack].knobs) if not any(k in t.knobs for t in others)}
        scores.append((len(keys & names), len(own), stack))
    best = max(scores, key=lambda score: score[:2])
    if best[0] == 0:
        raise InputError("no key of this file is of vLLM, SGLang or TensorRT-LLM", where=where, hint=_HINT)
    return best[2]


def _engine_config(values: Mapping[Any, Any], where: str) -> EngineConfig:
    try:
        return EngineConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])[:80]
        raise InputError(
            "not an engine.yaml",
            where=f"{where}: {key}",
            why=first["type"],
            hint="advise analyze LOG   (writes one)",
        ) from None


def _of_engine(config: EngineConfig, where: str, *, said: bool) -> Current:
    read = (Said("pools", len(config.pools), where),) if said else ()
    name = config.model.name
    return Current(
        "advise",
        None,
        name,
        config.pools,
        config.router,
        config.model.dtype,
        max_len=config.model.max_len,
        read=read,
    )


def _of_split(values: Mapping[Any, Any], around: Around, where: str) -> Current:
    pools = trtllm.split_file(values, base_name(where))
    return merge([trtllm.build(parsed, replace(around, count=count)) for parsed, count in pools], None)


def _of_launches(launches: list[Launch], around: Around, folder: Path | None) -> Current:
    fronts = [read_router(launch.words) for launch in launches if launch.program == "router"]
    engines = [launch for launch in launches if launch.program != "router"]
    if not engines:
        raise InputError("only a router is started here", why="the engines behind it are needed", hint=_HINT)
    built = [_of_launch(launch, around, folder) for launch in engines]
    front: Front | None = fronts[0] if fronts else None
    return merge(built, front)


def _of_launch(launch: Launch, around: Around, folder: Path | None) -> Current:
    here = Around(
        around.version or launch.version,
        around.gpu,
        around.gpu_memory_gb,
        launch.devices or around.devices,
        launch.count,
        launch.env,
    )
    if launch.program == "trtllm-split":
        return _split_command(launch, here, folder)
    stack = _stack(launch.program)
    parsed = parse_words(_TABLES[stack], launch.words)
    if stack == "tgi":
        parsed = parsed.over(tgi.parse_environment(launch.env))
    current = _BUILD[stack](_with_file(stack, parsed, launch, folder), here)
    used = current.gpus // launch.count
    if launch.devices is None or used == launch.devices:
        return current
    note = f"the launch has {launch.devices} GPUs and its flags use {used}"
    return replace(current, notes=(*current.notes, note))


def _stack(program: Program) -> Stack:
    for stack in _TABLES:
        if stack == program:
            return stack
    raise InputError(f"{program} is not an engine", hint=_HINT)


def _with_file(stack: Stack, parsed: Parsed, launch: Launch, folder: Path | None) -> Parsed:
    """The launch line together with its config file: the line wins, but in TensorRT-LLM the file does."""
    given = parsed.given.get("config")
    if given is None or stack not in _file_parsers():
        return parsed
    name = str(given.value)
    values = _config_values(name, launch, folder)
    if values is None:
        note = f"the file of {given.by} is not here: what it sets is not counted; give its text with --current"
        return Parsed(parsed.given, parsed.ignored, parsed.unknown, (*parsed.notes, note))
    file = _file_parsers()[stack](values, base_name(name))
    return file.over(parsed) if stack == "trtllm" else parsed.over(file)


def _config_values(name: str, launch: Launch, folder: Path | None) -> dict[Any, Any] | None:
    """The mapping in a config file: one that the text itself writes, else one beside it; None where none is."""
    text = launch.files.get(base_name(name))
    if text is None:
        path = next((p for p in (Path(name), (folder or Path()) / base_name(name)) if _is_file(p)), None)
        text = _file_text(path) if path is not None else None
    if text is None:
        return None
    docs = _documents(text, base_name(name))
    if docs is None:
        raise InputError(
            "the config file is not YAML with keys",
            where=base_name(name),
            hint="the config file of the engine has `key: value` lines",
        )
    return docs[0]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _split_command(launch: Launch, around: Around, folder: Path | None) -> Current:
    words = [word for pair in launch.words for word in pair.split("=", 1)]
    named = [b for a, b in pairwise(words) if a in ("-c", "--config_file", "--config-file")]
    values = _config_values(named[0], launch, folder) if named else None
    if values is None:
        raise InputError(
            "the file of trtllm-serve disaggregated is not here", hint="give that file with --current"
        )
    return _of_split(values, around, base_name(named[0]))
