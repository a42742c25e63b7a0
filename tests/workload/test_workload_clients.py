"""Clients against ServeGen's published windows, processes of known burstiness, and small cases by hand."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.workload_traces import make_labels, make_trace

from advisor.workload.clients import burstiness, concentration, measure_clients, window_variation
from advisor.workload.measure import measure


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_servegen(shared: Path) -> None:
    # traces/README.md: m-large, 162 clients, top 1 / 10 0.160 / 0.632, median CV 1.17, 0.67, 0.85;
    # expected_stats.json has more digits.
    expected = json.loads((shared / "traces/expected_stats.json").read_text())[
        "servegen/language_m-large_clients"
    ]
    with gzip.open(shared / "traces/servegen/language_m-large_clients.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    client = np.array([int(row["client"]) for row in rows])
    rate, cv = (np.array([float(row[name]) for row in rows]) for name in ("rate_rps", "cv"))
    by_client = np.bincount(client, weights=rate)
    assert len(by_client) == expected["clients"] == 162
    assert concentration(by_client, 1, rate.sum()) == pytest.approx(expected["top1_share"], abs=5e-5)
    assert concentration(by_client, 10, rate.sum()) == pytest.approx(expected["top10_share"], abs=5e-5)
    active = rate > 0
    found = burstiness(cv[active], rate[active])
    assert found.cv_p50 == pytest.approx(expected["active_client_window_cv_p50"], abs=5e-5)
    assert found.over_1_share == pytest.approx(expected["fraction_client_windows_cv_gt_1"], abs=5e-5)
    assert found.over_1_rate_share == pytest.approx(expected["rate_weighted_fraction_cv_gt_1"], abs=5e-5)
    assert float(rate[active].min() * 600) == pytest.approx(10)  # hence 10 requests make a window active


def test_processes_of_known_burstiness() -> None:
    # Gaps of a gamma process of shape k have CV 1 / sqrt(k): 0.5, 1 and 2. About 600 gaps a window.
    for code, shape in enumerate((4.0, 1.0, 0.25)):
        gaps = np.random.default_rng(code).gamma(shape, 1 / shape, 60_000)
        cv, requests = window_variation(np.zeros(60_000, dtype=np.int64), np.cumsum(gaps))
        assert np.median(cv) == pytest.approx(1 / np.sqrt(shape), rel=0.04)
        assert np.median(requests) == pytest.approx(600, rel=0.02)


def test_gaps_are_within_one_client_and_one_window() -> None:
    # Client 0 every 1 and 3 s in turn: CV 0.5. Client 1 between them every 2 s: CV 0. The sum is neither.
    steady = np.arange(0, 600, 2.0)
    pair = np.concatenate((np.arange(0, 600, 4.0), np.arange(1, 600, 4.0)))
    client = np.repeat([0, 1], [len(pair), len(steady)])
    cv, requests = window_variation(client, np.concatenate((pair, steady)))
    assert cv[0] == pytest.approx(0.5, abs=0.001)  # 150 gaps of 1 s, 149 of 3 s
    assert cv[1] == pytest.approx(0.0, abs=1e-9)
    assert requests.tolist() == [300, 300]
    # The same arrivals over a window's edge: each part is judged by itself.
    assert len(window_variation(client, np.concatenate((pair, steady)) + 300)[0]) == 4


def test_windows_with_few_requests_are_not_active() -> None:
    for requests, windows in ((9, 0), (10, 1)):
        trace = make_trace([1] * requests, client=make_labels(["a"] * requests))
        found = measure_clients(trace, rng())
        assert found is not None
        assert found.burstiness.active_windows == windows
    quiet = measure(make_trace([1] * 9, client=make_labels(["a"] * 9)))
    (why,) = [entry.why for entry in quiet.unknown if entry.path == "clients.burstiness.cv_p50"]
    assert "10 requests within 10 minutes" in why


def test_a_coarse_clock_does_not_make_clients_bursty() -> None:
    # A Poisson process of 2 requests/s, CV 1, stamped every 3 s: raw gaps have a CV above 2.
    arrivals = np.floor(np.cumsum(rng().exponential(0.5, 6000)) / 3) * 3
    gaps = np.diff(arrivals)
    assert gaps.std() / gaps.mean() > 2
    found = measure_clients(make_trace([1] * 6000, arrivals=arrivals, client=make_labels(["a"] * 6000)), rng())
    assert found.burstiness.cv_p50 == pytest.approx(1.0, abs=0.05)


def test_shares_of_requests_and_tokens() -> None:
    # 12 requests: "big" has 6 small ones, "long" 2 large ones, 3 others one each, one names nobody.
    names = ["big"] * 6 + ["long"] * 2 + ["x", "y", "z", ""]
    trace = make_trace(
        [10] * 6 + [400] * 2 + [20] * 4, [0] * 6 + [60] * 2 + [-1] * 4, client=make_labels(names)
    )
    found = measure_clients(trace, rng())
    total = 60 + 920 + 80
    assert found.clients == 5
    assert found.request_share == pytest.approx(11 / 12)
    assert (found.top1_share, found.top10_share) == (0.5, pytest.approx(11 / 12))
    assert found.top1_token_share == pytest.approx(920 / total)
    assert found.top10_token_share == pytest.approx((total - 20) / total)
    first = found.top[0]
    assert (first.request_share, first.token_share) == (0.5, pytest.approx(60 / total))
    assert first.client == trace.client.codes[0]


def test_names_never_leave() -> None:
    names = [f"secret-{number % 4}" for number in range(40)]
    workload = measure(make_trace([1] * 40, client=make_labels(names)))
    assert workload.clients is not None
    assert "secret" not in workload.model_dump_json()
    assert "secret" not in repr(workload)


def test_what_a_log_does_not_hold_is_null() -> None:
    assert measure_clients(make_trace([1]), rng()) is None
    assert measure_clients(make_trace([1], client=make_labels([""])), rng()) is None
    untimed = make_trace([-1] * 3, arrivals=[np.nan] * 3, client=make_labels(["a"] * 3))
    workload = measure(untimed)
    assert workload.clients.burstiness is None
    assert workload.clients.top1_token_share is None
    why = {entry.path: entry.why for entry in workload.unknown}
    assert "times" in why["clients.burstiness"]
    assert "lengths" in why["clients.top1_token_share"]
