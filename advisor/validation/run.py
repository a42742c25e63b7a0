"""One replay of one window at one endpoint: its schedule, its records, and the Result that they make.

The clock of an emulation may be slower than that of what it stands for: the schedule is stretched to it, and
every figure is of records brought back from it. Prints nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.simulation.slo import Slo
from advisor.validation import gates, metrics, verdict
from advisor.validation.attained import attained
from advisor.validation.classes import assign, by_class, slos
from advisor.validation.client import open_client
from advisor.validation.elsewhere import elsewhere
from advisor.validation.endpoint import Endpoint
from advisor.validation.forms import Form
from advisor.validation.journal import Header, Journal, moved
from advisor.validation.meanwhile import Look, Meanwhile, look_at
from advisor.validation.options import Options, Progress
from advisor.validation.predicted import Predicted, predict
from advisor.validation.prompts import PromptFactory, Tokens, expected_cached_tokens
from advisor.validation.record import Record
from advisor.validation.replay import Due, End, Replay, replay
from advisor.validation.result import Cached, Rehearsal, Replayed, Result
from advisor.validation.statistics import Attained, evidence_of
from advisor.validation.window import Window

Enough = Callable[[Record], bool]
Beside = Callable[[Window, float], Coroutine[Any, Any, None]]  # of the window, and the endpoint's time scale


@dataclass(frozen=True, slots=True)
class Site:
    """An endpoint, and the form in which it takes requests."""

    endpoint: Endpoint
    form: Form


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is to be sent: a window, warm-up and all, and the seed of its prompts.

    `kept`: records, on the window's clock, of an interrupted run that this one goes on from.
    """

    window: Window
    seed: int
    digest: str  # of the window, all of it
    searched: str = ""  # of a search: the digest of the window at the log's own rate
    stage: str = ""
    factor: float = 1.0
    kept: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Ran:
    """What one replay gave: a record for each request of the window, in order of arrival, on its clock."""

    traffic: Traffic
    records: tuple[Record, ...]
    end: End
    start_unix_s: float  # wall clock at the window's start
    start_ns: int  # monotonic clock then
    expected: npt.NDArray[np.int64]  # prompt tokens that an unlimited cache would have, of those sent here
    meanwhile: Meanwhile

    def undilated(self) -> list[Record]:
        """The records on the clock of what was emulated."""
        return [record.undilated() for record in self.records]


async def run_once(
    site: Site,
    traffic: Traffic,
    slo: Slo,
    options: Options,
    progress: Progress,
    journal: Journal | None,
    *,
    enough: Enough | None = None,
    beside: Beside | None = None,
) -> Ran:
    """Replay `traffic`; each record is journalled as it ends.

    `enough` is asked at each record of the window, and ends the run. `beside` runs meanwhile.
    """
    window, endpoint = traffic.window, site.endpoint
    prompts = PromptFactory(endpoint.vocab_size, traffic.seed).build(window.trace)
    schedule = _schedule(window, site, prompts, options)
    prompts = site.form.as_seen(prompts)
    lead_s = window.lead_s * endpoint.time_scale
    judged = {window.key(place) for place in np.flatnonzero(window.judged).tolist()}
    if journal is not None:
        journal.begin(_header(site, traffic, slo, options))
        journal.add_all(traffic.kept)

    def ended(record: Record) -> bool:
        if record.key not in judged:  # of the warm-up
            return False
        record = _placed(record, lead_s, endpoint.time_scale)
        if journal is not None:
            journal.add(record)
        return enough is not None and enough(record)

    timeout_s = options.timeout_s * endpoint.time_scale
    async with open_client(
        endpoint.url, site.form.path, api_key=options.api_key, timeout_s=timeout_s
    ) as client:
        before = await look_at(endpoint.url, options.api_key)
        others = None if beside is None else asyncio.create_task(beside(window, endpoint.time_scale))
        outcome = await replay(
            schedule, client, tick=progress.tick, ended=ended, send_delay_s=options.send_delay_s
        )
        if others is not None:
            await _finished(others, cancel=outcome.end == "interrupted")
        after = await _after(endpoint.url, options, outcome)
    records = (record for record in outcome.records if record.key in judged)
    return Ran(
        traffic,
        (*traffic.kept, *(_placed(record, lead_s, endpoint.time_scale) for record in records)),
        outcome.end,
        outcome.start_unix_s + lead_s,
        outcome.start_ns + int(lead_s * 1e9),
        expected_cached_tokens(prompts, options.block_size)[window.judged],
        Meanwhile(before, after),
    )


