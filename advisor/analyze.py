"""Analyze: from a log to an Analysis, in the order of the loop: read, choose a model, measure, advise.

Owns that order and the choice between several models. Reads the log and the user cache, writes nothing
(`advisor.deploy.files` does), fetches nothing. What only a plan needs is imported where it is needed: it takes
as long as measuring a small log.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from advisor import __version__
from advisor.advice.advise import advise
from advisor.advice.analysis import Analysis, LogSummary, Meta
from advisor.advice.comparison import refuse_other_target
from advisor.advice.host import load_host_costs
from advisor.advice.machine import Machine, detect_machine
from advisor.advice.plan import Plan
from advisor.advice.resolve import NoTarget, TargetOptions, known_gpu, resolve_target
from advisor.advice.steps import Calibrations
from advisor.advice.target import Target
from advisor.logs.layout import Place
from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.sampling import excerpts, sample_layout
from advisor.logs.source import Progress
from advisor.logs.trace import Blocks, Labels, Trace
from advisor.workload.isolation import isolate
from advisor.workload.measure import measure
from advisor.workload.model import PromptLayout, PromptPlace, Workload
from advisor.workload.models import measure_models
from advisor.workload.routes import measure_routes
from advisor.workload.traits import find_traits, unknown_traits
from engine.errors import InputError
from engine.fetch import model_folder
from engine.step_time.files import load_calibrations

if TYPE_CHECKING:
    from advisor.advice.current import Current
    from advisor.advice.simulated import Progress as Simulating
    from advisor.advice.simulated import SimulationOptions
    from engine.text import Tokenizer


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """What a user may say, beyond which log. `tokenizer` and `step_times` are paths; None: the usual ones.

    `current` describes what runs now: a launch line, a file, a metrics URL, or `-`.
    """

    read: ReadOptions = field(default_factory=ReadOptions)
    target: TargetOptions = field(default_factory=TargetOptions)
    tokenizer: str | None = None
    step_times: Path | None = None
    cache_tokens: tuple[int, ...] = ()
    rate: float = 1.0  # plan for the log's arrival rate times this
    plan: bool = True
    seed: int = 0
    current: str | None = None
    no_operations: bool = False
    simulate: bool = True  # False: the rules make the plan, in no time
    beside: Plan | None = None  # a plan that this one must be for the same target as


class Saved(NamedTuple):
    """What an earlier analysis left to plan from; `target` None: only a trace."""

    trace: Path
    target: Path | None


def analyze(
    paths: Sequence[str | Path],
    options: AnalyzeOptions,
    progress: Progress | None = None,
    simulating: Simulating | None = None,
) -> tuple[Analysis, Trace]:
    """The Analysis of a log, and the Trace of the model it is about.

    `progress` hears of reading, `simulating` of every simulation.

    Raises InputError where the log or the flags cannot be used, MachineError where a tokenizer is missing.
    """
    machine = _machine(options)
    current = _current(paths, options, machine)
    known = _target(options, None, machine, current)  # a wrong name should not cost the reading of a large log
    everything = read(
        paths, options=reading(options), tokenizer=LazyTokenizer(options.tokenizer), progress=progress
    )
    trace = _isolated(_largest_model(everything), options, known)
    workload = measure(
        trace, seed=options.seed, cache_tokens=options.cache_tokens, layout=_layout(paths, options, everything)
    )
    target = _target(options, workload.model, machine, current)
    if options.beside is not None and isinstance(target, Target):
        refuse_other_target(options.beside, target)
    calibrations = _calibrations(options)
    advice = advise(
        faster(workload, options.rate),
        target,
        calibrations,
        trace=trace if options.simulate else None,
        simulation=None if isinstance(target, NoTarget) else _simulation(options, simulating),
        current=current,
        no_operations=options.no_operations,
    )
    traits = _traits(workload, target)
    return Analysis(
        meta=Meta(
            advise_version=__version__,
            seed=options.seed,
            inputs_digest=_inputs_digest(trace, target, options, calibrations, current),
        ),
        log=_summary(everything, workload),
        lengths=workload.lengths,
        arrivals=workload.arrivals,
        latency=workload.latency,
        sharing=workload.sharing,
        classes=workload.classes,
        sessions=workload.sessions,
        clients=workload.clients,
        drift=workload.drift,
        layout=workload.layout,
        traits=traits,
        findings=advice.findings,
        unknown=(*workload.unknown, *unknown_traits(traits), *advice.unknown),
        not_modelled=advice.not_modelled,
        plan=advice.plan,
        plan_reason=advice.plan_reason,
    ), trace


def read_model(paths: Sequence[str | Path], options: AnalyzeOptions, progress: Progress | None = None) -> Trace:
    """The Trace that `analyze` would measure, before isolation. Raises as `analyze`."""
    tokenizer = LazyTokenizer(options.tokenizer)
    return _largest_model(read(paths, options=reading(options), tokenizer=tokenizer, progress=progress))


def reading(options: AnalyzeOptions) -> ReadOptions:
    """How to read the log: a tokenizer that was named is used however large the log is."""
    return options.read if options.tokenizer is None else replace(options.read, text="tokens")


def prompt_excerpts(
    paths: Sequence[str | Path], options: AnalyzeOptions, layout: PromptLayout
) -> list[tuple[PromptPlace, str]]:
    """The prompts at the examples of the layout, around their first difference; for a terminal only."""
    places = [Place(place.file, place.line, place.char) for place in layout.examples]
    return list(zip(layout.examples, excerpts(paths, options.read, places), strict=True))


def _layout(paths: Sequence[str | Path], options: AnalyzeOptions, everything: Trace) -> PromptLayout | None:
    """In tokens where the log was read in tokens."""
    by_tokens = everything.novel_tokens is not None
    encoder = LazyTokenizer(options.tokenizer) if by_tokens else None
    layout = sample_layout(paths, options.read, encoder)
    return None if layout is None else PromptLayout.model_validate(asdict(layout))


def faster(workload: Workload, factor: float) -> Workload:
    """The same requests at `factor` times the rate: `--rate 2x`. Dispersion is left as measured."""
    if factor == 1.0 or workload.arrivals.rate_rps is None:
        return workload
    peaks = {
        window: None if peak is None else peak * factor for window, peak in workload.arrivals.peak_rps.items()
    }
    arrivals = workload.arrivals.model_copy(
        update={"rate_rps": workload.arrivals.rate_rps * factor, "peak_rps": peaks}
    )
    return workload.model_copy(update={"arrivals": arrivals})


class LazyTokenizer:
    """A tokenizer that is loaded when the first text needs it: logs without text need none."""

    def __init__(self, source: str | None) -> None:
        self._source = source
        self._loaded: Tokenizer | None = None

    def __getattr__(self, name: str) -> Any:
        if self._loaded is None:
            from engine.text import Tokenizer

            self._loaded = Tokenizer.load(model_folder(self._source, fetch=False, weights=False))
        return getattr(self._loaded, name)


def _largest_model(trace: Trace) -> Trace:
    """The rows of the model with the most requests; the whole trace where there is one or none is named."""
    if trace.model is None:
        return trace
    codes, counts = np.unique(trace.model.codes, return_counts=True)
    if len(codes) == 1:
        return trace
    return trace.take(np.flatnonzero(trace.model.codes == codes[np.argmax(counts)]))


def _isolated(trace: Trace, options: AnalyzeOptions, known: Target | NoTarget) -> Trace:
    by = known.isolation if isinstance(known, Target) else options.target.isolation
    return trace if by is None or by == "none" else isolate(trace, by)


def _summary(trace: Trace, workload: Workload) -> LogSummary:
    info = trace.info
    if info is None:
        raise ValueError("a trace that was read says how")
    return LogSummary(
        format=info.format,
        files=info.files,
        lines=info.lines,
        requests=workload.requests,
        items=info.items,
        skipped=info.skipped,
        models=measure_models(trace),
        routes=measure_routes(trace.route, len(trace)),
        span_s=workload.span_s,
        arrival_basis=info.arrival_basis,
        tick_s=workload.arrivals.tick_s,
        token_basis=info.token_basis,
        prefix_basis=info.prefix_basis,
        notes=info.notes,
    )


def saved(what: Path) -> Saved:
    """Trace and target of an output folder, or of the plan.json in it, or a trace alone. Raises InputError."""
    from advisor.deploy.files import PLAN, TARGET, TRACE

    folder = what if what.is_dir() else what.parent
    trace = folder / TRACE if what.is_dir() or what.name == PLAN else what
    if not trace.is_file():
        raise InputError(
            "there is no trace to plan from",
            where=str(trace),
            hint="advise analyze LOG --out FOLDER writes one",
        )
    target = folder / TARGET
    return Saved(trace, target if trace != what and target.is_file() else None)


def _current(paths: Sequence[str | Path], options: AnalyzeOptions, machine: Machine) -> Current | None:
    """What runs now, as far as the user said it."""
    if options.current is None:
        return None
    if options.current == "-" and "-" in map(str, paths):
        raise InputError("the log and --current cannot both be standard input", hint="--current FILE")
    from advisor.advice.control import read_control

    gpu = known_gpu(options.target, machine)
    return read_control(options.current, gpu, options.target.stack_version, sys.stdin)


def _machine(options: AnalyzeOptions) -> Machine:
    """This machine; with --here as it was measured."""
    machine = detect_machine()
    if not options.target.here:
        return machine
    from advisor.deploy.calibrate import host_path

    return replace(machine, host=load_host_costs(host_path()))


def _target(
    options: AnalyzeOptions, log_model: str | None, machine: Machine, current: Current | None
) -> Target | NoTarget:
    if not options.plan:
        return NoTarget("--no-plan was given", "--here or --gpu NAME instead")
    return resolve_target(options.target, log_model, machine, current)


def _calibrations(options: AnalyzeOptions) -> Calibrations:
    """Step times measured on the target's engine: the file named, or with --here those of this machine."""
    if options.step_times is not None:
        return load_calibrations(options.step_times)
    if not options.target.here:
        return {}
    from advisor.deploy.calibrate import step_times_path

    return load_calibrations(step_times_path())


