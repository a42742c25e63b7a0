"""`measure`: a Trace of one model in, a Workload out. Every null of the Workload gets its reason here."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from advisor.logs.trace import Trace
from advisor.workload.arrivals import measure_arrivals
from advisor.workload.classes import find_classes
from advisor.workload.clients import measure_clients
from advisor.workload.drift import hit_tokens, measure_drift, requests_of
from advisor.workload.latency import measure_latency
from advisor.workload.lengths import distribution, measure_lengths
from advisor.workload.model import PromptLayout, Sessions, Workload
from advisor.workload.runs import runs_of
from advisor.workload.sessions import find_turns, measure_sessions, split_hits
from advisor.workload.sharing import SharingMeasured, measure_sharing
from advisor.workload.unknown import explain_nulls
from engine.errors import InputError


def measure(
    trace: Trace,
    *,
    seed: int = 0,
    cache_tokens: Sequence[int] = (),
    layout: PromptLayout | None = None,
) -> Workload:
    """Measure a Trace of one model.

    `seed` places stamps within the clock tick, samples very large logs and starts the clustering: the same
    trace and seed give the same Workload. `cache_tokens` are further cache sizes for the capacity curve;
    `layout` was measured while the text was at hand, as a Trace has none.
    A trace without requests is measured as far as its totals go. Raises InputError where it has none either, or
    is of several models.
    """
    totals = trace.totals
    if len(trace) == 0 and totals is None:
        raise InputError("the log has no requests to measure", hint="drop --where, --since and --until")
    arrivals = measure_arrivals(trace.arrival_s, np.random.default_rng(seed), totals)
    with ThreadPoolExecutor(1) as beside:  # numpy lets both run at once
        classes = beside.submit(find_classes, trace, np.random.default_rng(seed))
        sharing, sessions = _from_runs(trace, seed, cache_tokens, fine_clock=arrivals.tick_s is None)
    hits = hit_tokens(trace, sharing.uncached_tokens)
    anywhere = None if layout is None else layout.any_position_share
    workload = Workload(
        model=_only_model(trace),
        requests=len(trace) or (totals.requests if totals else None),
        span_s=_span(trace),
        lengths=measure_lengths(trace),
        arrivals=arrivals,
        latency=measure_latency(trace),
        sharing=sharing.sharing.model_copy(update={"any_position_share": anywhere}),
        uncached_prompt=None if sharing.uncached_tokens is None else distribution(sharing.uncached_tokens),
        classes=classes.result(),
        sessions=sessions,
        clients=measure_clients(trace, np.random.default_rng(seed)),
        drift=measure_drift(requests_of(trace, hits), arrivals.tick_s),
        layout=layout,
        unknown=(),
    )
    return workload.model_copy(update={"unknown": explain_nulls(workload, trace)})


def _from_runs(
    trace: Trace, seed: int, cache_tokens: Sequence[int], *, fine_clock: bool
) -> tuple[SharingMeasured, Sessions | None]:
    """Sharing and sessions. Runs are found once, for both, and let go of here: they are large."""
    runs = runs_of(trace)
    measured = measure_sharing(trace, seed, cache_tokens, runs, fine_clock=fine_clock)
    turns = find_turns(trace, runs)
    sharing = split_hits(turns, measured.sharing, runs)
    return replace(measured, sharing=sharing), measure_sessions(turns, runs)


def _span(trace: Trace) -> float | None:
    """Last less first arrival; else the span that the log's totals are of."""
    stamps = trace.arrival_s[np.isfinite(trace.arrival_s)]
    if len(stamps):
        return float(stamps.max() - stamps.min())
    return trace.totals.span_s if trace.totals else None


def _only_model(trace: Trace) -> str | None:
    """The model's name; None where the log does not say."""
    if trace.model is None:
        return trace.totals.model if trace.totals else None
    codes = np.unique(trace.model.codes)
    names = [trace.model.names[code] for code in codes if code >= 0]
    if len(names) > 1:
        raise InputError(
            f"the log holds {len(names)} models, and a workload is of one",
            hint=f"add --where model={names[0]}",
        )
    return names[0] if names else None
