"""`advise calibrate`: time the bundled engine's steps on this machine, fit them, keep them in the user cache.

Runs the measuring in processes of its own (the advisor never imports torch), or takes the step log of an engine
that served, fits it, and adds the result to `step_times.yaml`; calibrations for other keys in that file stay.
Beside it lies `host.yaml`, what serving costs this host beside the steps.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.advice import profiles
from advisor.deploy.local import engine_environment, require_engine_extra
from engine.errors import InputError, MachineError
from engine.fetch import Progress, model_folder, model_name
from engine.host import usable_cores
from engine.resources import user_cache
from engine.step_time.calibrated import CalibratedStepTime
from engine.step_time.files import Key, StepLog, load_calibrations, read_step_log, save_calibrations
from engine.step_time.fit import fit

QUICK_S, THOROUGH_S = 10.0, 60.0
TIMEOUT_FACTOR = 30  # a slow machine needs long for the two passes that are always made
FILE_NAME, HOST_NAME = "step_times.yaml", "host.yaml"
MOST_BESIDE = 8  # processes that measure one core each at once (ours)


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """What was measured: the key, the fit with its held-out error, and the file that keeps it."""

    key: Key
    step_time: CalibratedStepTime
    path: Path


def calibrate(
    *,
    quick: bool = True,
    model: str | None = None,
    threads: int | None = None,
    tp: int = 1,
    dtype: str = "auto",
    cache: Path | None = None,
    fetch: bool = True,
    progress: Progress | None = None,
    program: Sequence[str] = (),
) -> CalibrationResult:
    """Measure and fit the step times of `model` (None: the embedded one) as `tp` ranks.

    On this machine's GPUs where it has any, one a rank; else on `threads` cores (None: all that ranks can
    share). `cache` is the folder of `step_times.yaml` (None: the user cache); `program` replaces the measuring
    process in tests. Raises MachineError where the engine is not installed, the model is missing or measuring
    fails, and InvalidMeasurementError where too little could be measured.
    """
    if not program:
        require_engine_extra()
    folder = model_folder(model, fetch=fetch, progress=progress)
    cores = threads or max(tp, usable_cores() // tp * tp)
    [log] = _measured(folder, [None], quick=quick, threads=cores, tp=tp, dtype=dtype, program=program)
    return _keep(log, replace(_key(log), model=model_name(model)), cache)


def calibrate_one_core(
    whole: CalibrationResult,
    *,
    quick: bool = True,
    model: str | None = None,
    cache: Path | None = None,
    program: Sequence[str] = (),
) -> CalibrationResult | None:
    """Measure an instance of one core, in the numbers (dtype) of `whole`, of all cores; None: nothing to do.

    So many processes measure at once, each on a core of its own, as a fleet of such instances would compute:
    alone one would have all of the memory's bandwidth. The fit is of all their steps. Raises as `calibrate`.
    """
    pinned = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if whole.key.device != "cpu" or whole.key.parallel == 1 or whole.key.tp > 1 or len(pinned) < 2:
        return None
    logs = _measured(
        model_folder(model, fetch=False),
        [{core} for core in pinned[:MOST_BESIDE]],
        quick=quick,
        threads=1,
        tp=1,
        dtype=whole.key.dtype,
        program=program,
    )
    log = StepLog(
        logs[0].header,
        tuple(shape for one in logs for shape in one.shapes),
        tuple(second for one in logs for second in one.seconds),
    )
    return _keep(log, replace(_key(log), model=model_name(model)), cache)


def refit(step_log: Path, *, cache: Path | None = None) -> CalibrationResult:
    """Fit the step times of an engine that served, from its `--step-log`, and keep them like measured ones.

    The log's header says which engine, model, device and ranks they are of. Raises InputError where it is no
    step log, InvalidMeasurementError where it holds too few steps or only one kind of them.
    """
    try:
        log = read_step_log(step_log)
    except OSError as error:
        where, hint = str(step_log), "advise launch --step-log FILE"
        raise InputError("cannot read the step log", where=where, why=error.strerror, hint=hint) from None
    return _keep(log, _key(log), cache)


def _key(log: StepLog) -> Key:
    """The log's key; the driver's name of a GPU becomes its profile's id, which is what plans look for."""
    key = log.key()
    try:
        return key if key.device == "cpu" else replace(key, device=profiles.gpu(key.device).id)
    except InputError:  # a GPU without a profile: no plan is made for it either
        return key


