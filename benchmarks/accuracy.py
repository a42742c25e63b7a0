"""How well the advisor predicts: four sample logs, planned for this machine, launched, replayed and compared.

    python -m benchmarks.accuracy [--only LOG ...] [--log accuracy.jsonl] [--work accuracy-work]
                                  [--plan-only] [--table] [--calibrated] [--smoke]

Each log is generated, calibrated for and planned as `advise calibrate` and `advise analyze LOG --here` do, its
plan launched as by `advise launch`, and windows of it are replayed as by `advise validate --rate`, whole
sessions left out or copied: at 0.5, 0.8 and 1 times the goodput that was predicted, a thousand requests each
over several replays, and beyond until the attainment asked for is missed. Beside each stands the simulation of
the very requests that were sent, and that with steps longer and shorter by a tenth. A replay that is INVALID is
said, not counted, and run again. Each plan and each replay is a line of `--log`; what is there is not done
again. Exit 1 where a prediction is off by more than was announced (`benchmarks/_accuracy_results.py`).
`--smoke` tries it all out in seconds on an emulated GPU, counts replays whose clock was late, proves nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from advisor.advice.plan import Plan  # noqa: E402 - needs the path above
from advisor.advice.resolve import TargetOptions  # noqa: E402
from advisor.advice.steps import Calibrations  # noqa: E402
from advisor.advice.target import CPU, Target  # noqa: E402
from advisor.analyze import AnalyzeOptions, analyze  # noqa: E402
from advisor.deploy.calibrate import step_times_path  # noqa: E402
from advisor.deploy.files import write_plan_files  # noqa: E402
from advisor.deploy.launch import Launchable, find, launch  # noqa: E402
from advisor.logs.read import read  # noqa: E402
from advisor.logs.save import save  # noqa: E402
from advisor.logs.trace import Trace  # noqa: E402
from advisor.samples import write_sample  # noqa: E402
from advisor.simulation.slo import Slo  # noqa: E402
from advisor.validation import metrics  # noqa: E402
from advisor.validation.options import Options  # noqa: E402
from advisor.validation.planned import Planned, planned  # noqa: E402
from advisor.validation.result import Result  # noqa: E402
from advisor.validation.simulated import simulated  # noqa: E402
from advisor.validation.validate import sent, validate  # noqa: E402
from advisor.validation.window import WARM_SHARE, Window, select  # noqa: E402
from benchmarks._accuracy_results import (  # noqa: E402
    FACTORS,
    FEWEST,
    MOVED,
    PlanRecord,
    RunRecord,
    SetupRecord,
    faults,
    loads,
    next_factor,
    table,
)
from benchmarks._accuracy_results import Record as Line  # noqa: E402
from benchmarks._accuracy_samples import SAMPLES, Sample  # noqa: E402
from benchmarks._rehearsed import Lengths, Rehearsed, Traffic  # noqa: E402
from benchmarks._three_results import Results  # noqa: E402
from benchmarks.three_ideas import code_digest  # noqa: E402
from engine.errors import AdviseError, MachineError  # noqa: E402
from engine.host import usable_cores  # noqa: E402
from engine.step_time.files import load_calibrations  # noqa: E402

REPEATS, MOST_REPEATS = 3, 6  # replays of a load; more where they have too few requests together
BEYOND_SHARE = 0.5  # of the requests of a judged load, at one that is only to find goodput
SPARE = 1.1  # windows differ in how many requests they have
TRIES = 3  # of a replay that is INVALID
DRAWS, MOVED_S = 5, 0.002  # simulations of a replay, each arrival up to so much later, as any client has it
SMOKE = Rehearsed(
    "smoke",
    Target(model="llama-3.1-8b", gpu="h100-sxm", gpus=1, slo=Slo(ttft_s=0.08, tpot_s=0.05)),
    Traffic(Lengths(200, 800), Lengths(6, 16), documents=8, document=256, share=0.5),
    "1 x TP 1, chunked 512",
    rates=(5, 40),
    requests=200,
    time_scale=1,
)
SMOKE_RPS, SMOKE_REQUESTS = 20.0, 30


@dataclass(frozen=True, slots=True)
class Ready:
    """A log that is planned for: what to launch, how it is predicted. `emulate`: a GPU; None: it runs for real.

    `lenient`: a replay that is INVALID counts.
    """

    plan: PlanRecord
    trace: Trace
    what: Launchable
    predicted: Planned
    slo: Slo
    emulate: str | None = None
    lenient: bool = False


Measure = Callable[[Ready, str, float, int, int, int], RunRecord]


def run(ready: Ready, results: Results, measure: Measure, url: str) -> None:
    """Whatever is missing of a log's loads, in an engine that runs at `url`."""
    asked, few = ready.slo.attainment, int(BEYOND_SHARE * ready.plan.fewest)
    for factor in FACTORS:
        _run_load(ready, results, measure, url, factor, ready.plan.fewest)
    while (factor := next_factor(loads(results, ready.plan), asked)) is not None:
        _run_load(ready, results, measure, url, factor, few)


