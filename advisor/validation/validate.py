"""Validate: does this endpoint hold this window of this traffic within these targets?

Order: choose the window, look at the endpoint, scale or refuse what cannot work, build every prompt, say what
it will cost, prove the request form with one small request of its own, replay, judge. The clock of an emulation
may be slower than that of what it stands for: the schedule is stretched to it, and every figure is of records
brought back from it. Prints nothing.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from advisor.logs.trace import Trace
from advisor.simulation.slo import Slo
from advisor.validation import endpoint as endpoints
from advisor.validation import gates, metrics, refuse, verdict
from advisor.validation.client import Client, Exchange, body_of, open_client
from advisor.validation.endpoint import Endpoint
from advisor.validation.meanwhile import Look, Meanwhile, look_at
from advisor.validation.prompts import PromptFactory, Tokens, expected_cached_tokens
from advisor.validation.record import Record
from advisor.validation.replay import Counts, Due, Replay, replay
from advisor.validation.window import DEFAULT_WINDOW, Window, fit_lengths, fit_rate, select
from engine.errors import MachineError

Fit = Literal["rate", "lengths"]

_PROBE_IN, _PROBE_OUT = 16, 2  # tokens of the request that proves the form


def no_limit(_window: Window) -> None:
    """No plan is held to its limit: a baseline, a fault, a foreign endpoint."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to replay, beyond what and where."""

    fit: frozenset[Fit] = frozenset()
    load: Callable[[Window], refuse.Load | None] = no_limit  # what a window asks of the advised plan
    block_size: int = 16  # of the engine's KV cache, tokens; only to say how many cached tokens to expect
    timeout_s: float = 120.0  # of one request, after its send
    seed: int | None = (
        None  # of the prompts' content; None: a new one, so that no run meets an earlier one's cache
    )
    allow_remote: bool = False
    api_key: str | None = field(default=None, repr=False)
    cores: int | None = None  # of this machine that the endpoint's instances run on; None: not known
    send_delay_s: float = 0.0  # self-test: every send this late


@dataclass(frozen=True, slots=True)
class Cost:
    """What a validation will send, known before it sends."""

    url: str
    model: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    duration_s: float  # until the last request is sent
    end_unix_s: float  # wall clock then, seconds since 1970 UTC
    scaled: tuple[str, ...]
    left_out: int
    emulates: str | None = None  # the GPU that the endpoint stands for
    time_scale: float = 1.0  # the log's arrivals, and `duration_s`, are so many times longer


class Progress(Protocol):
    """Who wants to know. Calls are short: they run between sends."""

    def cost(self, cost: Cost) -> None:
        """Called once, before the first request. An exception here stops the run."""
        ...

    def tick(self, counts: Counts) -> None:
        """Called about once a second while the run goes on."""
        ...


class Silent:
    """A Progress that tells nobody."""

    def cost(self, cost: Cost) -> None:
        """Nothing."""

    def tick(self, counts: Counts) -> None:
        """Nothing."""


def validate(
    trace: Trace,
    *,
    url: str,
    slo: Slo,
    window: str = DEFAULT_WINDOW,
    options: Options | None = None,
    progress: Progress | None = None,
) -> verdict.Result:
    """Replay `window` of `trace` at `url` and judge it against `slo`.

    Ctrl-C while it runs gives a Result of what came back so far, `end` "interrupted". Raises InputError and
    MachineError before anything is sent.
    """
    return asyncio.run(_validate(trace, url, slo, window, options or Options(), progress or Silent()))


async def _validate(
    trace: Trace, url: str, slo: Slo, spec: str, options: Options, progress: Progress
) -> verdict.Result:
    refuse.remote(url, allowed=options.allow_remote)
    window = select(trace, spec)
    endpoint = await endpoints.inspect(url, api_key=options.api_key)
    window = _fit(window, endpoint, options)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    factory = PromptFactory(endpoint.vocab_size, seed)
    prompts = factory.build(window.trace)
    schedule = _schedule(window, endpoint, prompts)
    progress.cost(_cost(window, endpoint))
    timeout_s = options.timeout_s * endpoint.time_scale
    async with open_client(url, api_key=options.api_key, timeout_s=timeout_s) as client:
        await _probe(client, endpoint, factory)
        before = await look_at(url, options.api_key)
        outcome = await replay(schedule, client, tick=progress.tick, send_delay_s=options.send_delay_s)
        meanwhile = Meanwhile(before, await _after(url, options, outcome))
    outcome = _dilated(outcome, endpoint.time_scale)
    expected = expected_cached_tokens(prompts, options.block_size)
    cached = _cached(outcome.records, expected, options.block_size)
    return _result(window, endpoint, slo, seed, outcome, cached, meanwhile, options.cores)


async def _after(url: str, options: Options, outcome: Replay) -> Look:
    """The look after a run; one that was interrupted ends without waiting for anybody."""
    if outcome.end == "interrupted":
        return Look(None, time.monotonic(), time.process_time())
    return await look_at(url, options.api_key)


def _dilated(outcome: Replay, time_scale: float) -> Replay:
    """The outcome with the scale of its clock in every record; what is measured is made of `undilated` ones."""
    return replace(outcome, records=tuple(replace(one, time_scale=time_scale) for one in outcome.records))


