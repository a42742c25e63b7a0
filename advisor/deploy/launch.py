"""Launch: from an output folder, a plan or an engine.yaml to a serving engine in the foreground.

Order: find the configuration, compare it with the plan beside it, refuse what cannot run, fetch the model,
start, keep run.json while it runs. Returns data; the command prints. An engine.yaml that was edited launches
all the same, but the plan's prediction is no longer about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from advisor.advice.machine import detect_machine
from advisor.advice.plan import Plan
from advisor.deploy.local import EMULATION_NAME, Load, RunningEngine, engine_argv, start_engine
from advisor.deploy.rehearsal import can_be_rehearsed, rehearsal
from advisor.deploy.run import Run, refuse_second, run_file
from advisor.deploy.scrape import Figures, look
from engine.config import EngineConfig
from engine.config_file import read_config
from engine.errors import InputError, MachineError
from engine.fetch import Progress, model_folder
from engine.host import usable_cores
from engine.launchable import devices, why_not_launchable, why_too_few_cores

_SETTLE_S = 2.0  # instances tell their CPU time once a second: the first has to be that of loading
DEFAULT_FOLDER = Path("advise-out")
CONFIG_NAME, PLAN_NAME = "engine.yaml", "plan.json"


@dataclass(frozen=True, slots=True)
class Edit:
    """One value of engine.yaml that is not the plan's. `key` is dotted, as in `pools.0.token_budget`."""

    key: str
    planned: Any
    actual: Any


@dataclass(frozen=True, slots=True)
class Launchable:
    """A configuration and where it comes from. With `edits` the plan's prediction is void."""

    config_path: Path
    config: EngineConfig
    plan: Plan | None = None
    plan_digest: str | None = None
    edits: tuple[Edit, ...] = ()

    @property
    def folder(self) -> Path:
        """The output folder, where run.json goes."""
        return self.config_path.parent

    def argv(self, load: Load = "auto", *, emulated: bool = False, oversubscribe: bool = False) -> list[str]:
        """The command that `launch` runs, where it writes the file of an emulation; `--dry-run` shows it."""
        emulate = Path(EMULATION_NAME) if emulated else None
        return engine_argv(self.config_path, load=load, emulate=emulate, oversubscribe=oversubscribe)


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch that serves: what was asked for and what runs."""

    launchable: Launchable
    engine: RunningEngine


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds of each of the engine's processes, the router among them, while it served for `wall_s`."""

    wall_s: float
    cpu_s: dict[str, float]


Leaving = Callable[[CpuTimes], None]


def find(target: Path | None = None) -> Launchable:
    """Resolve a folder, plan.json or engine.yaml; None is ./advise-out. Raises InputError."""
    target = target or DEFAULT_FOLDER
    is_plan = target.suffix == ".json"
    is_config = target.suffix in (".yaml", ".yml")
    folder = target.parent if is_plan or is_config else target
    config_path = target if is_config else folder / CONFIG_NAME
    plan_path = target if is_plan else folder / PLAN_NAME
    config = read_config(config_path)
    if not plan_path.is_file():
        return Launchable(config_path, config)
    plan, digest = _read_plan(plan_path)
    return Launchable(config_path, config, plan, digest, _edits(plan.engine_config(), config))


def _read_plan(path: Path) -> tuple[Plan, str | None]:
    try:
        content = json.loads(path.read_bytes())
        return Plan.model_validate(content["plan"]), content.get("digest")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = str(error).splitlines()[0]
        raise InputError("cannot read the plan", where=str(path), why=why, hint="advise analyze LOG") from None


def _edits(planned: EngineConfig, actual: EngineConfig) -> tuple[Edit, ...]:
    before, after = _flat(planned.model_dump(mode="json")), _flat(actual.model_dump(mode="json"))
    keys = sorted(before.keys() | after.keys())
    return tuple(Edit(k, before.get(k), after.get(k)) for k in keys if before.get(k) != after.get(k))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings and lists as one mapping with dotted keys."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {prefix: value}
    return {k: v for key, item in value.items() for k, v in _flat(item, f"{prefix}.{key}".lstrip(".")).items()}


@contextlib.contextmanager
def launch(
    what: Launchable,
    *,
    port: int | None = None,
    step_log: Path | None = None,
    request_log: Path | None = None,
    fault: str | None = None,
    load: Load = "auto",
    emulate: str | None = None,
    time_scale: float = 1.0,
    oversubscribe: bool = False,
    fetch: bool = True,
    progress: Progress | None = None,
    program: Sequence[str] = (),
) -> Iterator[Launched]:
    """Serve `what` while the block runs; leaving drains and stops the engine and removes run.json.

    Fetches the model first if it is not here and `fetch` allows it; a `load` of "dummy" takes random weights of
    its shape. `emulate` names the plan's GPU, whose step times are slept, `time_scale` times as long, with
    neither weights nor devices. `oversubscribe` lets instances share cores where there are too few. Raises
    InputError: an emulation of what is no plan, or of another GPU; MachineError: not launchable by this version
    or machine, a busy port, a second launch from the folder, no model, no engine extra.
    """
    emulation = None if emulate is None else rehearsal(what, emulate, time_scale)
    refuse(what, port=port, emulated=emulation is not None, oversubscribe=oversubscribe)
    shared = oversubscribe and emulation is None and why_too_few_cores(what.config, usable_cores()) is not None
    path = what.config.model.path
    bare = emulation is not None or (load == "dummy" and path is not None and Path(path).is_dir())
    if not program and not bare:
        model_folder(path, fetch=fetch, weights=load == "auto", progress=progress)
    engine = start_engine(
        what.config,
        port=port,
        step_log=step_log,
        request_log=request_log,
        fault=fault,
        load=load,
        emulation=emulation,
        oversubscribe=shared,
        program=program,
    )
    with _sigterm_leaves(), engine:
        pids = {"launcher": os.getpid(), **engine.info.pids}
        with run_file(what.folder, Run(url=engine.url, pids=pids, plan_digest=what.plan_digest)):
            yield Launched(what, engine)