def _run_load(ready: Ready, results: Results, measure: Measure, url: str, factor: float, fewest: int) -> None:
    """Replays at one load until they have enough requests. Raises MachineError where none is valid."""
    plan = ready.plan
    same = {
        "code": plan.code,
        "seed": plan.seed,
        "sample": plan.sample,
        "digest": plan.digest,
        "factor": factor,
    }
    for repeat in range(MOST_REPEATS):
        valid = [one for one in results.every(RunRecord, **same) if one.why is None]
        if sum(one.requests for one in valid) >= fewest:
            return
        tried = results.every(RunRecord, repeat=repeat, **same)
        while len(tried) < TRIES and all(one.why is not None for one in tried):
            record = measure(ready, url, factor, repeat, len(tried), fewest)
            results.add(record)
            tried.append(record)
            _say(_words(record))
    if not any(one.factor == factor for one in loads(results, plan)):
        raise MachineError(f"no replay of {plan.sample} at {factor:g} x is valid", why=tried[-1].why)


def measured(ready: Ready, url: str, factor: float, repeat: int, tried: int, fewest: int) -> RunRecord:
    """One replay of a window of the log at a load, and the simulation of what it sent."""
    plan = ready.plan
    rate_rps = factor * plan.goodput_rps
    spec = window_of(plan, SPARE * fewest / REPEATS / rate_rps, repeat)
    own = select(ready.trace, spec)  # its rate is not that of the whole log
    began = time.monotonic()
    options = Options(
        rate=rate_rps * own.length_s / len(own),
        cache="warm",
        block_size=ready.what.config.pools[0].block_size,
        seed=_seed(plan, factor, repeat, tried),
        cores=usable_cores(),
    )
    result = validate(ready.trace, url=url, slo=ready.slo, window=spec, options=options)
    window = sent(ready.trace, spec, None, options)
    figures = [_good(ready, window, result, factor) for factor in (1.0, 1 + MOVED, 1 - MOVED)]
    return _record(ready, factor, repeat, result, figures, time.monotonic() - began)


def window_of(plan: PlanRecord, length_s: float, repeat: int) -> str:
    """The window of a replay: repeats lie evenly in the log, behind as much as warms the cache."""
    warm_s = WARM_SHARE * length_s
    room_s = plan.log_s - length_s - warm_s
    if room_s <= 0:
        return "all"
    from_s = warm_s + room_s * ((repeat % REPEATS) + repeat // REPEATS / 2) / (REPEATS - 1 or 1) * (2 / 3)
    return f"{from_s:.3f}..{from_s + length_s:.3f}"


def _seed(plan: PlanRecord, factor: float, repeat: int, tried: int) -> int:
    """Of sessions and prompts: another for each replay and try, since the engine remembers the others."""
    said = f"{plan.seed} {plan.sample} {factor} {repeat} {tried}"
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:4], "little")


@dataclass(frozen=True, slots=True)
class Figures:
    """What a simulation says: good requests (a mean), P90 of TTFT and TPOT, seconds."""

    good: float
    ttft_p90_s: float | None
    tpot_p90_s: float | None


def _good(ready: Ready, window: Window, result: Result, times: float) -> Figures:
    """The mean of simulations of the replayed window, with every step `times` as long."""
    if result.end != "complete":
        return Figures(0.0, None, None)
    rng, found = np.random.default_rng(0), []
    records = [one.undilated() for one in result.records]
    for _ in range(DRAWS):
        later = window.due_s + rng.uniform(0, MOVED_S, len(window))
        moved = replace(window, due_s=np.sort(np.where(window.judged, later, window.due_s)))
        some = simulated(moved, records, ready.predicted.times(times))
        latencies = metrics.latencies(some)
        found.append(
            (
                metrics.score(some, ready.slo, window.length_s).good,
                latencies.ttft.p90 if latencies.ttft else np.nan,
                latencies.tpot.p90 if latencies.tpot else np.nan,
            )
        )
    good, ttft, tpot = np.mean(found, axis=0).tolist()
    return Figures(good, ttft if np.isfinite(ttft) else None, tpot if np.isfinite(tpot) else None)