def _fit(window: Window, endpoint: Endpoint, options: Options) -> Window:
    """The window as it can be sent. Raises MachineError where it cannot and `fit` forbids to scale it."""
    if endpoint.max_len is not None:
        if "lengths" in options.fit:
            window = fit_lengths(window, endpoint.max_len)
        refuse.over_context(window, endpoint.max_len)
    load = options.load(window)
    if load is None:
        return window
    if "rate" in options.fit:
        return fit_rate(window, load.utilisation, load.limit)
    refuse.over_load(load)
    return window


def _schedule(window: Window, endpoint: Endpoint, prompts: list[Tokens]) -> list[Due]:
    """When each request is due on the endpoint's clock, and its body."""
    outputs = window.trace.output_tokens
    return [
        Due(
            row=int(window.rows[i]),
            at_s=float(window.due_s[i]) * endpoint.time_scale,
            body=body_of(endpoint.model, prompt.tolist(), int(outputs[i])),
            want_in=len(prompt),
            want_out=int(outputs[i]),
        )
        for i, prompt in enumerate(prompts)
    ]


def _cost(window: Window, endpoint: Endpoint) -> Cost:
    duration_s = float(window.due_s[-1]) * endpoint.time_scale
    return Cost(
        url=endpoint.url,
        model=endpoint.model,
        requests=len(window),
        prompt_tokens=int(window.trace.prompt_tokens.sum()),
        output_tokens=int(window.trace.output_tokens.sum()),
        duration_s=duration_s,
        end_unix_s=time.time() + duration_s,
        scaled=window.scaled,
        left_out=window.left_out,
        emulates=endpoint.emulates,
        time_scale=endpoint.time_scale,
    )


async def _probe(client: Client, endpoint: Endpoint, factory: PromptFactory) -> None:
    """One short request that shares no block with the run. Only a refusal stops it: the rest is measured."""
    prompt = factory.unique(_PROBE_IN, label=2**63)
    body = body_of(endpoint.model, prompt.tolist(), _PROBE_OUT)
    exchange = Exchange(-1, body, time.monotonic_ns(), _PROBE_IN, _PROBE_OUT)
    await client.perform(exchange)
    if exchange.status == "http_4xx":
        raise MachineError(
            f"the endpoint at {endpoint.url} refuses the request form of a replay",
            why="4xx to a completion of token ids with min_tokens and ignore_eos, or it wants an API key",
            hint="advise launch",
        )


def _cached(
    records: tuple[Record, ...], expected: npt.NDArray[np.int64], block_size: int
) -> verdict.Cached | None:
    known = [
        (record, int(want))
        for record, want in zip(records, expected, strict=True)
        if record.n_cached is not None
    ]
    if not known:
        return None
    return verdict.Cached(
        block_size=block_size,
        prompt_tokens=sum(record.want_in for record, _ in known),
        expected_tokens=sum(want for _, want in known),
        measured_tokens=sum(record.n_cached or 0 for record, _ in known),
    )


def _result(
    window: Window,
    endpoint: Endpoint,
    slo: Slo,
    seed: int,
    outcome: Replay,
    cached: verdict.Cached | None,
    meanwhile: Meanwhile,
    cores: int | None,
) -> verdict.Result:
    records = [record.undilated() for record in outcome.records]
    score = metrics.score(records, slo, window.length_s)
    latencies = metrics.latencies(records)
    step_p50_s, lag_p99_s = meanwhile.clock()
    judged = gates.judge(records, latencies, slo, outcome.end)
    if endpoint.oversubscribed:
        judged += (gates.cores(),)
    if endpoint.emulates is not None:
        judged += (gates.clock_lag(step_p50_s, lag_p99_s),)
    word, reason = verdict.decide(score, latencies, slo, judged, endpoint.emulates)
    incidents = meanwhile.incidents()
    rehearsal = None
    if endpoint.emulates is not None:
        rehearsal = verdict.Rehearsal(
            gpu=endpoint.emulates,
            time_scale=endpoint.time_scale,
            would_be=verdict.attained(score, latencies, slo)[0],
            step_p50_s=step_p50_s,
            lag_p99_s=lag_p99_s,
        )
    return verdict.Result(
        verdict=word,
        reason="; ".join((reason, *incidents)),
        end=outcome.end,
        replayed=verdict.Replayed(
            url=endpoint.url,
            model=endpoint.model,
            window=window.spec,
            length_s=window.length_s,
            prompt_tokens=int(window.trace.prompt_tokens.sum()),
            output_tokens=int(window.trace.output_tokens.sum()),
            left_out=window.left_out,
            tick_s=window.tick_s,
            scaled=window.scaled,
            seed=seed,
            start_unix_s=outcome.start_unix_s,
        ),
        slo=slo,
        score=score,
        latencies=latencies,
        cached=cached,
        tokens_per_chunk=metrics.tokens_per_chunk(records),
        gates=judged,
        cpu=meanwhile.cpu(cores),
        rehearsal=rehearsal,
        incidents=incidents,
        records=outcome.records,
    )
