"""Launch: from an output folder, a plan or an engine.yaml to a serving engine in the foreground.

Order: find the configuration, compare it with the plan beside it, refuse what cannot run, fetch the model,
start, keep run.json while it runs. Returns data; the command prints. An engine.yaml that was edited launches
all the same, but the plan's prediction is no longer about it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from advisor.advice.machine import detect_machine
from advisor.advice.plan import Plan
from advisor.deploy.local import Load, RunningEngine, engine_argv, start_engine
from advisor.deploy.run import Run, refuse_second, run_file
from engine.config import EngineConfig
from engine.config_file import read_config
from engine.errors import InputError, MachineError
from engine.fetch import Progress, model_folder
from engine.launchable import why_not_launchable

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

    def argv(self, load: Load = "auto") -> list[str]:
        """The command that `launch` runs; `--dry-run` shows it."""
        return engine_argv(self.config_path, load=load)


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch that serves: what was asked for and what runs."""

    launchable: Launchable
    engine: RunningEngine


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
    fault: str | None = None,
    load: Load = "auto",
    fetch: bool = True,
    progress: Progress | None = None,
    program: Sequence[str] = (),
) -> Iterator[Launched]:
    """Serve `what` while the block runs; leaving drains and stops the engine and removes run.json.

    Fetches the model first if it is not here and `fetch` allows it; a `load` of "dummy" takes random weights of
    its shape. Raises MachineError: not launchable by this version, a busy port, a second launch from the
    folder, no model, no engine extra.
    """
    refuse(what, port=port)
    path = what.config.model.path
    bare = load == "dummy" and path is not None and Path(path).is_dir()
    if not program and not bare:
        model_folder(path, fetch=fetch, weights=load == "auto", progress=progress)
    with (
        _sigterm_leaves(),
        start_engine(
            what.config, port=port, step_log=step_log, fault=fault, load=load, program=program
        ) as engine,
    ):
        pids = {"launcher": os.getpid(), what.config.pools[0].role: engine.info.pid}
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


def serve(launched: Launched) -> int:
    """Stay in the foreground until Ctrl-C, then drain; 0. Raises MachineError if the engine dies instead."""
    engine = launched.engine
    try:
        status = engine.wait()
    except KeyboardInterrupt:
        status = engine.stop()
    if status:
        why = engine.tail()
        raise MachineError(f"the engine ended with status {status}", why=why, hint="advise calibrate --quick")
    return 0


def _plan_refuses(what: Launchable) -> str | None:
    """Why the plan is not for this engine or machine; an edited configuration speaks for itself."""
    if what.plan is None or what.edits:
        return None
    answer = what.plan.runs_on["advise"]
    if answer != "yes":
        return answer.removeprefix("no: ")
    target, wanted = what.plan.target, what.config.pools[0].devices_per_instance
    here = 0 if target.on_cpu else detect_machine().gpus.count(target.gpu)
    if target.on_cpu or here >= wanted:
        return None
    return f"the plan is for {wanted} x {target.gpu}, of which this machine has {here or 'none'}"


def refuse(what: Launchable, *, port: int | None = None) -> None:
    """Raise MachineError for what would fail anyway, before anything is fetched or loaded."""
    why = why_not_launchable(what.config) or _plan_refuses(what)
    if why is not None:
        message, hint = "the bundled engine cannot launch this", "advise analyze LOG --here"
        raise MachineError(message, where=str(what.config_path), why=why, hint=hint)
    refuse_second(what.folder)
    server = what.config.server
    wanted = server.port if port is None else port
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    try:
        socket.create_server((server.host, wanted), family=family).close()
    except OSError as error:
        where, hint = f"{server.host}:{wanted}", "advise launch --port 0"
        raise MachineError("cannot use this port", where=where, why=error.strerror, hint=hint) from None
