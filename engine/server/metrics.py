"""What /metrics says, in Prometheus form.

Owns the registry of one server; nothing is registered globally. The engine loop's thread writes all of it but
`advise_rejected_total` and `advise_ignored_fields_total`. Seconds are of the engine's clock: TTFT counts from
the arrival of the request's body, TBT is the gap between two tokens of one request as the engine made them.

| metric | labels | meaning |
|---|---|---|
| advise_requests_total | finish_reason | requests that ended: stop, length, abort, error |
| advise_rejected_total | reason | requests refused before the queue: queue_full, draining |
| advise_ignored_fields_total | | fields of request bodies that nobody knows |
| advise_prompt_tokens_total | | prompt tokens of requests first admitted |
| advise_prefix_hit_tokens_total | | of those, found in the prefix cache |
| advise_generated_tokens_total | | tokens sampled |
| advise_computed_tokens_total | phase | query tokens run through the model: prefill, decode |
| advise_preemptions_total | | times a running request lost its blocks and went back to the queue |
| advise_requests_queued, advise_requests_running | | requests now |
| advise_kv_blocks | state | blocks now: free, cached (reusable, no request holds them), used, total |
| advise_invariant_violations_total | | idle self-checks that found the block accounting wrong |
| advise_step_seconds | | duration of a step |
| advise_budget_fill | | query tokens of a step over the token budget |
| advise_queue_seconds, advise_ttft_seconds, advise_tbt_seconds | | waiting, first token, gaps |
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SHORT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_LONG = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
_SHARE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Metrics:
    """The registry and its metrics; one instance a server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"advise_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"advise_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"advise_{name}", text, buckets=buckets, registry=registry)

        self.requests = counter("requests", "requests that ended", "finish_reason")
        self.rejected = counter("rejected", "requests refused before the queue", "reason")
        self.ignored_fields = counter("ignored_fields", "unknown fields of request bodies")
        self.prompt_tokens = counter("prompt_tokens", "prompt tokens of admitted requests")
        self.prefix_hit_tokens = counter("prefix_hit_tokens", "prompt tokens found in the prefix cache")
        self.generated_tokens = counter("generated_tokens", "tokens sampled")
        self.computed_tokens = counter("computed_tokens", "query tokens computed", "phase")
        self.preemptions = counter("preemptions", "requests that lost their blocks")
        self.queued = gauge("requests_queued", "requests waiting")
        self.running = gauge("requests_running", "requests running")
        self.kv_blocks = gauge("kv_blocks", "KV blocks", "state")
        self.invariant_violations = counter("invariant_violations", "idle self-checks that failed")
        self.step_seconds = histogram("step_seconds", "duration of a step", _SHORT)
        self.budget_fill = histogram("budget_fill", "query tokens over token budget", _SHARE)
        self.queue_seconds = histogram("queue_seconds", "arrival to first step", _LONG)
        self.ttft_seconds = histogram("ttft_seconds", "arrival to first token", _LONG)
        self.tbt_seconds = histogram("tbt_seconds", "gap between tokens of one request", _SHORT)
        self.computed_prefill = self.computed_tokens.labels("prefill")
        self.computed_decode = self.computed_tokens.labels("decode")
        self.blocks_free = self.kv_blocks.labels("free")
        self.blocks_cached = self.kv_blocks.labels("cached")
        self.blocks_used = self.kv_blocks.labels("used")
        self.blocks_total = self.kv_blocks.labels("total")

    def exposition(self) -> bytes:
        """The text of /metrics."""
        return generate_latest(self._registry)
