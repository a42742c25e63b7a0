"""Runs in AIPerf's environment: its metrics of our raw records, as JSON.

Argument: a JSON file of `records` and the targets `ttft_s` and `tpot_s`. Each record is put into AIPerf's own
types, and its own metric classes make the figures of them.
"""

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
from aiperf.common.exceptions import NoMetricValue
from aiperf.common.models import (
    ParsedResponse,
    ParsedResponseRecord,
    RequestRecord,
    TextResponseData,
    TokenCounts,
)
from aiperf.metrics.metric_dicts import MetricRecordDict, MetricResultsDict, metric_result_from_array
from aiperf.metrics.types.good_request_count_metric import GoodRequestCountMetric
from aiperf.metrics.types.good_request_fraction_metric import GoodRequestFractionMetric
from aiperf.metrics.types.inter_token_latency_metric import InterTokenLatencyMetric
from aiperf.metrics.types.output_sequence_length_metric import OutputSequenceLengthMetric
from aiperf.metrics.types.request_latency_metric import RequestLatencyMetric
from aiperf.metrics.types.ttft_metric import TTFTMetric

DONE, OPEN = ("ok", "wrong_length"), ("unsent", "interrupted")
given = json.loads(Path(sys.argv[1]).read_text())
START_NS = 10**9
GoodRequestCountMetric.set_slos(
    {"time_to_first_token": given["ttft_s"] * 1e3, "inter_token_latency": given["tpot_s"] * 1e3}
)
metrics = [OutputSequenceLengthMetric(), TTFTMetric(), RequestLatencyMetric(), InterTokenLatencyMetric()]
good, rows = GoodRequestCountMetric(), []


def nanoseconds(seconds: float) -> int:
    """On a clock that never shows zero."""
    return START_NS + round(seconds * 1e9)


for record in given["records"]:
    if record["status"] not in DONE:
        continue
    begun = nanoseconds(record["t_send"] - record["t_conn"])
    parsed = ParsedResponseRecord(
        request=RequestRecord(
            start_perf_ns=begun, timestamp_ns=begun, end_perf_ns=nanoseconds(record["t_done"])
        ),
        responses=[ParsedResponse(nanoseconds(at), TextResponseData("x")) for at in record["t_chunk"]],
        token_counts=TokenCounts(input=record["n_in"], output=record["n_out"]),
    )
    row = MetricRecordDict()
    for metric in metrics:
        with contextlib.suppress(NoMetricValue):
            row[metric.tag] = metric.parse_record(parsed, row)
    row[good.tag] = good._parse_record(parsed, row)
    rows.append(row)


def seconds(tag: str) -> dict[str, float]:
    """Percentiles of a metric of the records that have it."""
    values = np.array([row[tag] for row in rows if tag in row], dtype=np.float64)
    result = metric_result_from_array(tag, tag, "ns", values, float(values.sum()))
    return {"p50": result.p50 / 1e9, "p99": result.p99 / 1e9}


ttft, itl = seconds(TTFTMetric.tag), seconds(InterTokenLatencyMetric.tag)
counts = MetricResultsDict()
counts["good_request_count"] = sum(row[good.tag] for row in rows)
counts["request_count"] = len(rows)
counts["error_request_count"] = sum(record["status"] not in DONE + OPEN for record in given["records"])
found = {
    "requests": len(rows),
    "ttft_p50_s": ttft["p50"],
    "ttft_p99_s": ttft["p99"],
    "tpot_p50_s": None,
    "itl_p50_s": itl["p50"],
    "itl_p99_s": itl["p99"],
    "good_share": GoodRequestFractionMetric()._derive_value(counts),
}
sys.stdout.write("\n" + json.dumps(found))