async def _finished(others: asyncio.Task[None], *, cancel: bool) -> None:
    """Wait for what ran beside the replay; what it raised is raised here."""
    if cancel:
        others.cancel()
    await asyncio.wait({others})
    if not others.cancelled():
        others.result()


def _placed(record: Record, lead_s: float, time_scale: float) -> Record:
    """The record on the window's clock, with that clock's scale; figures are made of `undilated` ones."""
    return replace(moved(record, -lead_s), time_scale=time_scale)


async def _after(url: str, options: Options, outcome: Replay) -> Look:
    """The look after a run; one that was interrupted ends without waiting for anybody."""
    if outcome.end == "interrupted":
        return Look(None, time.monotonic(), time.process_time())
    return await look_at(url, options.api_key)


def _schedule(window: Window, site: Site, prompts: list[Tokens], options: Options) -> list[Due]:
    """When each request is due on the endpoint's clock, and its body."""
    outputs = window.trace.output_tokens
    named = assign(window.trace, options.classes)
    turn = _turn(window)
    causal = options.turns == "causal"
    return [
        Due(
            row=int(window.rows[i]),
            at_s=(float(window.due_s[i]) + window.lead_s) * site.endpoint.time_scale,
            body=site.form.body(prompt, int(outputs[i])),
            want_in=int(window.trace.prompt_tokens[i]),
            want_out=int(outputs[i]),
            session=int(window.session[i]),
            turn=int(turn[i]),
            slo_class=named[i],
            copy=int(window.copies[i]),
            after=int(window.parent[i]) if causal and window.parent[i] >= 0 else None,
        )
        for i, prompt in enumerate(site.form.write(prompts))
    ]


def _turn(window: Window) -> npt.NDArray[np.int64]:
    """Which turn of its session each request is, as far as the window shows; 0 for the first. [requests]"""
    turn = np.zeros(len(window), dtype=np.int64)
    for i, parent in enumerate(window.parent.tolist()):  # parents come before their children
        if parent >= 0:
            turn[i] = turn[parent] + 1
    return turn


def _header(site: Site, traffic: Traffic, slo: Slo, options: Options) -> Header:
    window = traffic.window
    return Header(
        url=site.endpoint.url,
        model=site.endpoint.model,
        traffic_digest=traffic.digest,
        window=window.spec,
        from_s=window.from_s,
        length_s=window.length_s,
        seed=traffic.seed,
        factor=traffic.factor,
        turns=options.turns,
        cache=options.cache,
        slo=slo.model_dump(),
        start_unix_s=time.time(),
        stage=traffic.stage,
        search_digest=traffic.searched,
    )


def result_of(site: Site, ran: Ran, slo: Slo, options: Options) -> Result:
    """The Result of one replay, judged against `slo`."""
    window, endpoint, records = ran.traffic.window, site.endpoint, ran.undilated()
    own = slos(options.classes, slo)
    score = metrics.score(records, slo, window.length_s, own)
    latencies = metrics.latencies(records)
    proof = evidence_of(records, slo, own)
    judged = gates_of(site, ran, records, slo, options)
    scores = by_class(records, slo, options.classes, window.length_s)
    word, reason = verdict.decide(
        score, latencies, slo, proof, judged, classes=scores, emulates=endpoint.emulates
    )
    incidents = ran.meanwhile.incidents()
    predicted = _predicted(site, ran, records, options, own)
    return Result(
        verdict=word,
        reason="; ".join((reason, *incidents)),
        end=ran.end,
        plan_digest=options.plan_digest,
        replayed=_replayed(site, ran, window, options),
        slo=slo,
        score=score,
        evidence=proof,
        classes=scores,
        latencies=latencies,
        cached=_cached(ran, site.form, options.block_size),
        tokens_per_chunk=metrics.tokens_per_chunk(records),
        gates=judged,
        predicted=predicted if isinstance(predicted, Predicted) else None,
        not_predicted=predicted if isinstance(predicted, str) else None,
        elsewhere=elsewhere(records, slo),
        cpu=ran.meanwhile.cpu(options.cores),
        rehearsal=_rehearsal(endpoint, ran, attained(score, latencies, slo, proof, scores)[0]),
        incidents=incidents,
        records=ran.records,
    )


