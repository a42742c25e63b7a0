"""Validating a plan: from the files that `analyze` wrote to a Result, on an engine that runs or is started.

Where to send: the URL given, else the engine that `advise launch` runs from the same folder, else one that is
started for the run and stopped after it. A plan whose configuration was not edited is held to its calibrated
limit; a foreign endpoint and an injected fault are not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from advisor.advice.plan import Plan
from advisor.deploy import launch as launching
from advisor.deploy.calibrate import step_times_path
from advisor.deploy.run import read_run
from advisor.logs.read import read
from advisor.logs.trace import Trace
from advisor.validation.load import window_load
from advisor.validation.refuse import Load
from advisor.validation.validate import Fit, Options, Progress, no_limit, validate
from advisor.validation.verdict import Result
from advisor.validation.window import Window
from engine.errors import InputError
from engine.host import usable_cores
from engine.launchable import devices
from engine.step_time.files import load_calibrations

TRACE_NAME = "trace.jsonl"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to validate. `what` is an output folder or plan.json (None: ./advise-out); the rest as the flags."""

    what: Path | None = None
    url: str | None = None
    window: str = "busiest:10m"
    fit: frozenset[Fit] = frozenset()
    fault: str | None = None
    seed: int | None = None
    allow_remote: bool = False


def validate_plan(wanted: Wanted, progress: Progress) -> Result:
    """Replay and judge, and save `result.json` and `requests.jsonl` beside the plan.

    Raises InputError where the files of the plan are missing, MachineError where no engine can be had or the
    window is refused.
    """
    found = launching.find(wanted.what)
    plan, trace = _plan(found), read_trace(found.folder)
    ours = wanted.url is None and wanted.fault is None and not found.edits
    with _endpoint(wanted, found) as url:
        result = validate(
            trace,
            url=url,
            slo=plan.target.slo,
            window=wanted.window,
            options=Options(
                fit=wanted.fit,
                load=load_of(plan) if ours else no_limit,
                block_size=found.config.pools[0].block_size,
                seed=wanted.seed,
                allow_remote=wanted.allow_remote,
                api_key=os.environ.get("ADVISE_API_KEY"),
                cores=None if wanted.url else cores_of(found),
            ),
            progress=progress,
        )
    result.save(found.folder)
    return result


def cores_of(found: launching.Launchable) -> int:
    """Cores of this machine that its instances run on."""
    every = usable_cores()
    target = None if found.plan is None else found.plan.target
    return min(every, devices(found.config)) if target is None or target.on_cpu else every


def _plan(found: launching.Launchable) -> Plan:
    if found.plan is None:
        raise InputError(
            "there is no plan to validate", where=str(found.folder), hint="advise analyze LOG --here"
        )
    return found.plan


def read_trace(folder: Path) -> Trace:
    """The trace that `analyze` saved in `folder`."""
    path = folder / TRACE_NAME
    if not path.is_file():
        raise InputError("there is no trace to replay", where=str(path), hint="advise analyze LOG")
    return read([path])


def load_of(plan: Plan) -> Callable[[Window], Load | None]:
    """How much a window asks of the plan, by this machine's calibration; None without one."""
    return partial(window_load, plan=plan, calibrations=load_calibrations(step_times_path()))


@contextlib.contextmanager
def _endpoint(wanted: Wanted, found: launching.Launchable) -> Iterator[str]:
    if wanted.url is not None:
        yield wanted.url
        return
    run = read_run(found.folder)
    if run is not None and wanted.fault is None:
        yield run.url
        return
    with launching.launch(found, port=0, fault=wanted.fault) as launched:
        yield launched.engine.url
