"""`advise calibrate --url`: the step times of an engine that runs, measured from outside and fitted.

    a first look (speed, token budget) -> passes of lone prompts, streams, prompts beside streams -> rows -> fit

Five prompt lengths alone, five numbers of streams, three prompts beside streams, in another order and with
other contexts in every pass; no two prompts share a block, so that no cache helps. What a first token takes
beside its step is measured and taken out. Never asks whether the endpoint may be measured: callers do, before.
Prints nothing, keeps no text.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import get_args

import aiohttp

from advisor.advice import profiles
from advisor.advice.target import CPU, Stack
from advisor.deploy.calibrate import CalibrationResult, keep, step_times_path
from advisor.validation import forms
from advisor.validation.client import Client, authorization, open_client
from advisor.validation.endpoint import Endpoint, base_of, inspect
from advisor.validation.forms import Form
from advisor.validation.outside_probes import ENOUGH_S, LIMIT_S, Answer, Ask, Measured, measure
from advisor.validation.outside_rows import Row, overhead_s
from advisor.validation.planned import OURS
from advisor.validation.prompts import PromptFactory
from advisor.validation.record import Record
from advisor.validation.replay import Due, replay
from engine import __version__
from engine.errors import InputError, InvalidMeasurementError
from engine.progress import Progress
from engine.step_time.calibrated import CalibratedStepTime
from engine.step_time.files import Key, load_calibrations
from engine.step_time.fit import MIN_STEPS, fit

WARNED_P90 = 0.5  # held-out error beyond which a plan should not rest on the fit
COARSE_CHUNKS = 1.05  # tokens a chunk above which a gap is no step
_TUNED = ("-instruct", "-chat", "-it")  # how the names of tuned models end
_ROUND_TRIPS = 15
_TIMEOUT_S = 120.0  # of one request


@dataclass(frozen=True, slots=True)
class OutsideCalibration(CalibrationResult):
    """A calibration from outside. Seconds are on the clock that the endpoint stands for, `wall_s` apart.

    `overhead_s` was taken out of every first-token time, `round_trip_s` of it is an empty request's. `budget`:
    tokens that the engine puts into a step, None where the longest prompt was one step. `warning`: why a plan
    should not rest on it.
    """

    round_trip_s: float
    overhead_s: float
    budget: int | None
    requests: int
    prompt_tokens: int
    output_tokens: int
    wall_s: float
    notes: tuple[str, ...] = ()
    warning: str | None = None


def calibrate_url(
    url: str,
    *,
    device: str,
    engine: str | None = None,
    version: str | None = None,
    model: str | None = None,
    dtype: str = "auto",
    parallel: int = 1,
    tp: int | None = None,
    api_key: str | None = None,
    tokenizer: str | None = None,
    budget: int | None = None,
    most_streams: int | None = None,
    seed: int | None = None,
    enough_s: float = ENOUGH_S,
    time_limit_s: float = LIMIT_S,
    out: Path | None = None,
    progress: Progress | None = None,
) -> OutsideCalibration:
    """Measure one instance of an engine behind `url`, fit it, keep it in `out` or the user cache.

    `engine` and `version`: a stack's name; None: what the endpoint says. `device`: a GPU profile's id, or
    `cpu`; `parallel`: GPUs of the instance, on a CPU its cores; `tp` as in `Key` (None: all GPUs, on a CPU 1).
    `model`: the profile that plans are made for (None: what the endpoint says). `tokenizer`: see `forms.agree`.
    `budget`: its token budget where it is known. Another seed sends other prompts.
    Raises MachineError where the endpoint does not serve, InputError where it is of no known engine,
    InvalidMeasurementError where too little could be measured in `time_limit_s`.
    """
    seed = secrets.randbits(32) if seed is None else seed
    say = progress or (lambda _words: None)
    device = device if device == CPU else profiles.gpu(device).id
    path = out or step_times_path()
    load_calibrations(path)  # a file that is none is an error now, not after minutes

    began_s = time.monotonic()

    async def measured_there() -> tuple[Endpoint, Measured, float]:
        endpoint = await inspect(url, api_key=api_key)
        stack_of(endpoint, engine)
        form = await forms.agree(endpoint, api_key=api_key, tokenizer=tokenizer)
        round_trip_s = await _round_trip_s(url, api_key) / endpoint.time_scale
        left_s = began_s + time_limit_s - time.monotonic()
        async with _answering(endpoint, form, api_key, seed, began_s + time_limit_s) as answer:
            measured = await measure(
                answer,
                on_cpu=device == CPU,
                max_len=endpoint.max_len,
                budget=budget,
                most_streams=most_streams,
                enough_s=enough_s,
                limit_s=left_s,
                seed=seed,
                say=say,
            )
        return endpoint, measured, round_trip_s

    endpoint, measured, round_trip_s = asyncio.run(measured_there())
    wall_s = time.monotonic() - began_s
    step_time, way_s = fitted(measured, round_trip_s, seed)
    stack = stack_of(endpoint, engine)
    key = Key(
        engine=stack,
        version=version or endpoint.version or (__version__ if stack == OURS else "unknown"),
        device=device,
        model=profile_of(model or endpoint.model),
        dtype=dtype,
        parallel=parallel,
        tp=(1 if device == CPU else parallel) if tp is None else tp,
    )
    keep(key, step_time, path)
    return OutsideCalibration(
        key=key,
        step_time=step_time,
        path=path,
        round_trip_s=round_trip_s,
        overhead_s=way_s,
        budget=measured.design.budget,
        requests=measured.requests,
        prompt_tokens=measured.prompt_tokens,
        output_tokens=measured.output_tokens,
        wall_s=wall_s,
        notes=_notes(measured, way_s, round_trip_s),
        warning=_warning(step_time),
    )


def profile_of(name: str) -> str:
    """The id of the profile of a model, or of what it was tuned from (of the same sizes); else its name."""
    tuned_from = name.rpartition("-")[0] if name.lower().endswith(_TUNED) else name
    known = profiles.known_model(name) or profiles.known_model(tuned_from)
    return name if known is None else known.id


def stack_of(endpoint: Endpoint, engine: str | None) -> str:
    """The stack that plans are made for: as given, else as the endpoint tells. Raises InputError."""
    if engine is not None:
        return engine
    if endpoint.kind in get_args(Stack):
        return endpoint.kind
    raise InputError(
        f"the endpoint at {endpoint.url} does not tell which engine it is",
        why=f"it is {endpoint.engine}, and step times are kept for {', '.join(get_args(Stack))}",
        hint=f"advise calibrate --url {endpoint.url} --stack vllm",
    )


def fitted(measured: Measured, round_trip_s: float, seed: int) -> tuple[CalibratedStepTime, float]:
    """The fit to what was measured, and the overhead of first tokens that was taken out before.

    Raises InvalidMeasurementError where there are too few steps.
    """
    if measured.steps < MIN_STEPS or not measured.lone:
        raise InvalidMeasurementError(
            "too little could be measured from outside",
            why=f"{measured.steps} steps, a fit needs {MIN_STEPS}: the endpoint is slow, or serves others too",
            hint="advise calibrate --url URL   (with nobody else on it)",
        )

    def less(way_s: float) -> CalibratedStepTime:
        rows = [Row(shape, took - way_s) for shape, took in measured.lone] + measured.rows
        Random(seed).shuffle(rows)  # every fourth is held out: some of each kind
        return fit([row.shape for row in rows], [row.seconds for row in rows])

    first = less(min(round_trip_s, min(row.seconds for row in measured.lone) / 2))
    way_s = overhead_s(measured.lone, measured.rows, round_trip_s, first.seconds)
    return less(way_s), way_s


@asynccontextmanager
async def _answering(
    endpoint: Endpoint, form: Form, api_key: str | None, seed: int, until_s: float
) -> AsyncIterator[Answer]:
    """What sends the requests of a probe until `until_s`, on the wall's clock, and gives their records."""
    factory, scale, sent = PromptFactory(endpoint.vocab_size, seed), endpoint.time_scale, 0
    timeout_s = _TIMEOUT_S * scale
    async with open_client(endpoint.url, form.path, api_key=api_key, timeout_s=timeout_s) as client:

        async def answer(asks: Sequence[Ask]) -> list[Record]:
            nonlocal sent
            # No two prompts share anything, so that no cache helps.
            prompts = form.write([factory.unique(ask.prompt, sent + n) for n, ask in enumerate(asks)])
            sent += len(asks)
            schedule = [
                Due(number, ask.at_s * scale, form.body(prompt, ask.output), ask.prompt, ask.output)
                for number, (ask, prompt) in enumerate(zip(asks, prompts, strict=True))
            ]
            records = await _until(client, schedule, until_s)
            return [replace(one, time_scale=scale).undilated() for one in records]

        yield answer


