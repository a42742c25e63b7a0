"""The models of a log, each measured alone: enough to see which to plan for with `--where model=NAME`."""

from __future__ import annotations

import numpy as np

from advisor.logs.trace import Trace
from advisor.workload.lengths import known, mean_of
from advisor.workload.model import Report
from advisor.workload.runs import find_runs
from advisor.workload.sharing import content_known

MOST_MODELS = 20  # that are measured; the others are only counted


class ModelRows(Report):
    """One model seen in the log; what the log does not say, or what was not measured, is null."""

    name: str | None
    requests: int | None
    prompt_mean: float | None = None  # tokens
    output_mean: float | None = None
    hit_rate_tokens: float | None = None  # of its own requests, unlimited cache


def measure_models(trace: Trace) -> tuple[ModelRows, ...]:
    """The models, those with the most requests first; one without a name where the log names none.

    A log of one model is measured whole elsewhere, so here it is only named and counted.
    """
    if len(trace) == 0:
        totals = trace.totals
        return (ModelRows(name=totals.model, requests=totals.requests),) if totals else ()
    if trace.model is None:
        return (ModelRows(name=None, requests=len(trace)),)
    codes, counts = np.unique(trace.model.codes, return_counts=True)
    names = [trace.model.names[code] if code >= 0 else None for code in codes.tolist()]
    if len(codes) == 1:
        return (ModelRows(name=names[0], requests=len(trace)),)
    found = []
    for place, index in enumerate(np.argsort(-counts, kind="stable").tolist()):
        if place < MOST_MODELS:
            rows = np.flatnonzero(trace.model.codes == codes[index])
            found.append(_measured(names[index], trace.take(rows)))
        else:
            found.append(ModelRows(name=names[index], requests=int(counts[index])))
    return tuple(found)


def _measured(name: str | None, trace: Trace) -> ModelRows:
    prompts, outputs = known(trace.prompt_tokens), known(trace.output_tokens)
    prompt, output = mean_of(int(prompts.sum()), len(prompts)), mean_of(int(outputs.sum()), len(outputs))
    return ModelRows(
        name=name,
        requests=len(trace),
        prompt_mean=prompt and prompt.mean,
        output_mean=output and output.mean,
        hit_rate_tokens=_hit_rate(trace),
    )


def _hit_rate(trace: Trace) -> float | None:
    """Token hit rate of an unlimited cache over requests with known content, as in `sharing`."""
    total = int(trace.prompt_tokens[content_known(trace) & (trace.prompt_tokens > 0)].sum())
    if trace.blocks is None or total == 0:
        return None
    if len(trace.blocks.ids) == 0:
        return 0.0
    runs = find_runs(trace.blocks, trace.prompt_tokens)
    return float(runs.tokens[runs.seen].sum() / total)
