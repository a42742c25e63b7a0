"""Prompt and output lengths: distributions, and the caps at which prompts pile up.

Works on one column at a time and never looks at content.
"""

from __future__ import annotations

import numpy as np

from advisor.logs.trace import FloatColumn, IntColumn, Totals, Trace
from advisor.workload.model import Cap, Distribution, Lengths

CAP_WIDTH = 2  # tokens: truncation leaves prompts this close below a limit
CAP_SHARE = 0.01  # of prompts
CAP_PROMPTS = 10  # fewer are no pile (ours)


def measure_lengths(trace: Trace) -> Lengths:
    """Distributions of prompt and output tokens, and the caps. Requests of unknown length are left out.

    Means only where the log has lengths in sum and not by request.
    """
    prompts, outputs = known(trace.prompt_tokens), known(trace.output_tokens)
    totals = trace.totals or Totals("")
    return Lengths(
        prompt=distribution(prompts) if len(prompts) else mean_of(totals.prompt_tokens, totals.requests),
        output=distribution(outputs) if len(outputs) else mean_of(totals.output_tokens, totals.requests),
        caps=find_caps(prompts),
    )


def mean_of(total: int | None, requests: int | None) -> Distribution | None:
    """All that a sum over requests says of their distribution."""
    return Distribution(mean=total / requests) if total is not None and requests else None


def known(column: IntColumn) -> IntColumn:
    """The entries of an integer column that the log gives (not -1)."""
    return column[column >= 0]


def distribution(values: IntColumn | FloatColumn) -> Distribution:
    """Mean, linear-interpolated percentiles and maximum of a column with at least one entry."""
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return Distribution(
        mean=float(values.mean()), p50=float(p50), p90=float(p90), p99=float(p99), max=float(values.max())
    )


def find_caps(prompts: IntColumn) -> tuple[Cap, ...]:
    """Lengths at which prompts pile up, most crowded first.

    `at` is an observed length such that the prompts of `at - CAP_WIDTH` to `at` tokens are at least `CAP_SHARE`
    of all and `CAP_PROMPTS`; windows do not overlap. The case it is made for: 322 of 8,819 Azure code prompts
    have 7,435 to 7,437.
    """
    values, counts = np.unique(prompts, return_counts=True)
    below = np.concatenate(([0], np.cumsum(counts)))
    inside = below[1:] - below[np.searchsorted(values, values - CAP_WIDTH)]
    caps: list[Cap] = []
    for index in np.argsort(-inside, kind="stable"):
        share = float(inside[index]) / len(prompts)
        if share < CAP_SHARE or inside[index] < CAP_PROMPTS:
            break
        at = int(values[index])
        if all(abs(at - cap.at) > CAP_WIDTH for cap in caps):
            caps.append(Cap(at=at, share=share))
    return tuple(caps)
