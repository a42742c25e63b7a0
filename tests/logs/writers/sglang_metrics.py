"""SGLang's `--export-metrics-to-file` with `--enable-metrics`: written at the end, so in the order of ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.traffic import Call
from logs.writers.sglang_log import output, request

FORMAT = "sglang-metrics"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens", "cached_tokens", "blocks", "ttft_s", "e2e_s"))


def write(calls: Sequence[Call], path: Path) -> None:
    """Refused requests are exported too, with zeros."""
    path.write_text(
        "".join(json.dumps(_row(call)) + "\n" for call in sorted(calls, key=lambda call: call.end_ns))
    )


def _row(call: Call) -> dict[str, Any]:
    parameters = {name: value for name, value in request(call).items() if value is not None}
    meta = output(call)["meta_info"] | {"request_received_ts": call.arrival_ns / 1e9, "queue_time": 0.004}
    return {"request_parameters": json.dumps(parameters), **meta}