def _record(
    ready: Ready, factor: float, repeat: int, result: Result, figures: Sequence[Figures], wall_s: float
) -> RunRecord:
    plan, latencies, (same, slower, faster) = ready.plan, result.latencies, figures
    bad = result.end != "complete" or ((result.verdict == "INVALID" or result.incidents) and not ready.lenient)
    return RunRecord(
        code=plan.code,
        seed=plan.seed,
        sample=plan.sample,
        digest=plan.digest,
        factor=factor,
        repeat=repeat,
        requests=result.score.requests,
        length_s=result.replayed.length_s,
        good=result.score.good,
        predicted=same.good,
        slower=slower.good,
        faster=faster.good,
        ttft_p90_s=(latencies.ttft.p90 if latencies.ttft else None, same.ttft_p90_s),
        tpot_p90_s=(latencies.tpot.p90 if latencies.tpot else None, same.tpot_p90_s),
        misses=result.score.misses,
        client_share=result.cpu.client_share if result.cpu else None,
        wall_s=wall_s,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        why=result.reason if bad else None,
    )


def ready_of(sample: Sample, setup: SetupRecord, results: Results, work: Path) -> Ready:
    """The plan of a sample log and its files, made where they are not there."""
    folder = work / sample.name
    same = {"code": setup.code, "seed": setup.seed, "sample": sample.name, "digest": sample.digest}
    known = results.last(PlanRecord, **same)
    if known is None or not (folder / "plan.json").is_file():
        _say(f"{sample.name}: planning")
        known = _planned(sample, setup, folder)
        results.add(known)
    what = find(folder)
    return _ready(known, read([folder / "trace.jsonl"]), what, load_calibrations(step_times_path()))


def _ready(
    record: PlanRecord,
    trace: Trace,
    what: Launchable,
    calibrations: Calibrations,
    *,
    emulate: str | None = None,
    lenient: bool = False,
) -> Ready:
    assert what.plan is not None
    predicted = planned(what.plan, what.config, calibrations)
    if isinstance(predicted, str):
        raise MachineError("the plan cannot be predicted with", why=predicted)
    return Ready(record, trace, what, predicted, what.plan.target.slo, emulate, lenient)


def _planned(sample: Sample, setup: SetupRecord, folder: Path) -> PlanRecord:
    """Generate the log and plan for it, as `advise analyze LOG --here` does. Raises MachineError: no plan."""
    folder.mkdir(parents=True, exist_ok=True)
    log, began = folder / "log.jsonl", time.monotonic()
    write_sample(log, sample.service, setup.seed)
    slo = sample.slo
    target = TargetOptions(here=True, gpu=CPU, ttft_s=slo.ttft_s, tpot_s=slo.tpot_s, attainment=slo.attainment)
    analysis, trace = analyze([log], AnalyzeOptions(target=target, seed=setup.seed))
    if analysis.plan is None or analysis.plan.choice is None:
        raise MachineError(f"{sample.name} has no plan here", why=analysis.plan_reason or "no load is kept")
    write_plan_files(folder, analysis, partial(save, trace), force=True)
    return _plan_record(sample.name, sample.digest, setup, analysis.plan, trace, time.monotonic() - began)


def _plan_record(
    name: str, digest: str, setup: SetupRecord, plan: Plan, trace: Trace, took_s: float, rps: float = 0.0
) -> PlanRecord:
    """`rps`: goodput of a plan that predicts none, the smoke's."""
    choice = plan.choice
    assert choice is not None
    known = choice.goodput_rps_per_gpu
    low, mid, high = (rps, rps, rps) if known is None else (known.low, known.mid, known.high)
    gpus = 1 if known is None else choice.gpus
    log_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    error = plan.step_time.error_p90
    return PlanRecord(
        code=setup.code,
        seed=setup.seed,
        sample=name,
        digest=digest,
        log_rps=len(trace) / log_s,
        log_s=log_s,
        goodput_rps=mid * gpus,
        interval_rps=(low * gpus, high * gpus),
        advice=choice.name,
        verdict=plan.verdict,
        attainment=plan.target.slo.attainment,
        steps=f"step times {plan.step_time.source}" + ("" if error is None else f", P90 error {error:.0%}"),
        fewest=SMOKE_REQUESTS if setup.smoke else FEWEST,
        took_s=took_s,
    )


def smoke(setup: SetupRecord, results: Results, work: Path) -> Ready:
    """A small plan for an emulated GPU, its goodput taken for granted."""
    work.mkdir(parents=True, exist_ok=True)
    what, trace = SMOKE.write(work), SMOKE.trace(SMOKE_RPS)
    assert what.plan is not None
    known = results.last(PlanRecord, code=setup.code, seed=setup.seed, sample=SMOKE.name)
    if known is None:
        known = _plan_record(SMOKE.name, "smoke", setup, what.plan, trace, 0.0, SMOKE_RPS)
        results.add(known)
    return _ready(known, trace, what, {}, emulate=SMOKE.target.gpu, lenient=True)


