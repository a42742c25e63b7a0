"""Validate: does this endpoint hold this window of this traffic within these targets, and up to which rate?

Order: look at the endpoint and agree on a form of request, choose the window, scale or refuse what cannot work,
say what it will cost, replay, judge; then, where asked, the search for goodput, in which every rate is one more
replay with prompts of its own. Prints nothing.
"""

from __future__ import annotations

import secrets
import time
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from advisor.logs.trace import Trace
from advisor.simulation.slo import Slo
from advisor.validation import endpoint as endpoints
from advisor.validation import forms, loop, refuse
from advisor.validation.classes import slos
from advisor.validation.faults import Strike
from advisor.validation.journal import Journal, Part, read_journal
from advisor.validation.options import Cost, Options, Progress, Silent
from advisor.validation.record import OPEN, Record
from advisor.validation.result import Result
from advisor.validation.run import Site, Traffic, result_of, run_once
from advisor.validation.scale import scale_window
from advisor.validation.window import DEFAULT_WINDOW, WARM_SHARE, Window, fit_lengths, fit_rate, select
from engine.errors import InputError


def validate(
    trace: Trace,
    *,
    url: str,
    slo: Slo,
    window: str = DEFAULT_WINDOW,
    options: Options | None = None,
    progress: Progress | None = None,
    strike: Strike | None = None,
) -> Result:
    """Replay `window` of `trace` at `url` and judge it against `slo`, with the fault of `strike` in its middle.

    Ctrl-C while it runs gives a Result of what came back so far, `end` "interrupted". Raises InputError and
    MachineError before anything is sent.
    """
    options, progress = options or Options(), progress or Silent()
    return loop.run(_validate(trace, url, slo, window, options, progress, strike))


async def _validate(
    trace: Trace,
    url: str,
    slo: Slo,
    spec: str,
    options: Options,
    progress: Progress,
    strike: Strike | None,
) -> Result:
    site = await reach(url, options)
    traffic = choose(trace, spec, site, options)
    progress.cost(cost_of(traffic, site, options))
    with journal_of(options, fresh=not options.resume) as journal:
        ran = await run_once(site, traffic, slo, options, progress, journal, beside=strike)
    result = result_of(site, ran, slo, options)
    if strike is None:
        return result
    scale, own = site.endpoint.time_scale, slos(options.classes, slo)
    cost = strike.report(ran.undilated(), slo, start_ns=ran.start_ns, time_scale=scale, targets=own)
    return result.model_copy(update={"fault": cost})


async def reach(url: str, options: Options, *, search: bool = False) -> Site:
    """The endpoint at `url`, and the form in which it takes requests. MachineError: it may not be used."""
    refuse.remote(url, allowed=options.allow_remote, key=options.api_key is not None)
    if search:
        refuse.hosted(url)
    endpoint = await endpoints.inspect(url, api_key=options.api_key, model=options.model)
    refuse.busy(endpoint, shared=options.shared)
    form = await forms.agree(endpoint, api_key=options.api_key, tokenizer=options.tokenizer)
    return Site(endpoint, form)


def choose(trace: Trace, spec: str, site: Site, options: Options) -> Traffic:
    """What a validation sends: the window, or what an interrupted one left of it. Raises as `sent`."""
    seed = secrets.randbits(32) if options.seed is None else options.seed
    window = sent(trace, spec, site.endpoint.max_len, options)
    traffic = Traffic(window, seed, window.digest(), factor=options.rate)
    return _rest(traffic, options) if options.resume else traffic


def sent(trace: Trace, spec: str, max_len: int | None, options: Options) -> Window:
    """The window as it is sent to a model of `max_len` tokens: by the same options always the same.

    Raises MachineError where it cannot be sent and `fit` forbids to scale it.
    """
    window = select(trace, spec, warm_up_s=_warm_up_s(trace, spec, options), seed=options.seed or 0)
    return scale_window(_fit(window, max_len, options), options.rate, options.scale, options.seed or 0)


