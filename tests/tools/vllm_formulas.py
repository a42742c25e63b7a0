"""Runs beside vLLM's files: the figures of `vllm bench serve` of our raw records, as JSON.

Argument: a JSON file of `records` and the targets `ttft_s` and `tpot_s`. Its `calculate_metrics` and the type
that it takes are run as they are; what its module imports for other purposes (torch among it) is left out, so
that its wheel is enough, without what that needs.
"""

import importlib.util
import json
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

DONE, OPEN = ("ok", "wrong_length"), ("unsent", "interrupted")
spec = importlib.util.find_spec("vllm")
assert spec is not None
root = ModuleType("vllm")
root.__path__ = list(spec.submodule_search_locations or [])
sys.modules["vllm"] = root
for name in (
    "vllm.benchmarks.datasets", "vllm.benchmarks.lib.ready_checker", "vllm.benchmarks.lib.utils",
    "vllm.tokenizers", "vllm.utils", "vllm.utils.argparse_utils", "vllm.utils.gc_utils",
    "vllm.utils.network_utils",
):  # fmt: skip
    sys.modules[name] = MagicMock()
serve = import_module("vllm.benchmarks.serve")
output_type = import_module("vllm.benchmarks.lib.endpoint_request_func").RequestFuncOutput

given = json.loads(Path(sys.argv[1]).read_text())
outputs = []
for record in given["records"]:
    if record["status"] in OPEN:
        continue
    output = output_type(success=record["status"] in DONE, prompt_len=record["n_in"] or 0)
    if output.success:
        begun = record["t_send"] - record["t_conn"]
        stamps = sorted({record["t_any"] or record["t_chunk"][0], *record["t_chunk"]})
        output.start_time, output.output_tokens = begun, record["n_out"]
        output.ttft, output.latency = stamps[0] - begun, stamps[-1] - begun
        output.itl = [later - one for one, later in pairwise(stamps)]
    outputs.append(output)
lasted_s = max(record["t_done"] or 0.0 for record in given["records"])
limits = {"ttft": given["ttft_s"] * 1e3, "tpot": given["tpot_s"] * 1e3}
metrics, _ = serve.calculate_metrics([], outputs, lasted_s, None, [50, 99], limits)


def seconds(percentiles: list[tuple[float, float]]) -> list[float]:
    """The two percentiles asked for."""
    return [value / 1e3 for _, value in percentiles]


found = {
    "requests": metrics.completed,
    **dict(zip(("ttft_p50_s", "ttft_p99_s"), seconds(metrics.percentiles_ttft_ms), strict=True)),
    "tpot_p50_s": metrics.median_tpot_ms / 1e3,
    **dict(zip(("itl_p50_s", "itl_p99_s"), seconds(metrics.percentiles_itl_ms), strict=True)),
    "good_rate_rps": metrics.request_goodput,
    "good_share": metrics.request_goodput * lasted_s / metrics.completed,
}
sys.stdout.write("\n" + json.dumps(found))
