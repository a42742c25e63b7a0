"""Latencies as logged, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.workload_traces import make_labels, make_trace

from advisor.workload.latency import measure_latency
from advisor.workload.measure import measure


def test_tpot_is_the_time_after_the_first_token_over_the_tokens_after_it() -> None:
    nan = np.nan
    latency = measure_latency(
        make_trace(
            [10] * 5,
            [11, 101, 1, -1, 5],
            ttft_s=np.array([0.5, 1.0, 0.2, 0.3, nan]),
            e2e_s=np.array([1.5, 6.0, 0.2, 2.0, 3.0]),
        )
    )
    assert latency.tpot_s is not None
    # 1.0 s for 10 tokens, 5.0 s for 100; one token has no gap, and the last two do not say enough.
    assert (latency.tpot_s.mean, latency.tpot_s.max) == (pytest.approx(0.075), pytest.approx(0.1))
    assert latency.ttft_s is not None
    assert (latency.ttft_s.mean, latency.ttft_s.p50) == (pytest.approx(0.5), pytest.approx(0.4))
    assert latency.e2e_s is not None
    assert (latency.e2e_s.mean, latency.e2e_s.p50, latency.e2e_s.max) == (pytest.approx(2.54), 2.0, 6.0)


def test_a_first_token_after_the_end_is_damage() -> None:
    latency = measure_latency(make_trace([10], [11], ttft_s=np.array([2.0]), e2e_s=np.array([1.0])))
    assert latency.tpot_s is None


def test_refusals_do_not_make_a_service_fast() -> None:
    status = make_labels(["ok", "429", ""])
    latency = measure_latency(make_trace([10] * 3, e2e_s=np.array([4.0, 0.001, 6.0]), status=status))
    assert latency.e2e_s is not None
    assert latency.e2e_s.mean == 5.0


def test_each_null_says_how_to_get_it() -> None:
    workload = measure(make_trace([10, 10], [5, 5], ttft_s=np.array([0.1, 0.2])))
    ways = {entry.path: entry.how_to_get for entry in workload.unknown if entry.path.startswith("latency.")}
    assert set(ways) == {"latency.e2e_s", "latency.tpot_s"}
    assert "duration" in ways["latency.e2e_s"]
