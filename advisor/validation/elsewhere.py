"""What other load generators would have reported from the same raw records, by their own formulas.

vLLM's `bench serve`, AIPerf and GuideLLM use words like TTFT, TPOT and ITL for quantities that differ: where
the clock starts and stops, what is divided by what, which requests are in the sum. The formulas are those of
the versions named in `VLLM`, `AIPERF` and `GUIDELLM`; `make test-tools` runs the tools' own code beside them.

All three clocks start at the send, none at the scheduled arrival; vLLM's and AIPerf's before a connection is
opened, GuideLLM's after. All three count an answer of another length than asked for as complete. A request that
the run did not wait for is in none of their sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import Field

from advisor.simulation.slo import Slo
from advisor.validation.metrics import tpot_s
from advisor.validation.record import COMPLETE, OPEN, Record
from advisor.workload.model import Report

VLLM, AIPERF, GUIDELLM = "vLLM bench serve 0.33.0", "AIPerf 0.13.0", "GuideLLM 0.8.1"
Values = Iterable[float | None]


class Elsewhere(Report):
    """One tool's figures of this run; seconds, null where it has none or no request gives one."""

    tool: str = Field(description="the tool and the version whose formulas these are")
    requests: int = Field(description="requests that it counts")
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None = Field(description="what the tool calls TPOT")
    itl_p50_s: float | None = Field(description="what the tool calls ITL")
    itl_p99_s: float | None
    good_share: float | None = Field(description="the tool's goodput over its own denominator")
    good_rate_rps: float | None = Field(None, description="what the tool calls goodput, requests/s")
    remark: str = Field(description="how its definitions differ from ours, one sentence")


def elsewhere(records: Sequence[Record], slo: Slo) -> tuple[Elsewhere, ...]:
    """The three tools' figures of the records of one run, on the clock of what was measured (`undilated`).

    `slo` are the targets that each would have been given; none of them knows a TBT target or targets by class.
    """
    done = [record for record in records if record.status in COMPLETE and record.t_chunk]
    failed = sum(record.status not in OPEN for record in records) - len(done)
    lasted_s = max((record.t_done or 0.0 for record in records), default=0.0)
    return _vllm(done, lasted_s, slo), _aiperf(done, failed, slo), _guidellm(done, failed, slo)


def _vllm(done: Sequence[Record], lasted_s: float, slo: Slo) -> Elsewhere:
    """`calculate_metrics` of vllm/benchmarks/serve.py, times as `endpoint_request_func.py` takes them."""
    ttft = [_vllm_stamps(record)[0] - _before_connecting(record) for record in done]
    tpot = [_vllm_tpot(record) for record in done]
    gaps = [gap for record in done for gap in np.diff(_vllm_stamps(record)).tolist()]
    good = _count_good(zip(ttft, [one or 0.0 for one in tpot], strict=True), slo)
    return Elsewhere(
        tool=VLLM,
        requests=len(done),
        ttft_p50_s=_linear(ttft, 50),
        ttft_p99_s=_linear(ttft, 99),
        tpot_p50_s=_linear(tpot, 50),
        itl_p50_s=_linear(gaps, 50),
        itl_p99_s=_linear(gaps, 99),
        good_share=_share(good, len(done)),
        good_rate_rps=_share(good, lasted_s),
        remark="TTFT from the send to the first chunk, with a token or not, and TPOT from there; failed "
        "requests are in no figure, and its goodput is good requests over the run's seconds",
    )


def _aiperf(done: Sequence[Record], failed: int, slo: Slo) -> Elsewhere:
    """aiperf/metrics/types: TTFT, inter-token latency, good request count and fraction, goodput.

    With a limit on its ITL a request of one token is not good: it has none.
    """
    ttft = [record.t_chunk[0] - _before_connecting(record) for record in done]
    itl = [tpot_s(record) for record in done]
    good = _count_good(zip(ttft, [np.inf if one is None else one for one in itl], strict=True), slo)
    begun = min((_before_connecting(record) for record in done), default=0.0)
    ended = max((record.t_chunk[-1] for record in done), default=0.0)
    return Elsewhere(
        tool=AIPERF,
        requests=len(done),
        ttft_p50_s=_linear(ttft, 50),
        ttft_p99_s=_linear(ttft, 99),
        tpot_p50_s=None,
        itl_p50_s=_linear(itl, 50),
        itl_p99_s=_linear(itl, 99),
        good_share=_share(good, len(done) + failed),
        good_rate_rps=_share(good, ended - begun),
        remark="TTFT from the send; its ITL is one mean a request, which is our TPOT; failed requests count in "
        "the share of good ones and in no latency",
    )


