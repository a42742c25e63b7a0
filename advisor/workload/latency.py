"""Latencies that the log has: what the engine behind it gave. Never a promise, never used to plan."""

from __future__ import annotations

import numpy as np

from advisor.logs.trace import BoolColumn, FloatColumn, Trace
from advisor.workload.lengths import distribution
from advisor.workload.model import Distribution, Latency


def measure_latency(trace: Trace) -> Latency:
    """TTFT, TPOT and end-to-end time, seconds, of the requests that the log does not say failed.

    TPOT is (e2e - ttft) / (output - 1) of each request with at least two output tokens (vLLM's definition).
    """
    unknown = np.full(len(trace), np.nan)
    ttft_s = unknown if trace.ttft_s is None else trace.ttft_s
    e2e_s = unknown if trace.e2e_s is None else trace.e2e_s
    fine = _not_failed(trace)
    decodes = (trace.output_tokens >= 2) & (e2e_s >= ttft_s)
    tpot_s = np.full(len(trace), np.nan)
    tpot_s[decodes] = (e2e_s - ttft_s)[decodes] / (trace.output_tokens[decodes] - 1)
    return Latency(ttft_s=_known(ttft_s[fine]), tpot_s=_known(tpot_s[fine]), e2e_s=_known(e2e_s[fine]))


def _not_failed(trace: Trace) -> BoolColumn:
    """A refusal comes fast: counted, it would make the service look faster the more it fails."""
    if trace.status is None:
        return np.ones(len(trace), dtype=np.bool_)
    fine = np.array([*(name == "ok" for name in trace.status.names), True])  # the last: code -1, unknown
    return fine[trace.status.codes]


def _known(seconds: FloatColumn) -> Distribution | None:
    known = seconds[np.isfinite(seconds)]
    return distribution(known) if len(known) else None
