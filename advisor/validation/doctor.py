"""`advise doctor`: what an endpoint is and takes, and whether this machine is fit to load it: no verdict.

Reads, and sends the few small requests by which a replay finds its form; changes nothing. Every check gives a
finding, so that a screen always has the same lines; what cannot be told is said to be unknown.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from advisor.advice.machine import detect_machine
from advisor.validation import forms, refuse
from advisor.validation.endpoint import Endpoint, Kind, inspect
from advisor.validation.form import CHAT, Form
from advisor.validation.probe import printable
from advisor.workload.model import Report
from engine.errors import AdviseError
from engine.fetch import EMBEDDED_NAME, model_folder
from engine.host import usable_cores
from engine.resources import user_cache
from engine.step_time.files import load_calibrations

Level = Literal["ok", "warn", "fail"]

_FILES = 4096  # open at once: a connection each, with room to spare
_STALE_DAYS = 90  # ours: drivers and kernels change meanwhile
_GOOD_CLOCKS = ("tsc", "arm_arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page")
_ENGINE_EXTRA = "pip install 'advise[engine]'"
# The flag that makes an engine report cached tokens.
_CACHE_FLAGS: Mapping[Kind, str] = {
    "vllm": "vllm serve MODEL --enable-prompt-tokens-details",
    "sglang": "python -m sglang.launch_server --enable-cache-report",
}
_METRICS_FLAGS: Mapping[Kind, str] = {
    "sglang": "python -m sglang.launch_server --enable-metrics",
    "llamacpp": "llama-server --metrics",
}


class Finding(Report):
    """One thing that was looked at."""

    name: str
    level: Level
    said: str = Field(description="what was found")
    hint: str | None = Field(None, description="what to do about it")


class EndpointReport(Report):
    """What is at a URL, and how a replay would talk to it."""

    url: str
    engine: str = Field(description="the engine with its version, as far as it tells")
    model: str | None = Field(None, description="null where the endpoint cannot be asked")
    max_len: int | None = Field(None, description="tokens of prompt plus output; null where it does not say")
    form: str | None = Field(None, description="token ids, text or chat; null where none is taken")
    findings: tuple[Finding, ...]

    @property
    def fails(self) -> bool:
        """Whether a replay could not be had, or not be believed."""
        return any(finding.level == "fail" for finding in self.findings)


class EnvironmentReport(Report):
    """What this machine has for measuring and serving."""

    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether there is nothing to say against it: what `--strict` asks."""
        return all(finding.level == "ok" for finding in self.findings)


def check_endpoint(
    url: str, *, api_key: str | None = None, model: str | None = None, tokenizer: str | None = None
) -> EndpointReport:
    """Look at an endpoint. Raises InputError for what is no URL; a server that is down is a finding."""
    refuse.remote(url, allowed=True, key=api_key is not None)
    return asyncio.run(_check(url, api_key, model, tokenizer))


async def _check(url: str, api_key: str | None, model: str | None, tokenizer: str | None) -> EndpointReport:
    try:
        endpoint = await inspect(url, api_key=api_key, model=model)
    except AdviseError as error:
        return EndpointReport(url=url, engine="unknown", findings=(_failed("answers", error, error.hint),))
    found = [
        _ok("answers", endpoint.engine),
        _ok("model", printable(endpoint.model)),
        _length(endpoint),
        _load(endpoint),
        _emulation(endpoint),
    ]
    form = None
    try:
        form = await forms.agree(endpoint, api_key=api_key, tokenizer=tokenizer)
        found += _form(endpoint, form)
    except AdviseError as error:
        found.append(_failed("prompts", error, hint=None))  # its hint is this command
    return EndpointReport(
        url=endpoint.url,
        engine=endpoint.engine,
        model=endpoint.model,
        max_len=endpoint.max_len,
        form=None if form is None else form.name,
        findings=tuple(found),
    )


def _ok(name: str, said: str) -> Finding:
    return Finding(name=name, level="ok", said=said)


def _warn(name: str, said: str, hint: str | None = None) -> Finding:
    return Finding(name=name, level="warn", said=said, hint=hint)


def _failed(name: str, error: AdviseError, hint: str | None) -> Finding:
    said = error.message if error.why is None else f"{error.message}: {error.why}"
    return Finding(name=name, level="fail", said=said, hint=hint)


def _length(endpoint: Endpoint) -> Finding:
    if endpoint.max_len is not None:
        return _ok("context", f"{endpoint.max_len} tokens")
    said = "does not tell its context: longer requests are cut or refused only when they are sent"
    hint = "OLLAMA_CONTEXT_LENGTH=32768 ollama serve" if endpoint.kind == "ollama" else None
    return _warn("context", said, hint)


def _load(endpoint: Endpoint) -> Finding:
    busy = endpoint.busy
    if busy is None:
        said = "does not tell how many requests it serves: others would be measured too"
        return _warn("other load", said, _METRICS_FLAGS.get(endpoint.kind))
    if busy.total:
        said = f"{busy.running} requests run and {busy.waiting} wait"
        return _warn("other load", said, "advise validate --url URL --shared   (measures them too)")
    return _ok("other load", "none")