async def _until(client: Client, schedule: list[Due], until_s: float) -> tuple[Record, ...]:
    """The records of a replay; of one that time ran out on, as far as it came."""
    replaying = asyncio.create_task(replay(schedule, client, tick=lambda _: None))
    done, _ = await asyncio.wait({replaying}, timeout=max(0.1, until_s - time.monotonic()))
    if not done:
        replaying.cancel()
    return (await replaying).records


async def _round_trip_s(url: str, api_key: str | None) -> float:
    """Median time of a request on an open connection that computes nothing, seconds."""
    took = []
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(headers=authorization(api_key), timeout=timeout) as session:
        for _ in range(_ROUND_TRIPS):
            began_s = time.monotonic()
            async with session.get(base_of(url) + "/health") as response:
                took.append(time.monotonic() - began_s)
                await response.read()
    return median(took)


def _notes(measured: Measured, way_s: float, round_trip_s: float) -> tuple[str, ...]:
    notes = [
        f"{way_s * 1e3:.1f} ms of each first-token time are not its step and were taken out, "
        f"{round_trip_s * 1e3:.1f} ms of them an empty round trip"
    ]
    if measured.design.budget is not None:
        notes.append(f"a step holds at most {measured.design.budget:,} tokens")
    if measured.refused:
        counts = ", ".join(map(str, sorted(measured.refused)))
        notes.append(f"{counts} streams at once were not all served and were left out")
    if measured.coarse > COARSE_CHUNKS:
        notes.append(f"a chunk holds {measured.coarse:.2f} tokens: gaps were divided by that")
    if measured.cached:
        notes.append("some prompt tokens came from a cache, though no two prompts share a block")
    return tuple(notes)


def _warning(step_time: CalibratedStepTime) -> str | None:
    error = step_time.error_p90
    if error is None or error <= WARNED_P90:
        return None
    return (
        f"held-out steps are off by {error:.0%} at P90, over {WARNED_P90:.0%}: the endpoint served others "
        "meanwhile, or its steps are not made as is assumed; do not plan with this"
    )
