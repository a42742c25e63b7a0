"""Validating a plan: from the files that `analyze` wrote to a Result, on an engine that runs or is started.

Where to send: the URL given, else the engine that `advise launch` runs from the same folder, else one that is
started for the run and stopped after it. A plan whose configuration was not edited is held to its calibrated
limit, and its prediction stands beside what was measured; a foreign endpoint and an injected fault are not held
to the limit. Owns `result.json` and `requests.jsonl` beside the plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from advisor.advice.money import gpu_price
from advisor.advice.plan import Plan
from advisor.deploy import launch as launching
from advisor.deploy.calibrate import step_times_path
from advisor.deploy.run import read_run
from advisor.logs.read import read
from advisor.logs.trace import Trace
from advisor.validation.faults import Strike, parse_fault
from advisor.validation.load import window_load
from advisor.validation.options import Options, Progress
from advisor.validation.predicted import Served
from advisor.validation.refuse import Load
from advisor.validation.result import REQUESTS_NAME, Result
from advisor.validation.seek import Sought, seek
from advisor.validation.validate import validate
from advisor.validation.window import DEFAULT_WINDOW, Window
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
    window: str = DEFAULT_WINDOW
    fault: str | None = None
    search: bool = False


def validate_plan(wanted: Wanted, options: Options, progress: Progress) -> Result:
    """Replay and judge, and save `result.json` and `requests.jsonl` beside the plan.

    Of `options` all that the plan says is filled in here. Raises InputError where the files of the plan are
    missing, MachineError where no engine can be had or the window is refused.
    """
    found = launching.find(wanted.what)
    plan, trace = _plan(found), read_trace(found.folder)
    options = _filled(options, wanted, found, plan)
    slo, window = plan.target.slo, wanted.window
    with _endpoint(wanted, found, options.api_key) as (url, strike):
        if wanted.search:
            sought = _sought(plan, ours=not found.edits)
            result = seek(
                trace, url=url, slo=slo, sought=sought, window=window, options=options, progress=progress
            )
        else:
            result = validate(
                trace, url=url, slo=slo, window=window, options=options, progress=progress, strike=strike
            )
    result.save(found.folder)
    return result


def _sought(plan: Plan, *, ours: bool) -> Sought:
    """Where a search begins; without the plan's own configuration, at the log's rate."""
    choice = plan.choice
    gpus = None if choice is None else choice.gpus
    goodput = None if choice is None or not ours else choice.goodput_rps_per_gpu
    predicted_rps = None if goodput is None or gpus is None else goodput.mid * gpus
    return Sought(plan.target.objective, predicted_rps or None, gpus)


def _filled(options: Options, wanted: Wanted, found: launching.Launchable, plan: Plan) -> Options:
    """The options with what the plan says of the engine: its limit, its prediction, its price."""
    ours = wanted.url is None and wanted.fault is None and not found.edits and options.rate == 1
    choice, price = plan.choice, gpu_price(plan.target)
    return replace(
        options,
        load=load_of(plan) if ours and not wanted.search else options.load,
        served=replace(served_by(found, plan), fault=wanted.fault, url=wanted.url),
        block_size=found.config.pools[0].block_size,
        cores=None if wanted.url else cores_of(found),
        usd_per_hour=None if choice is None or price is None else price.usd_per_hour * choice.gpus,
        journal=found.folder / REQUESTS_NAME,
        plan_digest=None if found.edits else found.plan_digest,
    )


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


def served_by(found: launching.Launchable, plan: Plan) -> Served:
    """What answers where the plan is launched, for its prediction of a replay."""
    calibrations = load_calibrations(step_times_path())
    return Served(plan, found.config, calibrations, edited=bool(found.edits))


def load_of(plan: Plan) -> Callable[[Window], Load | None]:
    """How much a window asks of the plan, by this machine's calibration; None without one."""
    return partial(window_load, plan=plan, calibrations=load_calibrations(step_times_path()))


@contextlib.contextmanager
def _endpoint(
    wanted: Wanted, found: launching.Launchable, api_key: str | None
) -> Iterator[tuple[str, Strike | None]]:
    """Where to send, and what strikes there. Only an engine that is started here is struck."""
    if wanted.fault is not None and wanted.url is not None:
        raise InputError(
            "a fault is for an engine that this command starts itself",
            why=f"{wanted.url} may serve others",
            hint=f"advise validate --fault {wanted.fault}",
        )
    if wanted.url is not None:
        yield wanted.url, None
        return
    run = read_run(found.folder)
    if run is not None and wanted.fault is None:
        yield run.url, None
        return
    spec = None if wanted.fault is None else parse_fault(wanted.fault, found.config)
    with launching.launch(found, port=0, fault=None if spec is None else spec.engine_fault) as launched:
        engine = launched.engine
        loss = None if found.plan is None or found.plan.simulation is None else found.plan.simulation.loss
        yield (
            engine.url,
            None if spec is None else Strike(spec, engine.url, engine.info.pids, loss=loss, api_key=api_key),
        )
