"""What the records say: latencies, misses by kind, attainment. Pure functions of the records.

Definitions: docs/validation.md. Attainment counts every scheduled request; one that failed or was never sent is
a miss like any other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from pydantic import Field

from advisor.simulation.slo import Slo
from advisor.validation.record import Record
from advisor.workload.model import Report


class Latency(Report):
    """A distribution of seconds; percentiles are linear-interpolated."""

    n: int = Field(description="samples")
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Score(Report):
    """How many of the scheduled requests kept every target."""

    requests: int = Field(description="scheduled requests")
    good: int
    attainment: float = Field(description="good / scheduled")
    good_rate_rps: float | None = Field(description="good requests a second of the window; null for no length")
    misses: dict[str, int] = Field(
        description="requests that are not good, by kind: the targets missed (`ttft`, `tpot`, `tbt`, joined "
        "by +), or the status of a request that did not complete"
    )


class Latencies(Report):
    """Every latency of a run; null where no request has it."""

    ttft: Latency | None = Field(description="first token after the request was due")
    ttft_svc: Latency | None = Field(description="first token after the send: what other tools call TTFT")
    tpot: Latency | None = Field(description="mean time per token after the first, requests of >= 2 tokens")
    tbt: Latency | None = Field(description="gaps between chunks, pooled over requests")
    max_gap: Latency | None = Field(description="largest gap of each request")
    e2e: Latency | None = Field(description="last token after the request was due")
    send_lag: Latency | None = Field(description="send after the request was due: the client's own lateness")
    dependency_delay: Latency | None = Field(
        None, description="with causal turns: how long a request waited for the turn before, of those that did"
    )


def ttft_s(record: Record) -> float | None:
    """Time to first token from when the request was due, seconds."""
    return _after(record.t_first, record.t_due)


def ttft_svc_s(record: Record) -> float | None:
    """Time to first token from the send, seconds."""
    return _after(record.t_first, record.t_send)


def e2e_s(record: Record) -> float | None:
    """Last token after the request was due, seconds."""
    return _after(record.t_last, record.t_due)


def send_lag_s(record: Record) -> float | None:
    """The send after the request was due, seconds."""
    return _after(record.t_send, record.t_due)


def tpot_s(record: Record) -> float | None:
    """Mean time per output token after the first, seconds; None under two tokens."""
    if record.t_first is None or record.t_last is None or record.n_out is None or record.n_out < 2:
        return None
    return (record.t_last - record.t_first) / (record.n_out - 1)


def gaps_s(record: Record) -> list[float]:
    """Gaps between successive chunks that hold tokens, seconds."""
    return [later - earlier for earlier, later in pairwise(record.t_chunk)]


def miss(record: Record, slo: Slo) -> str | None:
    """Why a request is not good: a status, or the missed targets joined by `+`; None where it is good."""
    if record.status != "ok":
        return record.status
    first = ttft_s(record)
    measured = (
        ("ttft", math.inf if first is None else first, slo.ttft_s),
        ("tpot", tpot_s(record) or 0.0, slo.tpot_s),  # one token has no TPOT and keeps any target
        ("tbt", max(gaps_s(record), default=0.0), slo.tbt_s),
    )
    missed = [name for name, value, target in measured if target is not None and value > target]
    return "+".join(missed) or None


def score(
    records: Sequence[Record], slo: Slo, window_s: float, of_class: Mapping[str, Slo] | None = None
) -> Score:
    """Joint attainment over all scheduled requests; one of a class in `of_class` by the targets there."""
    own = of_class or {}
    kinds = [miss(record, own.get(record.slo_class or "", slo)) for record in records]
    good = kinds.count(None)
    misses = Counter(kind for kind in kinds if kind is not None)
    return Score(
        requests=len(records),
        good=good,
        attainment=good / len(records),
        good_rate_rps=good / window_s if window_s > 0 else None,
        misses=dict(sorted(misses.items())),
    )


def latencies(records: Sequence[Record]) -> Latencies:
    """All latencies; of requests that completed, except the send lag, which every sent request has."""
    done = [record for record in records if record.status == "ok"]
    gaps = [gaps_s(record) for record in done]
    return Latencies(
        ttft=_latency(ttft_s(record) for record in done),
        ttft_svc=_latency(ttft_svc_s(record) for record in done),
        tpot=_latency(tpot_s(record) for record in done),
        tbt=_latency(gap for of_one in gaps for gap in of_one),
        max_gap=_latency(max(of_one, default=None) for of_one in gaps),
        e2e=_latency(e2e_s(record) for record in done),
        send_lag=_latency(send_lag_s(record) for record in records),
        dependency_delay=_latency(record.held_s or None for record in records),
    )


def tokens_per_chunk(records: Sequence[Record]) -> float | None:
    """Mean tokens in a chunk; None without chunks. TBT compares with other streams only near 1."""
    done = [record for record in records if record.status == "ok" and record.n_out is not None]
    chunks = sum(len(record.t_chunk) for record in done)
    return sum(record.n_out or 0 for record in done) / chunks if chunks else None


def _after(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier


def _latency(values: Iterable[float | None]) -> Latency | None:
    samples = np.array([value for value in values if value is not None])
    if samples.size == 0:
        return None
    p50, p90, p99 = (float(value) for value in np.percentile(samples, [50, 90, 99]))
    return Latency(
        n=samples.size, mean=float(samples.mean()), p50=p50, p90=p90, p99=p99, max=float(samples.max())
    )
