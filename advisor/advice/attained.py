"""Attainment as the log has it: the share of requests whose logged latencies keep the targets.

What another engine gave, not what a plan promises. Requests without the latencies that a target is about are
not judged; failed ones that the reader left out are not here.
"""

from __future__ import annotations

import numpy as np

from advisor.logs.trace import BoolColumn, Trace
from advisor.simulation.slo import Slo
from advisor.workload.drift import HOUR_S

FEWEST_JUDGED = 100  # requests in an hour; fewer make its attainment a guess (ours)


def hourly_attainment(slo: Slo, trace: Trace) -> tuple[float | None, ...]:
    """Of every full hour from the first arrival; None where too few requests can be judged."""
    judged, kept = kept_targets(slo, trace)
    judged = judged & np.isfinite(trace.arrival_s)
    if not judged.any():
        return ()
    since_s = trace.arrival_s - np.nanmin(trace.arrival_s)
    hours = int(np.nanmax(since_s) // HOUR_S)
    hour = (since_s[judged] // HOUR_S).astype(np.int64)
    counts = np.bincount(hour, minlength=hours)[:hours]
    good = np.bincount(hour, weights=kept[judged], minlength=hours)[:hours]
    return tuple(float(good[h] / counts[h]) if counts[h] >= FEWEST_JUDGED else None for h in range(hours))


def kept_targets(slo: Slo, now: Trace) -> tuple[BoolColumn, BoolColumn]:
    """Which requests can be judged by the latency targets, and which kept them all; failed ones did not.

    The log has no gaps between tokens: a TBT target is taken as one on their mean.
    """
    judged = np.full(len(now), slo.ttft_s is not None or slo.gap_s is not None)
    kept = np.ones(len(now), dtype=np.bool_)
    unknown = np.full(len(now), np.nan)
    ttft_s = unknown if now.ttft_s is None else now.ttft_s
    e2e_s = unknown if now.e2e_s is None else now.e2e_s
    if slo.ttft_s is not None:
        judged &= np.isfinite(ttft_s)
        kept &= ttft_s <= slo.ttft_s
    if slo.gap_s is not None:
        gaps = now.output_tokens - 1
        tpot_s = (e2e_s - ttft_s) / np.maximum(1, gaps)
        judged &= (np.isfinite(tpot_s) & (now.output_tokens >= 0)) | (gaps == 0)
        kept &= (gaps <= 0) | (tpot_s <= slo.gap_s)
    if now.status is not None and "ok" in now.status.names:
        ok = now.status.names.index("ok")
        kept &= (now.status.codes == ok) | (now.status.codes < 0)
    return judged, kept