@contextlib.contextmanager
def _sigterm_leaves() -> Iterator[None]:
    """SIGTERM raises SystemExit in the block, as Ctrl-C raises KeyboardInterrupt, so that leaving drains."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def serve(launched: Launched, leaving: Leaving | None = None) -> int:
    """Stay in the foreground until Ctrl-C, then drain; 0. Raises MachineError if the engine dies instead.

    `leaving` hears, before the drain, what CPU time each of the engine's processes took.
    """
    engine, before = launched.engine, None
    try:
        status = engine.wait(_SETTLE_S)
        if status is None:
            before = _look(engine)
            status = engine.wait()
    except (KeyboardInterrupt, SystemExit) as signal_came:
        if leaving is not None and before is not None and (after := _look(engine)) is not None:
            leaving(CpuTimes(after.at_s - before.at_s, after.cpu_since(before)))
        if isinstance(signal_came, SystemExit):
            raise
        status = engine.stop()
    if status:
        why = engine.tail()
        raise MachineError(f"the engine ended with status {status}", why=why, hint="advise calibrate --quick")
    return 0


def _look(engine: RunningEngine) -> Figures | None:
    return asyncio.run(look(engine.url, os.environ.get("ADVISE_API_KEY")))


def _plan_refuses(what: Launchable) -> str | None:
    """Why the plan is not for this engine; an edited configuration speaks for itself."""
    if what.plan is None or what.edits:
        return None
    answer = what.plan.runs_on["advise"]
    return None if answer == "yes" else answer.removeprefix("no: ")


def _refuse_devices(what: Launchable, *, oversubscribe: bool) -> None:
    """Raise MachineError where this machine has not what `what` needs: the plan's GPUs, or the cores."""
    machine = detect_machine()
    where = str(what.config_path)
    target = None if what.plan is None else what.plan.target
    if target is not None and not target.on_cpu and not what.edits:
        here, wanted = machine.gpus.count(target.gpu), devices(what.config)
        if here < wanted:
            message = "the bundled engine cannot launch this"
            why = f"the plan is for {wanted} x {target.gpu}, of which this machine has {here or 'none'}"
            hint = _rehearse_hint(what) or "advise analyze LOG --here"
            raise MachineError(message, where=where, why=why, hint=hint)
        return
    if not oversubscribe and on_cores(what.config, gpus=len(machine.gpu_names)):
        why_few = why_too_few_cores(what.config, machine.cores)
        if why_few is not None:
            hint = "advise launch --oversubscribe   (instances share cores: for correctness only, no goodput)"
            raise MachineError("this machine has too few cores", where=where, why=why_few, hint=hint)


def _rehearse_hint(what: Launchable) -> str | None:
    """The command that rehearses a plan for GPUs without them; None where it cannot be."""
    if what.plan is None or not can_be_rehearsed(what.plan.target, what.config):
        return None
    return f"advise launch {what.folder} --emulate {what.plan.target.gpu}   (a rehearsal: steps are slept)"


def on_cores(config: EngineConfig, *, gpus: int) -> bool:
    """Whether instances run on cores: no GPU is here, or they were planned for more devices than ranks."""
    return not gpus or any(pool.devices_per_instance != pool.tp for pool in config.pools)


def refuse(
    what: Launchable, *, port: int | None = None, emulated: bool = False, oversubscribe: bool = False
) -> None:
    """Raise MachineError for what would fail anyway, before anything is fetched or loaded.

    `emulated`: nothing is asked of this machine's devices.
    """
    why = why_not_launchable(what.config, emulated=emulated)
    if why is None and not emulated:
        why = _plan_refuses(what)
    if why is not None:
        message, hint = (
            "the bundled engine cannot launch this",
            _rehearse_hint(what) or "advise analyze LOG --here",
        )
        raise MachineError(message, where=str(what.config_path), why=why, hint=hint)
    if not emulated:
        _refuse_devices(what, oversubscribe=oversubscribe)
    refuse_second(what.folder)
    server = what.config.server
    wanted = server.port if port is None else port
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    try:
        socket.create_server((server.host, wanted), family=family).close()
    except OSError as error:
        where, hint = f"{server.host}:{wanted}", "advise launch --port 0"
        raise MachineError("cannot use this port", where=where, why=error.strerror, hint=hint) from None