def _guidellm(done: Sequence[Record], failed: int, slo: Slo) -> Elsewhere:
    """guidellm/schemas/base/request_stats.py, and the weights of benchmark/schemas/metrics.py.

    Its percentiles are values that occurred, none between two; TPOT and ITL count each request by its tokens.
    A request without one of the limited values, as one of a single token, is in neither part of its share.
    """
    ttft = [_after(record.t_chunk[0], record.t_send) for record in done]
    tokens = [record.n_out or 0 for record in done]
    per_token = [_guidellm_tpot(record) for record in done]
    itl = [tpot_s(record) for record in done]
    after_first = [max(count - 1, 0) for count in tokens]
    judged = [pair for pair in zip(ttft, itl, strict=True) if slo.tpot_s is None or pair[1] is not None]
    good = _count_good(judged, slo)
    return Elsewhere(
        tool=GUIDELLM,
        requests=len(done),
        ttft_p50_s=_step(ttft, [1] * len(done), 50),
        ttft_p99_s=_step(ttft, [1] * len(done), 99),
        tpot_p50_s=_step(per_token, tokens, 50),
        itl_p50_s=_step(itl, after_first, 50),
        itl_p99_s=_step(itl, after_first, 99),
        good_share=_share(good, len(judged) + failed),
        remark="TTFT from the send; its TPOT is the whole request over its tokens, TTFT included; its ITL is "
        "our TPOT, and both count a request by its tokens",
    )


def _vllm_stamps(record: Record) -> tuple[float, ...]:
    """Chunks with a choice: those with tokens, and the first, which may hold none, as a chat's role does."""
    opening = record.t_any
    if opening is None or opening >= record.t_chunk[0]:
        return record.t_chunk
    return (opening, *record.t_chunk)


def _vllm_tpot(record: Record) -> float | None:
    """From the first chunk to the last, over the tokens but one; None under two tokens."""
    if record.n_out is None or record.n_out < 2:
        return None
    stamps = _vllm_stamps(record)
    return (stamps[-1] - stamps[0]) / (record.n_out - 1)


def _guidellm_tpot(record: Record) -> float | None:
    """The whole request over its tokens, the wait for the first included."""
    whole = _after(record.t_chunk[-1], record.t_send)
    return None if whole is None or not record.n_out else whole / record.n_out


def _before_connecting(record: Record) -> float:
    """When a client that opens the connection on its own clock began."""
    return (0.0 if record.t_send is None else record.t_send) - record.t_conn


def _after(later: float, earlier: float | None) -> float | None:
    return None if earlier is None else later - earlier


def _count_good(pairs: Iterable[tuple[float | None, float | None]], slo: Slo) -> int | None:
    """Pairs of TTFT and time per token within the limits; None where there is no limit."""
    if slo.ttft_s is None and slo.tpot_s is None:
        return None
    limits = [np.inf if limit is None else limit for limit in (slo.ttft_s, slo.tpot_s)]
    return sum(
        all(value is None or value <= limit for value, limit in zip(pair, limits, strict=True))
        for pair in pairs
    )


def _share(good: int | None, of: float) -> float | None:
    return None if good is None or of <= 0 else good / of


def _linear(values: Values, q: float) -> float | None:
    """The percentile between the two nearest values."""
    known = [value for value in values if value is not None]
    return float(np.percentile(known, q)) if known else None


def _step(values: Sequence[float | None], weights: Sequence[int], q: float) -> float | None:
    """The smallest value up to which at least `q` per cent of the weight lies."""
    pairs = sorted(
        (value, weight) for value, weight in zip(values, weights, strict=True) if value is not None and weight
    )
    if not pairs:
        return None
    ordered: npt.NDArray[np.float64] = np.array(pairs, dtype=np.float64)
    share = np.cumsum(ordered[:, 1] / ordered[:, 1].sum())
    return float(ordered[np.searchsorted(share, q / 100), 0])