def _warm_up_s(trace: Trace, spec: str, options: Options) -> float:
    if options.cache == "cold":
        return 0.0
    if options.warm_up_s is not None:
        return options.warm_up_s
    return WARM_SHARE * select(trace, spec, seed=options.seed or 0).length_s


def _fit(window: Window, max_len: int | None, options: Options) -> Window:
    """The window as it can be sent. Raises MachineError where it cannot and `fit` forbids to scale it."""
    if max_len is not None:
        if "lengths" in options.fit:
            window = fit_lengths(window, max_len)
        refuse.over_context(window, max_len)
    load = options.load(window.only_judged())
    if load is None:
        return window
    if "rate" in options.fit:
        return fit_rate(window, load.utilisation, load.limit)
    refuse.over_load(load)
    return window


def _rest(traffic: Traffic, options: Options) -> Traffic:
    """What is left of the journal's run: from its first request without an outcome on, behind a warm-up.

    What had ended later is sent again: the load that it met then is not there now. Prompts have new content,
    so that what was sent already is in no cache.
    """
    window = traffic.window
    part = _interrupted(traffic, options)
    kept = [record for record in part.records if record.status not in OPEN]
    ended = {record.key for record in kept}
    left = [place for place in np.flatnonzero(window.judged).tolist() if window.key(place) not in ended]
    if not left:
        raise InputError("the run in the journal came to its end", hint="advise report")
    from_s = float(window.due_s[left[0]])
    warm_s = options.warm_up_s if options.warm_up_s is not None else WARM_SHARE * window.length_s
    rest = window.take(np.flatnonzero(window.due_s >= from_s - warm_s))
    return replace(
        traffic,
        window=replace(rest, judged_from_s=from_s),
        seed=traffic.seed if traffic.seed != part.header.seed else (traffic.seed + 1) % 2**32,
        kept=tuple(record for record in _by_arrival(kept) if record.undilated().t_sched < from_s),
    )


def _interrupted(traffic: Traffic, options: Options) -> Part:
    """The journal's last run. Raises InputError where there is none, or it is of other traffic."""
    parts = read_journal(options.journal) if options.journal is not None else ()
    if not parts:
        raise InputError("there is no run to resume", where=str(options.journal), hint="advise validate")
    part = parts[-1]
    if part.header.traffic_digest != traffic.digest or part.header.turns != options.turns:
        raise InputError(
            "the interrupted run is of other traffic",
            where=str(options.journal),
            why=f"{part.header.window}, {part.header.factor:g} times the rate, {part.header.turns} turns",
            hint="advise validate   (without --resume; the same flags as then continue it)",
        )
    return part


def _by_arrival(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: (record.t_sched, record.row))


def journal_of(options: Options, *, fresh: bool) -> Journal | nullcontext[None]:
    """The journal that the options name."""
    return nullcontext() if options.journal is None else Journal(options.journal, fresh=fresh)


def cost_of(traffic: Traffic, site: Site, options: Options, *, most_runs: int = 1) -> Cost:
    """What one replay of `traffic` costs. Raises MachineError where it is beyond the limits of the options."""
    window, endpoint = traffic.window, site.endpoint
    duration_s = float(window.due_s[-1] - window.due_s[0]) * endpoint.time_scale
    judged = window.judged
    prompt_tokens, output_tokens = int(window.trace.prompt_tokens.sum()), int(window.trace.output_tokens.sum())
    usd = refuse.price(endpoint, prompt_tokens, output_tokens, duration_s, options.usd_per_hour)
    cost = Cost(
        url=endpoint.url,
        model=endpoint.model,
        requests=int(np.count_nonzero(judged)),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        duration_s=duration_s,
        end_unix_s=time.time() + duration_s,
        scaled=window.scaled,
        left_out=window.left_out,
        emulates=endpoint.emulates,
        time_scale=endpoint.time_scale,
        warm_up_requests=int(np.count_nonzero(~judged)),
        fell_back=site.form.fell_back,
        usd=usd,
        most_runs=most_runs,
    )
    refuse.over_limits(cost, options.limits, np.sort(window.due_s) * endpoint.time_scale)
    return cost
