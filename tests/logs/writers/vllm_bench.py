"""Results of `vllm bench serve --save-detailed --append-result`, a run a model; failed requests have zeros."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.traffic import START_NS, Call

FORMAT = "vllm-bench"
FILE = "result.json"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2e_s", "model"))
RELATIVE = True
_BOOTED_S = 51_234.1  # on the performance counter


def HAS(call: Call) -> bool:  # noqa: N802
    """Clients of a benchmark always know when the first token came."""
    return call.ttft_ns is not None


def write(calls: Sequence[Call], path: Path) -> None:
    """Objects on lines of their own, as `--append-result` leaves them."""
    models = sorted({call.model for call in calls})
    path.write_text(
        "\n".join(json.dumps(_result([call for call in calls if call.model == model])) for model in models)
    )


def _result(calls: Sequence[Call]) -> dict[str, Any]:
    done = [call for call in calls if call.ok and HAS(call)]
    return {
        "date": "20260914-080000", "endpoint_type": "openai-chat", "backend": "openai-chat",
        "model_id": calls[0].model, "num_prompts": len(calls), "request_rate": "inf", "burstiness": 1.0,
        "max_concurrency": None, "duration": 900.0, "completed": len(done), "failed": len(calls) - len(done),
        "total_input_tokens": sum(call.prompt_tokens for call in done),
        "total_output_tokens": sum(call.output_tokens for call in done),
        "request_goodput": None,
        "input_lens": [len(call.tokens) for call in calls],
        "output_lens": [call.output_tokens if HAS(call) else 0 for call in calls],
        "ttfts": [(call.ttft_ns or 0) / 1e9 for call in calls],
        "itls": [_gaps(call) for call in calls],
        "start_times": [_BOOTED_S + (call.arrival_ns - START_NS) / 1e9 for call in calls],
        "generated_texts": [call.answer if call.ok and HAS(call) else "" for call in calls],
        "errors": ["" if call.ok and HAS(call) else "ServerDisconnectedError" for call in calls],
        "mean_ttft_ms": 310.2,
    }  # fmt: skip


def _gaps(call: Call) -> list[float]:
    """Seconds between chunks after the first, which are fewer than the tokens."""
    if call.ttft_ns is None:
        return []
    chunks = max(1, call.output_tokens // 2)
    return [(call.e2e_ns - call.ttft_ns) / 1e9 / chunks] * chunks