def gates_of(
    site: Site, ran: Ran, records: Sequence[Record], slo: Slo, options: Options
) -> tuple[gates.Gate, ...]:
    """Every gate of a replay; `records` are those that it is to be judged by, undilated."""
    judged = gates.judge(records, metrics.latencies(records), slo, ran.end)
    cached = _cached(ran, site.form, options.block_size)
    if cached is not None:
        judged += (gates.cache(cached.measured_tokens, cached.expected_tokens, cached.prompt_tokens),)
    if site.endpoint.oversubscribed:
        judged += (gates.cores(),)
    if site.endpoint.emulates is not None:
        judged += (gates.clock_lag(*ran.meanwhile.clock()),)
    return judged


def _predicted(
    site: Site, ran: Ran, records: Sequence[Record], options: Options, own: Mapping[str, Slo]
) -> Predicted | str:
    """The plan's prediction of this run, or why there is none."""
    if options.served is None:
        return "there is no plan"
    if ran.end != "complete" or ran.traffic.kept:
        return "the run did not go from its beginning to its end"
    endpoint = site.endpoint
    served = replace(
        options.served,
        stack=endpoint.kind,
        emulates=endpoint.emulates,
        causal=options.turns == "causal",
        targets=own,
    )
    return predict(ran.traffic.window, records, served)


def _rehearsal(endpoint: Endpoint, ran: Ran, would_be: Attained) -> Rehearsal | None:
    if endpoint.emulates is None:
        return None
    step_p50_s, lag_p99_s = ran.meanwhile.clock()
    return Rehearsal(
        gpu=endpoint.emulates,
        time_scale=endpoint.time_scale,
        would_be=would_be,
        step_p50_s=step_p50_s,
        lag_p99_s=lag_p99_s,
    )


def _replayed(site: Site, ran: Ran, window: Window, options: Options) -> Replayed:
    return Replayed(
        url=site.endpoint.url,
        model=site.endpoint.model,
        window=window.spec,
        from_s=window.from_s,
        length_s=window.length_s,
        prompt_tokens=sum(record.want_in for record in ran.records),
        output_tokens=sum(record.want_out for record in ran.records),
        left_out=window.left_out,
        tick_s=window.tick_s,
        scaled=window.scaled,
        turns=options.turns,
        cache=options.cache,
        warm_up_requests=int(np.count_nonzero(~window.judged)),
        form=site.form.name,
        fell_back=site.form.fell_back,
        resumed=len(ran.traffic.kept),
        seed=ran.traffic.seed,
        start_unix_s=ran.start_unix_s,
    )


def _cached(ran: Ran, form: Form, block_size: int) -> Cached | None:
    """Of the requests that this run sent and the server reports on; None where it reports none."""
    sent = ran.records[len(ran.traffic.kept) :]
    silent = form.reports_cached and not form.cached_when_none  # about requests of which nothing was cached
    known = [
        (record, int(want))
        for record, want in zip(sent, ran.expected, strict=True)
        if record.n_cached is not None or (silent and record.n_in is not None)
    ]
    if not known:
        return None
    return Cached(
        block_size=block_size,
        prompt_tokens=sum(record.want_in for record, _ in known),
        expected_tokens=sum(want for _, want in known),
        measured_tokens=sum(record.n_cached or 0 for record, _ in known),
    )