def _emulation(endpoint: Endpoint) -> Finding:
    if endpoint.emulates is None:
        return _ok("emulation", "none")
    slower = "" if endpoint.time_scale == 1 else f", its clock {endpoint.time_scale:g} times slower"
    said = f"sleeps the step times of {endpoint.emulates}{slower}: results are rehearsals"
    return _warn("emulation", said)


def _form(endpoint: Endpoint, form: Form) -> list[Finding]:
    """Findings on what it takes and tells, always the same ones in the same order."""
    exact = form.name == "token ids"
    hint = None if exact or form.wording is None or form.wording.tokenizer else "add --tokenizer FOLDER"
    prompts = f"{form.name} on {form.path}"
    overhead = 0 if form.wording is None else form.wording.overhead
    if form.path == CHAT:
        prompts += f", {overhead} tokens of template"
    return [
        _ok("prompts", prompts) if exact else _warn("prompts", prompts, hint),
        _lengths(form),
        _counts(form),
        _cached(endpoint, form),
        _chunks(form),
    ]


def _lengths(form: Form) -> Finding:
    taken = [name for name in ("min_tokens", "ignore_eos") if name in form.fields]
    if form.forces_length is False:
        said = f"answers end by themselves, whatever {' and '.join(taken)} say" if taken else "cannot be forced"
        return _warn("output lengths", said)
    if form.forces_length is None:
        return _ok("output lengths", f"takes {' and '.join(taken)}; whether it obeys cannot be told from here")
    return _ok("output lengths", f"forced by {' and '.join(taken)}")


def _counts(form: Form) -> Finding:
    if not form.reports_usage:
        return _warn("token counts", "no usage in its answers: lengths cannot be checked")
    return _ok("token counts", "usage, and ids of the answer" if form.returns_ids else "usage")


def _cached(endpoint: Endpoint, form: Form) -> Finding:
    if form.reports_cached:
        when = "" if form.cached_when_none else ", where there are any"
        return _ok("cached tokens", f"reported{when}")
    return _warn("cached tokens", "not reported", _CACHE_FLAGS.get(endpoint.kind))


def _chunks(form: Form) -> Finding:
    if form.tokens_per_chunk is None:
        return _warn("chunks", "tokens per chunk are unknown")
    said = f"{form.tokens_per_chunk:.3g} tokens a chunk"
    if form.tokens_per_chunk > 1.05:
        return _warn("chunks", said + ": gaps between tokens cannot be seen")
    return _ok("chunks", said)


def check_environment(*, now_s: float | None = None) -> EnvironmentReport:
    """Look at this machine; `now_s` is the wall clock, for the age of calibrations."""
    now_s = time.time() if now_s is None else now_s
    return EnvironmentReport(
        findings=(_files(), _cores(), _clock(), _extra(), _cache(), _embedded(), _calibration(now_s), _gpus())
    )


def _files() -> Finding:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return _ok("open files", "no limit")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _FILES:
        return _ok("open files", "no limit" if soft == resource.RLIM_INFINITY else f"{soft} at once")
    can = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    return _warn("open files", f"{soft} at once, each request in flight needs one", f"ulimit -n {can}")


def _cores() -> Finding:
    cores = usable_cores()
    if cores > 1:
        return _ok("cores", str(cores))
    return _warn("cores", "1: a client beside an engine on it measures itself")


def _clock() -> Finding:
    path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    try:
        source = path.read_text(encoding="ascii").strip()
    except OSError:
        resolution = time.get_clock_info("monotonic").resolution
        return _ok("clock", f"monotonic, in steps of {resolution * 1e9:.0f} ns")
    if source in _GOOD_CLOCKS:
        return _ok("clock", source)
    return _warn(
        "clock", f"{source}: each stamp is a system call", f"cat {path.with_name('available_clocksource')}"
    )


def _extra() -> Finding:
    missing = [name for name in ("torch", "starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if not missing:
        return _ok("bundled engine", "installed")
    return _warn("bundled engine", f"not installed ({', '.join(missing)} missing)", _ENGINE_EXTRA)


def _cache() -> Finding:
    folder = user_cache()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(nearest, os.W_OK):
        return _ok("user cache", str(folder))
    return _warn("user cache", f"{folder} cannot be written", "export XDG_CACHE_HOME=FOLDER")


def _embedded() -> Finding:
    try:
        model_folder(None, fetch=False)
    except AdviseError as error:
        return _warn("embedded model", f"{EMBEDDED_NAME} is not on this machine", error.hint)
    return _ok("embedded model", EMBEDDED_NAME)


def _calibration(now_s: float) -> Finding:
    path = user_cache() / "step_times.yaml"
    if not path.is_file():
        return _warn("calibration", "none: predictions are by roofline", "advise calibrate")
    try:
        count = len(load_calibrations(path))
    except AdviseError as error:
        return _failed("calibration", error, error.hint)
    days = max(0.0, now_s - path.stat().st_mtime) / 86_400
    said = f"{count} in {path}, the newest {days:.0f} days old"
    return _ok("calibration", said) if days <= _STALE_DAYS else _warn("calibration", said, "advise calibrate")


def _gpus() -> Finding:
    names = detect_machine().gpu_names
    if not names:
        return _ok("GPUs", "none: engines run on the CPU")
    return _ok("GPUs", ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)))
