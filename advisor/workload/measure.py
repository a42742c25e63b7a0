"""`measure`: a Trace of one model in, a Workload out. Every null of the Workload gets its reason here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.logs.trace import Trace
from advisor.workload.arrivals import measure_arrivals
from advisor.workload.classes import find_classes
from advisor.workload.lengths import distribution, measure_lengths
from advisor.workload.model import Workload
from advisor.workload.sharing import measure_sharing
from advisor.workload.unknown import explain_nulls
from engine.errors import InputError


def measure(trace: Trace, *, seed: int = 0, cache_tokens: Sequence[int] = ()) -> Workload:
    """Measure a Trace of one model.

    `seed` places stamps within the clock tick, samples very large logs and starts the clustering: the same
    trace and seed give the same Workload. `cache_tokens` are further cache sizes for the capacity curve.
    Raises InputError on a trace without requests or of several models.
    """
    if len(trace) == 0:
        raise InputError("the log has no requests to measure", hint="drop --where, --since and --until")
    stamps = trace.arrival_s[np.isfinite(trace.arrival_s)]
    sharing = measure_sharing(trace, seed, cache_tokens)
    workload = Workload(
        model=_only_model(trace),
        requests=len(trace),
        span_s=float(stamps.max() - stamps.min()) if len(stamps) else None,
        lengths=measure_lengths(trace),
        arrivals=measure_arrivals(trace.arrival_s, np.random.default_rng(seed)),
        sharing=sharing.sharing,
        uncached_prompt=None if sharing.uncached_tokens is None else distribution(sharing.uncached_tokens),
        classes=find_classes(trace, np.random.default_rng(seed)),
        unknown=(),
    )
    return workload.model_copy(update={"unknown": explain_nulls(workload, trace)})


def _only_model(trace: Trace) -> str | None:
    """The model's name; None where the log does not say."""
    if trace.model is None:
        return None
    codes = np.unique(trace.model.codes)
    names = [trace.model.names[code] for code in codes if code >= 0]
    if len(names) > 1:
        raise InputError(
            f"the log holds {len(names)} models, and a workload is of one",
            hint=f"add --where model={names[0]}",
        )
    return names[0] if names else None
