"""OpenAI's organization usage, grouped by model: buckets of sums, in pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.traffic import START_NS, Call

from advisor.logs.trace import Trace

FORMAT = "openai-usage"
KEEPS: frozenset[str] = frozenset()
HOUR_NS = 3600 * 10**9


def write(calls: Sequence[Call], path: Path) -> None:
    """A page a line, of two buckets each; an hour without requests has no results."""
    hours = range((calls[-1].arrival_ns - START_NS) // HOUR_NS + 1)
    buckets = [_bucket(START_NS + hour * HOUR_NS, calls) for hour in hours]
    pages = [
        {"object": "page", "data": buckets[at : at + 2], "has_more": at + 2 < len(buckets), "next_page": None}
        for at in range(0, len(buckets), 2)
    ]
    path.write_text("".join(json.dumps(page) + "\n" for page in pages))


def check_sums(trace: Trace, calls: Sequence[Call]) -> None:
    """Only sums survive: means and the cached share follow from them."""
    good = [call for call in calls if call.ok]
    totals = trace.totals
    assert totals is not None
    assert (len(trace), totals.requests) == (0, len(good))
    assert totals.prompt_tokens == sum(call.prompt_tokens for call in good)
    assert totals.output_tokens == sum(call.output_tokens for call in good)
    assert totals.cached_tokens == sum(call.cached_tokens or 0 for call in good)
    assert totals.cached_share == pytest.approx(totals.cached_tokens / totals.prompt_tokens)
    assert totals.span_s == ((good[-1].arrival_ns - START_NS) // HOUR_NS + 1) * 3600


def _bucket(start_ns: int, calls: Sequence[Call]) -> dict[str, Any]:
    within = [call for call in calls if call.ok and start_ns <= call.arrival_ns < start_ns + HOUR_NS]
    results = []
    for model in sorted({call.model for call in within}):
        some = [call for call in within if call.model == model]
        prompt, cached = (
            sum(call.prompt_tokens for call in some),
            sum(call.cached_tokens or 0 for call in some),
        )
        results.append(
            {
                "object": "organization.usage.completions.result",
                "input_tokens": prompt,
                "input_cached_tokens": cached,
                "input_uncached_tokens": prompt - cached,
                "output_tokens": sum(call.output_tokens for call in some),
                "num_model_requests": len(some),
                "model": model,
                "batch": None,
                "project_id": None,
            }
        )
    start = start_ns // 10**9
    return {"object": "bucket", "start_time": start, "end_time": start + 3600, "results": results}