def _simulation(options: AnalyzeOptions, progress: Simulating | None) -> SimulationOptions:
    from advisor.advice.simulated import SimulationOptions

    return SimulationOptions(
        seed=options.seed, rate=options.rate, processes=options.read.processes, progress=progress
    )


def _traits(workload: Workload, target: Target | NoTarget) -> Any:
    if isinstance(target, NoTarget):
        return find_traits(workload)
    slo = target.slo
    return find_traits(
        workload,
        ttft_s=slo.ttft_s,
        tpot_s=slo.gap_s,
        gpus=target.gpus if isinstance(target.gpus, int) else None,
        offline=slo.ttft_s is None and slo.gap_s is None,
    )


def _inputs_digest(
    trace: Trace,
    target: Target | NoTarget,
    options: AnalyzeOptions,
    calibrations: Calibrations,
    current: Current | None,
) -> str:
    """SHA-256 over the Trace's columns, the target, the flags that change numbers, what runs now, step times.

    Without names and wall-clock times: who guesses them could tell from the digest whether they are right.
    """
    digest = hashlib.sha256()
    for column in fields(trace):
        if column.name != "first_epoch_s":
            _feed(digest, column.name, getattr(trace, column.name))
    steps = sorted((str(key), repr(model)) for key, model in calibrations.items())
    flags = (options.rate, options.cache_tokens, options.seed, options.no_operations)
    digest.update(repr((target, *flags, steps, current)).encode())
    return digest.hexdigest()


def _feed(digest: Any, name: str, value: Any) -> None:
    digest.update(name.encode())
    if isinstance(value, np.ndarray):
        digest.update(np.ascontiguousarray(value))
    elif isinstance(value, Labels):
        digest.update(np.ascontiguousarray(value.codes))
    elif isinstance(value, Blocks):
        for part in fields(value):
            _feed(digest, part.name, getattr(value, part.name))
    else:
        digest.update(repr(value).encode())