def _keep(log: StepLog, key: Key, cache: Path | None) -> CalibrationResult:
    step_time = fit(log.shapes, log.seconds)
    path = step_times_path(cache)
    keep(key, step_time, path)
    return CalibrationResult(key, step_time, path)


def keep(key: Key, step_time: CalibratedStepTime, path: Path) -> None:
    """Put a calibration into a `step_times.yaml` as its newest; others stay. Raises InputError."""
    others = load_calibrations(path)
    others.pop(key, None)
    save_calibrations(path, {**others, key: step_time})


def step_times_path(cache: Path | None = None) -> Path:
    """The file of this machine's calibrations; it may not exist yet."""
    return (cache or user_cache()) / FILE_NAME


def host_path(cache: Path | None = None) -> Path:
    """The file of this machine's host costs; it may not exist yet."""
    return (cache or user_cache()) / HOST_NAME


def _measured(
    folder: Path,
    cores: Sequence[set[int] | None],
    *,
    quick: bool,
    threads: int,
    tp: int,
    dtype: str,
    program: Sequence[str],
) -> list[StepLog]:
    """The step logs of measuring processes that run at once, each on its `cores` (None: wherever)."""
    seconds = QUICK_S if quick else THOROUGH_S
    # -P keeps the current folder off the import path: a folder named `engine` there must not be what runs.
    argv = [*(program or (sys.executable, "-P", "-m", "engine.calibrate")), "--model", str(folder)]
    argv += ["--dtype", dtype, "--threads", str(threads), "--tp", str(tp), "--seconds", f"{seconds:g}"]
    with tempfile.TemporaryDirectory(prefix="advise-calibrate-") as scratch, contextlib.ExitStack() as ending:
        paths = [Path(scratch) / f"steps-{number}.jsonl" for number in range(len(cores))]
        running = []
        for path, own in zip(paths, cores, strict=True):
            process = _start([*argv, "--out", str(path)], own)
            ending.callback(_end, process)
            running.append(process)
        deadline = time.monotonic() + seconds * TIMEOUT_FACTOR
        for process in running:
            _finish(process, deadline - time.monotonic(), seconds * TIMEOUT_FACTOR)
        return [read_step_log(path) for path in paths]


def _start(argv: list[str], cores: set[int] | None) -> subprocess.Popen[str]:
    """Start a measuring process that may run on `cores` alone."""
    before = os.sched_getaffinity(0) if cores else None
    try:
        if cores:
            os.sched_setaffinity(0, cores)  # this thread's; the child has it from here
        return subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=engine_environment()
        )
    finally:
        if before:
            os.sched_setaffinity(0, before)


def _finish(process: subprocess.Popen[str], left_s: float, timeout_s: float) -> None:
    """Wait for the end of a measuring process. Raises MachineError with the end of its talk."""
    try:
        _, talk = process.communicate(timeout=max(left_s, 0.1))
    except subprocess.TimeoutExpired:
        message = f"measuring step times took more than {timeout_s:g} s"
        raise MachineError(message, hint="advise calibrate --quick") from None
    if process.returncode != 0:
        raise MachineError(
            f"measuring step times failed (exit status {process.returncode})",
            why=" ".join(talk.splitlines()[-3:]) or "it said nothing",
            hint="advise calibrate --quick",
        )


def _end(process: subprocess.Popen[str]) -> None:
    """End a process that still runs, and its pipe."""
    with process:
        process.kill()