def survey(code: str, seed: int, *, calibrated: bool, smoke: bool) -> SetupRecord:
    """Calibrate this machine into the user cache, as `advise calibrate` does, unless it is or nothing runs."""
    words = "an emulated GPU"
    if not smoke:
        words = "calibrated before" if calibrated else _calibrate()
    cpu = platform.processor() or platform.machine()
    return SetupRecord(
        code=code,
        seed=seed,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=f"{os.cpu_count()} cores ({cpu}), Python {platform.python_version()}",
        words=words,
        smoke=smoke,
    )


def _calibrate() -> str:
    from advisor.advice.host import save_host_costs
    from advisor.deploy import calibrate as calibrating
    from advisor.validation.host_costs import measure_host_costs

    whole = calibrating.calibrate(quick=False)
    calibrating.calibrate_one_core(whole, quick=False)
    costs = measure_host_costs()
    save_host_costs(calibrating.host_path(), costs)
    return f"{whole.key}, P90 error {whole.step_time.error_p90 or np.nan:.0%}; {costs}"


def expected_s(plan: PlanRecord) -> float:
    """About how long the replays of a log take, seconds: the judged loads, and two that find goodput."""
    shares = [1 / factor for factor in FACTORS] + [BEYOND_SHARE / factor for factor in (1.15, 1.3)]
    return SPARE * (1 + WARM_SHARE) * plan.fewest / plan.goodput_rps * sum(shares)


@contextmanager
def engine_of(ready: Ready) -> Iterator[str]:
    """The plan, launched; its URL."""
    options: Mapping[str, float | str] = {}
    if ready.emulate is not None:
        options = {"emulate": ready.emulate, "time_scale": SMOKE.time_scale}
    with launch(ready.what, port=0, **options) as launched:  # type: ignore[arg-type]
        yield launched.engine.url


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is missing, then print the table."""
    given = _arguments(arguments)
    results = Results(given.log, Line)
    try:
        setup = _surveyed(results, given)
        for ready in [] if given.table else _all_ready(setup, results, given):
            if given.plan_only:
                minutes = expected_s(ready.plan) / 60
                _say(f"{ready.plan.sample}: {ready.plan.goodput_rps:.2f} requests/s, about {minutes:.0f} min")
                continue
            with engine_of(ready) as url:
                run(ready, results, measured, url)
    except AdviseError as error:
        print(f"{error.message}: {error.why}" if error.why else error.message, file=sys.stderr)
        return error.exit_code
    print(table(results))
    names = [SMOKE.name] if given.smoke else [sample.name for sample in SAMPLES]
    found = faults(results, names)
    print("\n".join(["", *found] if found else ["", "Measurement and prediction agree."]))
    return int(bool(found))


def _all_ready(setup: SetupRecord, results: Results, given: argparse.Namespace) -> Iterator[Ready]:
    if given.smoke:
        yield smoke(setup, results, given.work)
        return
    for sample in SAMPLES:
        if not given.only or sample.name in given.only:
            yield ready_of(sample, setup, results, given.work)


def _surveyed(results: Results, given: argparse.Namespace) -> SetupRecord:
    code = {} if given.keep or given.table else {"code": code_digest()}
    known = results.last(SetupRecord, seed=given.seed, smoke=given.smoke, **code)
    if known is None:
        known = survey(code_digest(), given.seed, calibrated=given.calibrated, smoke=given.smoke)
        results.add(known)
    return known


def _words(one: RunRecord) -> str:
    said = f"{one.sample} at {one.factor:g} x, replay {one.repeat + 1}: {one.good} of {one.requests} good, "
    said += f"{one.predicted:.1f} predicted ({one.slower:.1f} to {one.faster:.1f}); {one.wall_s:.0f} s"
    return said + ("" if one.why is None else f"; INVALID: {one.why}")


def _say(said: str) -> None:
    print(said, file=sys.stderr, flush=True)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    named = [sample.name for sample in SAMPLES]
    parser.add_argument("--only", nargs="*", default=[], choices=named, help="logs; default: all")
    parser.add_argument("--log", type=Path, default=Path("accuracy.jsonl"), help="results; what is there stays")
    parser.add_argument("--work", type=Path, default=Path("accuracy-work"), help="folder of logs and plans")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calibrated", action="store_true", help="take the calibration of the user cache")
    parser.add_argument(
        "--keep", action="store_true", help="go on with the newest results, whatever their code"
    )
    parser.add_argument("--plan-only", action="store_true", help="calibrate and plan, replay nothing")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    parser.add_argument("--smoke", action="store_true", help="seconds, on an emulated GPU: proves nothing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
