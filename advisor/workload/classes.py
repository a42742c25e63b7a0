"""Length classes: groups of requests with similar prompt and output lengths.

A Gaussian mixture on log lengths, with as many classes as give the lowest Bayesian information criterion.
Deterministic by the seed; large logs are fitted on a sample and then all requests are assigned.
"""

from __future__ import annotations

import numpy as np

from advisor.logs.trace import FloatColumn, IntColumn, Trace
from advisor.workload.mixture import fit_mixture
from advisor.workload.model import LengthClass

MAX_CLASSES = 5
FIT_ROWS = 4_000
ROWS_PER_CLASS = 20  # below that a class says nothing (ours)
NARROWEST = 0.1  # standard deviation in log lengths: lengths 10 % apart are alike (ours)


def find_classes(trace: Trace, rng: np.random.Generator) -> tuple[LengthClass, ...]:
    """Classes of the requests whose two lengths are known, largest first; empty where none are."""
    rows = np.flatnonzero((trace.prompt_tokens >= 0) & (trace.output_tokens >= 0))
    if len(rows) == 0:
        return ()
    prompt, output = trace.prompt_tokens[rows], trace.output_tokens[rows]
    label = class_of(prompt, output, rng)
    return tuple(_describe(prompt, output, label == c) for c in range(int(label.max()) + 1))


def class_of(prompt: IntColumn, output: IntColumn, rng: np.random.Generator) -> IntColumn:
    """The class of every request by its lengths, tokens, 0 for the largest class. [requests]"""
    label = _assign(np.log1p(np.stack((prompt, output), axis=1)), rng)
    order = np.argsort(-np.bincount(label), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[label]


def _assign(points: FloatColumn, rng: np.random.Generator) -> IntColumn:
    """A class for every point. [requests, 2] -> [requests]"""
    sample = points if len(points) <= FIT_ROWS else points[rng.choice(len(points), FIT_ROWS, replace=False)]
    most = min(MAX_CLASSES, len(sample) // ROWS_PER_CLASS, len(np.unique(sample, axis=0)))
    if most < 2:
        return np.zeros(len(points), dtype=np.int64)
    fitted = [fit_mixture(sample, k, NARROWEST**2, rng) for k in range(1, most + 1)]
    return min(fitted, key=lambda mixture: mixture.bic(sample)).predict(points)


def _describe(prompt: IntColumn, output: IntColumn, inside: IntColumn) -> LengthClass:
    prompt_p50, prompt_p90 = np.percentile(prompt[inside], (50, 90))
    output_p50, output_p90 = np.percentile(output[inside], (50, 90))
    return LengthClass(
        share=float(inside.mean()),
        prompt_token_share=float(prompt[inside].sum() / max(1, prompt.sum())),
        output_token_share=float(output[inside].sum() / max(1, output.sum())),
        prompt_p50=float(prompt_p50),
        prompt_p90=float(prompt_p90),
        output_p50=float(output_p50),
        output_p90=float(output_p90),
    )
