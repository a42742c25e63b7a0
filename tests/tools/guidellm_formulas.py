"""Runs in GuideLLM's environment: its metrics of our raw records, as JSON.

Argument: a JSON file of `records` and the targets `ttft_s` and `tpot_s`. Each record is put into GuideLLM's own
request statistics, and its own accumulators and `GenerativeMetrics.compile` make the figures of them.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from guidellm.benchmark.schemas.accumulator import GenerativeBenchmarkTimings, GenerativeRequestsAccumulator
from guidellm.benchmark.schemas.metrics import GenerativeMetrics
from guidellm.schemas import GenerativeRequestStats, RequestInfo, RequestTimings, UsageMetrics
from guidellm.schemas.benchmark.goodput import GoodputSLO

DONE, OPEN = ("ok", "wrong_length"), ("unsent", "interrupted")
EPOCH = 1.7e9  # it takes wall clock times, and zero for none
given = json.loads(Path(sys.argv[1]).read_text())


def stats(record: dict) -> GenerativeRequestStats:
    """One record as it would have kept it."""
    chunks = record["t_chunk"]
    timings = RequestTimings(
        resolve_start=EPOCH + record["t_send"],
        request_start=EPOCH + record["t_send"],
        first_token_iteration=EPOCH + chunks[0] if chunks else None,
        last_token_iteration=EPOCH + chunks[-1] if chunks else None,
        token_iterations=len(chunks),
        request_end=EPOCH + record["t_done"],
        resolve_end=EPOCH + record["t_done"],
    )
    return GenerativeRequestStats(
        request_id=str(record["row"]),
        info=RequestInfo(request_id=str(record["row"]), timings=timings),
        input_metrics=UsageMetrics(text_tokens=record["n_in"]),
        output_metrics=UsageMetrics(text_tokens=record["n_out"]),
    )


sent = [record for record in given["records"] if record["status"] not in OPEN]
completed, errored = (
    GenerativeRequestsAccumulator(
        requests_stats=[stats(record) for record in sent if (record["status"] in DONE) == complete]
    )
    for complete in (True, False)
)
limits = GoodputSLO(ttft_ms=given["ttft_s"] * 1e3, tpot_ms=given["tpot_s"] * 1e3)
accumulator = SimpleNamespace(
    timings=GenerativeBenchmarkTimings(request_start=EPOCH, request_end=EPOCH + 1e6),
    completed=completed,
    errored=errored,
    incomplete=GenerativeRequestsAccumulator(),
    config=SimpleNamespace(
        confidence=None, slo=limits, strategy=SimpleNamespace(defines_arrival_schedule=True), profile={}
    ),
)
metrics = GenerativeMetrics.compile(accumulator)
ttft, itl = metrics.time_to_first_token_ms.successful, metrics.inter_token_latency_ms.successful
found = {
    "requests": metrics.request_totals.successful,
    "ttft_p50_s": ttft.percentiles.p50 / 1e3,
    "ttft_p99_s": ttft.percentiles.p99 / 1e3,
    "tpot_p50_s": metrics.time_per_output_token_ms.successful.percentiles.p50 / 1e3,
    "itl_p50_s": itl.percentiles.p50 / 1e3,
    "itl_p99_s": itl.percentiles.p99 / 1e3,
    "good_share": metrics.slo_attainment,
}
sys.stdout.write("\n" + json.dumps(found))
